// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.hpp"

#include "nn/layers.hpp"

namespace nn {

Attention::Saved Attention::make_saved(Context& ctx, bool saved, const Sequences& queries,
                                       const Sequences& keys) const {
  int64_t q = queries.rows.count, k = keys.rows.count;
  return {ctx.make_activation(saved, q * query.out), ctx.make_activation(saved, k * key.out),
          ctx.make_activation(saved, k * value.out), ctx.make_activation(saved, q * query.out),
          ctx.make(saved, ctx.batch * queries.length * heads)};
}

kernels::AttentionShape Attention::shape(Context& ctx, const Sequences& queries,
                                         const Sequences& keys, kernels::Mask mask,
                                         View flags) const {
  return {.batch = ctx.batch,
          .heads = heads,
          .query_length = queries.length,
          .key_length = keys.length,
          .head_dim = query.out / heads,
          .mask = mask,
          .flags = flags,
          .dropout = ctx.train ? weight_dropout : 0.0f,
          .stream = ctx.dropout.sub(base::stream_id(dropout_name)).sub(uint64_t(layer)),
          .first_example = ctx.first_example,
          .query_offsets = queries.offsets,
          .key_offsets = keys.offsets};
}

void Attention::forward_heads(Context& ctx, View x, const Sequences& queries, View memory,
                              const Sequences& keys, kernels::Mask mask, View flags,
                              const Saved& saved) const {
  {
    device::Arena::Scope scope(ctx.arena);
    const bool self = x.data == memory.data && x.count == memory.count;
    const View m = ctx.operand(memory), a = self ? m : ctx.operand(x);
    for (int64_t j = 0; j < ctx.slices; ++j) {
      const kernels::Gemm q = query.product(ctx, a, queries.rows, j, saved.q),
                          k = key.product(ctx, m, keys.rows, j, saved.k),
                          v = value.product(ctx, m, keys.rows, j, saved.v);
      if (self) {
        ctx.run_by_rows({q, k, v});
      } else {
        ctx.run(q);
        ctx.run_by_rows({k, v});
      }
    }
  }
  ctx.run(kernels::AttentionForward{.o = saved.o,
                                    .lse = saved.lse,
                                    .q = saved.q,
                                    .k = saved.k,
                                    .v = saved.v,
                                    .shape = shape(ctx, queries, keys, mask, flags)});
}

void Attention::backward(Context& ctx, const StreamGradient& dy, View x, const Sequences& queries,
                         View memory, const Sequences& keys, kernels::Mask mask, View flags,
                         const Saved& saved, View dx, View dmemory, Write memory_write) const {
  device::Arena::Scope scope(ctx.arena);
  bool self = memory.none();
  auto activation = [&](int64_t count) { return ctx.make_activation(false, count); };
  View d_o = activation(queries.rows.count * query.out),
       dq = activation(queries.rows.count * query.out);
  View dk = activation(keys.rows.count * key.out), dv = activation(keys.rows.count * value.out);
  output.backward(ctx, dy, saved.o, queries.rows, d_o);
  ctx.run(kernels::AttentionBackward{.dq = dq,
                                     .dk = dk,
                                     .dv = dv,
                                     .d_o = d_o,
                                     .q = saved.q,
                                     .k = saved.k,
                                     .v = saved.v,
                                     .o = saved.o,
                                     .lse = saved.lse,
                                     .shape = shape(ctx, queries, keys, mask, flags)});
  for (int64_t j = 0; j < ctx.slices; ++j) {
    const View into = self ? dx : dmemory;
    const kernels::Gemm query_product =
                            query.input_product(ctx, dq, queries.rows, j, dx, Write::overwrite),
                        key_product = key.input_product(ctx, dk, keys.rows, j, into,
                                                        self ? Write::accumulate : memory_write),
                        value_product =
                            value.input_product(ctx, dv, keys.rows, j, into, Write::accumulate);
    if (self) {
      ctx.run_by_rows({query_product, key_product, value_product});
    } else {
      ctx.run(query_product);
      ctx.run_by_rows({key_product, value_product});
    }
  }
  query.parameter_gradients(ctx, dq, x, queries.rows);
  key.parameter_gradients(ctx, dk, self ? x : memory, keys.rows);
  value.parameter_gradients(ctx, dv, self ? x : memory, keys.rows);
}

}  // namespace nn
