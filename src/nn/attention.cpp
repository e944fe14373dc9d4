// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.hpp"

#include "kernels/rotate_heads.hpp"
#include "nn/joined_linear.hpp"

namespace nn {

JoinedLinear Attention::joined(bool self) const {
  return self ? JoinedLinear{&query, &key, &value} : JoinedLinear{&key, &value};
}

Attention::Saved Attention::make_heads(Context& ctx, bool saved, bool self,
                                       const Sequences& queries, const Sequences& keys) const {
  const int64_t q = queries.rows.count, k = keys.rows.count;
  if (!joins(ctx))
    return {ctx.make_activation(saved, q * query.out),
            ctx.make_activation(saved, k * key.out),
            ctx.make_activation(saved, k * value.out),
            {},
            {}};
  const JoinedLinear layers = joined(self);
  const View all = ctx.make_activation(saved, k * layers.columns());
  const size_t first = self ? 1 : 0;
  return {self ? layers.part(all, k, 0) : ctx.make_activation(saved, q * query.out),
          layers.part(all, k, first),
          layers.part(all, k, first + 1),
          {},
          {},
          all};
}

Attention::Saved Attention::make_saved(Context& ctx, bool saved, bool self,
                                       const Sequences& queries, const Sequences& keys) const {
  Saved out = make_heads(ctx, saved, self, queries, keys);
  out.o = ctx.make_activation(saved, queries.rows.count * query.out);
  out.lse = ctx.make(saved, ctx.batch * queries.length * heads);
  return out;
}

kernels::AttentionShape Attention::shape(Context& ctx, bool self, const Sequences& queries,
                                         const Sequences& keys, kernels::Mask mask,
                                         View flags) const {
  const int64_t stride = joins(ctx) ? joined(self).columns() : 0;
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
          .key_offsets = keys.offsets,
          .query_stride = self ? stride : 0,
          .key_stride = stride};
}

void Attention::rotate(Context& ctx, View x, const Sequences& of, int64_t stride,
                       bool backward) const {
  if (of.rotation.none()) return;
  ctx.run(kernels::RotateHeads{.x = x,
                               .table = of.rotation,
                               .rows = of.rows.count,
                               .heads = heads,
                               .head_dim = query.out / heads,
                               .stride = stride,
                               .backward = backward});
}

void Attention::forward_heads(Context& ctx, View x, const Sequences& queries, View memory,
                              const Sequences& keys, kernels::Mask mask, View flags,
                              const Saved& saved) const {
  const bool self = x.data == memory.data && x.count == memory.count;
  if (!saved.joined.none()) {
    device::Arena::Scope scope(ctx.arena);
    if (!self) query.forward(ctx, x, queries.rows, saved.q);
    joined(self).forward(ctx, ctx.operand(memory), keys.rows.count, saved.joined);
  } else {
    device::Arena::Scope scope(ctx.arena);
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
  const kernels::AttentionShape form = shape(ctx, self, queries, keys, mask, flags);
  rotate(ctx, saved.q, queries, form.query_stride, false);
  rotate(ctx, saved.k, keys, form.key_stride, false);
  ctx.run(kernels::AttentionForward{
      .o = saved.o, .lse = saved.lse, .q = saved.q, .k = saved.k, .v = saved.v, .shape = form});
}

void Attention::backward(Context& ctx, const StreamGradient& dy, View x, const Sequences& queries,
                         View memory, const Sequences& keys, kernels::Mask mask, View flags,
                         const Saved& saved, View dx, View dmemory, Write memory_write) const {
  device::Arena::Scope scope(ctx.arena);
  bool self = memory.none();
  const View d_o = ctx.make_activation(false, queries.rows.count * query.out);
  const Saved d = make_heads(ctx, false, self, queries, keys);
  output.backward(ctx, dy, saved.o, queries.rows, d_o);
  const kernels::AttentionShape form = shape(ctx, self, queries, keys, mask, flags);
  ctx.run(kernels::AttentionBackward{.dq = d.q,
                                     .dk = d.k,
                                     .dv = d.v,
                                     .d_o = d_o,
                                     .q = saved.q,
                                     .k = saved.k,
                                     .v = saved.v,
                                     .o = saved.o,
                                     .lse = saved.lse,
                                     .shape = form});
  rotate(ctx, d.q, queries, form.query_stride, true);
  rotate(ctx, d.k, self ? queries : keys, form.key_stride, true);
  const View source = self ? x : memory, into = self ? dx : dmemory;
  if (!d.joined.none()) {
    const JoinedLinear layers = joined(self);
    if (!self) query.backward(ctx, d.q, x, queries.rows, dx);
    layers.backward_input(ctx, d.joined, keys.rows.count, into,
                          self ? Write::overwrite : memory_write);
    return layers.parameter_gradients(ctx, d.joined, source, keys.rows.count);
  }
  for (int64_t j = 0; j < ctx.slices; ++j) {
    const kernels::Gemm query_product =
                            query.input_product(ctx, d.q, queries.rows, j, dx, Write::overwrite),
                        key_product = key.input_product(ctx, d.k, keys.rows, j, into,
                                                        self ? Write::accumulate : memory_write),
                        value_product =
                            value.input_product(ctx, d.v, keys.rows, j, into, Write::accumulate);
    if (self) {
      ctx.run_by_rows({query_product, key_product, value_product});
    } else {
      ctx.run(query_product);
      ctx.run_by_rows({key_product, value_product});
    }
  }
  query.parameter_gradients(ctx, d.q, x, queries.rows);
  key.parameter_gradients(ctx, d.k, source, keys.rows);
  value.parameter_gradients(ctx, d.v, source, keys.rows);
}

}  // namespace nn
