#include "kernels/attention.hpp"

#include "nn/layers.hpp"

namespace nn {

Attention::Saved Attention::make_saved(Context& ctx, bool saved, const Sequences& queries, const Sequences& keys) const {
  int64_t q = queries.rows.count, k = keys.rows.count;
  return {ctx.make_activation(saved, q * query.out), ctx.make_activation(saved, k * key.out), ctx.make_activation(saved, k * value.out),
          ctx.make_activation(saved, q * query.out), ctx.make(saved, ctx.batch * queries.length * heads)};
}

kernels::AttentionShape Attention::shape(Context& ctx, const Sequences& queries, const Sequences& keys, kernels::Mask mask,
                                         View flags) const {
  return {.batch = ctx.batch, .heads = heads, .query_length = queries.length, .key_length = keys.length,
          .head_dim = query.out / heads, .mask = mask, .flags = flags, .dropout = ctx.train ? weight_dropout : 0.0f,
          .stream = ctx.dropout.sub(base::stream_id(dropout_name)).sub(uint64_t(layer)), .first_example = ctx.first_example,
          .query_offsets = queries.offsets, .key_offsets = keys.offsets};
}

void Attention::forward_heads(Context& ctx, View x, const Sequences& queries, View memory, const Sequences& keys,
                              kernels::Mask mask, View flags, const Saved& saved) const {
  query.forward(ctx, x, queries.rows, saved.q);
  key.forward(ctx, memory, keys.rows, saved.k);
  value.forward(ctx, memory, keys.rows, saved.v);
  ctx.run(kernels::AttentionForward{.o = saved.o, .lse = saved.lse, .q = saved.q, .k = saved.k, .v = saved.v,
                                    .shape = shape(ctx, queries, keys, mask, flags)});
}

void Attention::backward(Context& ctx, View dy, View x, const Sequences& queries, View memory, const Sequences& keys,
                         kernels::Mask mask, View flags, const Saved& saved, View dx, View dmemory, Write memory_write) const {
  device::Arena::Scope scope(ctx.arena);
  bool self = memory.none();
  auto activation = [&](int64_t count) { return ctx.make_activation(false, count); };
  View d_o = activation(queries.rows.count * query.out), dq = activation(queries.rows.count * query.out);
  View dk = activation(keys.rows.count * key.out), dv = activation(keys.rows.count * value.out);
  output.backward(ctx, dy, saved.o, queries.rows, d_o);
  ctx.run(kernels::AttentionBackward{.dq = dq, .dk = dk, .dv = dv, .d_o = d_o, .q = saved.q, .k = saved.k, .v = saved.v,
                                     .o = saved.o, .lse = saved.lse, .shape = shape(ctx, queries, keys, mask, flags)});
  query.backward(ctx, dq, x, queries.rows, dx);
  key.backward(ctx, dk, self ? x : memory, keys.rows, self ? dx : dmemory, self ? Write::accumulate : memory_write);
  value.backward(ctx, dv, self ? x : memory, keys.rows, self ? dx : dmemory, Write::accumulate);
}

}  // namespace nn
