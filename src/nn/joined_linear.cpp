// SPDX-License-Identifier: Apache-2.0
#include "nn/joined_linear.hpp"

#include "kernels/copy_columns.hpp"

namespace nn {
namespace {

// Copies of columns that run together: at most a kernel and a bias of each layer.
struct ColumnCopies {
  std::array<kernels::CopyColumns, 6> all;
  size_t count = 0;
  void add(const kernels::CopyColumns& copy) { all[count++] = copy; }
  void run(Context& ctx) const {
    kernels::run_all(std::span<const kernels::CopyColumns>(all.data(), count), ctx.queue);
  }
};

}  // namespace

JoinedLinear::JoinedLinear(std::initializer_list<const Linear*> layers) {
  CHECK(layers.size() >= 2 && layers.size() <= layers_.size());
  for (const Linear* l : layers) {
    inputs_ = l->in;
    layers_[count_++] = l;
    columns_ += l->out;
  }
  for (const Linear* l : layers)
    CHECK(l->in == inputs_ && !l->rows_are_outputs && (l->bias >= 0) == has_biases());
}

View JoinedLinear::part(View matrix, int64_t rows, size_t i) const {
  if (rows == 0) return matrix.slice(0, 0);
  int64_t begin = 0;
  for (size_t before = 0; before < i; ++before) begin += layers_[before]->out;
  return matrix.slice(begin, (rows - 1) * columns_ + layers_[i]->out);
}

// Returns a copy of all kernels, [inputs, columns], which the current scope frees.
View JoinedLinear::joined_kernels(Context& ctx) const {
  const View joined = ctx.arena.temporary(inputs_ * columns_, ctx.activation());
  ColumnCopies copies;
  for (size_t i = 0; i < count_; ++i)
    copies.add({.y = part(joined, inputs_, i),
                .x = ctx.weight_operand(layers_[i]->kernel),
                .rows = inputs_,
                .columns = layers_[i]->out,
                .ldy = columns_});
  copies.run(ctx);
  return joined;
}

void JoinedLinear::forward(Context& ctx, View x, int64_t rows, View y) const {
  device::Arena::Scope scope(ctx.arena);
  View bias{};
  if (has_biases()) {
    bias = ctx.arena.temporary(columns_, y.type);
    ColumnCopies copies;
    for (size_t i = 0; i < count_; ++i) {
      const int parameter = layers_[i]->bias;
      copies.add({.y = part(bias, 1, i),
                  .x = y.type == device::DType::f32 ? ctx.weight(parameter)
                                                    : ctx.weight_operand(parameter),
                  .rows = 1,
                  .columns = layers_[i]->out,
                  .ldy = columns_});
    }
    copies.run(ctx);
  }
  ctx.run(kernels::Gemm{.c = y,
                        .a = x,
                        .b = joined_kernels(ctx),
                        .bias = bias,
                        .m = rows,
                        .n = columns_,
                        .k = inputs_});
}

void JoinedLinear::backward_input(Context& ctx, View d, int64_t rows, View dx, Write write) const {
  device::Arena::Scope scope(ctx.arena);
  ctx.run(kernels::Gemm{.c = dx,
                        .a = d,
                        .b = joined_kernels(ctx),
                        .m = rows,
                        .n = inputs_,
                        .k = columns_,
                        .trans_b = true,
                        .write = write});
}

bool JoinedLinear::has_gradient(const Context& ctx, int Linear::*parameter) const {
  for (size_t i = 0; i < count_; ++i)
    if (!ctx.gradient(layers_[i]->*parameter).view.none()) return true;
  return false;
}

void JoinedLinear::parameter_gradients(Context& ctx, View d, View x, int64_t rows) const {
  const bool kernel = has_gradient(ctx, &Linear::kernel), bias = has_gradient(ctx, &Linear::bias);
  if (!kernel && !bias) return;
  device::Arena::Scope scope(ctx.arena);
  const View sums = bias ? ctx.arena.temporary(columns_) : View{},
             products = kernel ? ctx.arena.temporary(inputs_ * columns_) : View{};
  const kernels::ColumnSum column_sum{.out = sums, .x = d, .m = rows, .n = columns_};
  if (kernel) {
    const kernels::Gemm product{.c = products,
                                .a = ctx.operand(x),
                                .b = d,
                                .m = inputs_,
                                .n = columns_,
                                .k = rows,
                                .trans_a = true};
    if (bias)
      kernels::run_with_sums(product, column_sum, ctx.queue);
    else
      ctx.run(product);
  } else {
    ctx.run(column_sum);
  }
  ColumnCopies copies;
  auto give = [&](size_t i, int parameter, View from, int64_t from_rows) {
    const Linear::Target target = ctx.gradient(parameter);
    if (target.view.none()) return;
    copies.add({.y = target.view,
                .x = part(from, from_rows, i),
                .rows = from_rows,
                .columns = layers_[i]->out,
                .ldx = columns_,
                .write = target.write});
  };
  for (size_t i = 0; i < count_; ++i) {
    give(i, layers_[i]->kernel, products, inputs_);
    give(i, layers_[i]->bias, sums, 1);
  }
  copies.run(ctx);
}

}  // namespace nn
