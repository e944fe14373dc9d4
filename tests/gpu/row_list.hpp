// SPDX-License-Identifier: Apache-2.0
// Makes rows of ops for kernel_rows.hpp.
#pragma once

#include <algorithm>
#include <utility>

#include "kernel_rows.hpp"

namespace gpu_check {

constexpr device::DType kWide = device::DType::f32, kNarrow = device::DType::bf16;

template <class Args>
std::vector<Args> as_list(Args args) {
  return {std::move(args)};
}
template <class Args>
std::vector<Args> as_list(std::vector<Args> args) {
  return args;
}

// `args(memory)` makes the argument struct, or a vector of them that run in one launch. A second
// call, on a plan's memory, gives the cost.
template <class F>
void add(std::vector<Row>& rows, std::string shape, double per_step, F args) {
  using List = decltype(as_list(args(std::declval<Memory&>())));
  using Args = typename List::value_type;
  Row row;
  row.op = kernels::name_of(Args::op);
  row.shape = std::move(shape);
  row.per_step = per_step;
  row.prepare = [args](Memory& memory, device::Queue& queue) -> std::function<void()> {
    return [calls = as_list(args(memory)), &queue] {
      if constexpr (kernels::RunsTogether<Args>)
        kernels::run_all(std::span<const Args>(calls), queue);
      else
        for (const Args& call : calls) kernels::run(call, queue);
    };
  };
  device::Queue paper(device::Kind::plan);
  Memory measuring(paper);
  for (const Args& call : as_list(args(measuring))) {
    const kernels::Cost cost = kernels::cost(call);
    row.cost.flops += cost.flops;
    row.cost.bytes += cost.bytes;
  }
  rows.push_back(std::move(row));
}

// The ops that a layer fuses into its product in training.
struct Epilogue {
  bool bias = false;
  bool gelu = false;        // the forward product also writes GELU of its result
  bool wide = false;        // the forward product is f32
  bool residual = false;    // and adds a residual
  bool gelu_of = false;     // the gradient of the input is multiplied by GELU's derivative
  bool accumulate = false;  // the gradient of the input is added to
};
// Adds a product of a layer: forward, gradient of the input, gradient of the weights.
void add_linear(std::vector<Row>& rows, const char* what, int64_t m, int64_t in, int64_t out,
                double layers, const Epilogue& epilogue);

std::vector<int32_t> drawn(int64_t count, int64_t end, const char* name);
void add_loss(std::vector<Row>& rows, const Model& m);
void add_optimizer(std::vector<Row>& rows, const Model& m);

}  // namespace gpu_check
