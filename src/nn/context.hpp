// SPDX-License-Identifier: Apache-2.0
// Layers. Forward and backward passes are written by hand, in mirror order in one file. A struct
// `Saved` names every saved tensor.
//
// nn knows ops, the arena and the weight and gradient stores, but no model, data or optimizer. A
// layer is a struct of parameter numbers and sizes. To add one: a pair of files here, and a
// gradient check in tests/unit/nn.
#pragma once

#include <array>
#include <initializer_list>

#include "base/tree_sum.hpp"
#include "device/graphs.hpp"
#include "device/memory.hpp"
#include "kernels/cast.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"
#include "nn/batch_group.hpp"
#include "shard/state_store.hpp"

namespace nn {

using device::View;
using kernels::Write;

// A second set of weights on the layout of the first, which a teacher's forward passes read.
// `states`: the next values of its own state tensors; null if it reads the first set's.
struct Teacher {
  shard::WeightStore& weights;
  shard::StateStore* states = nullptr;
};

// Who reads the outputs of blocks while a pass runs.
class BlockWatch {
 public:
  virtual ~BlockWatch() = default;
  // `block`: its number in the model. `output` is in the queue's memory.
  virtual void block_done(int block, const View& output) = 0;
};

// Where a pass computes.
struct Machine {
  device::Queue& queue;
  device::Arena& arena;
  int64_t shape_set = 0;             // plan back end: number of the model's set of shapes
  device::Graphs* graphs = nullptr;  // GPUs: repeat passes, if given
  // Part of the key of a graph: fixes the arguments that shapes and the arena do not fix.
  int64_t graph_kind = 0;
};

// What layers read and write besides activations.
struct Stores {
  shard::WeightStore& weights;
  shard::GradientStore* gradients = nullptr;  // nullptr: forward only
  // Training: the next values of state tensors. Null in a pass that repeats an earlier one of its
  // step and in evaluations: layers then change no state.
  shard::StateStore* states = nullptr;
  const Teacher* teacher = nullptr;  // training: of a model that has one
  BatchGroup* group = nullptr;       // training: the examples of all ranks' passes
  View loss_scale{};                 // optional f32 [1]: factor of all gradients
};

// The place of a micro-batch in the run.
struct Place {
  int64_t batch;                      // examples of this micro-batch
  int64_t slices = 1;                 // contiguous parts; products see one slice (design 3.4)
  int64_t first_example = 0;          // global position of the first example
  int64_t step = 1, total_steps = 0;  // training: number of the step; of the run, 0 = not known
  int64_t pass = 0, passes = 1;       // training: number of this pass, passes of a step
  bool last = true;                   // training: no further pass of the step changes states
};

// What a pass is for.
struct Mode {
  bool train = false;           // dropout on
  bool keep = true;             // save the tensors for a backward pass that follows
  base::Stream dropout{};       // random numbers of this step
  BlockWatch* watch = nullptr;  // training: reads the outputs of the student's blocks
};

// The arguments that all layers share in one pass over one micro-batch, so that a new argument
// changes no layer's signature.
struct Context : Machine, Stores, Place, Mode {
  // The type of activations that only feed products (precision.compute). The residual stream,
  // statistics and sums are f32.
  device::DType activation() const { return weights.operands(); }
  // Returns the context of a forward pass of the teacher, over the same examples.
  Context of_teacher() const {
    CHECK(teacher, "the model has no teacher");
    return {{.queue = queue, .arena = arena},
            {.weights = teacher->weights, .states = teacher->states, .group = group},
            *this,
            {.train = true, .keep = false}};
  }
  View weight(int parameter) const { return weights.weight(parameter); }
  View weight_operand(int parameter) const { return weights.operand(parameter); }
  shard::GradientStore::Target gradient(int parameter) const {
    return parameter < 0 || !gradients ? shard::GradientStore::Target{}
                                       : gradients->gradient(parameter);
  }
  // Allocates a tensor: until backward pops it if `saved`, else until the current scope ends.
  View make(bool saved, int64_t count, device::DType type = device::DType::f32) {
    return saved ? arena.save(count, type) : arena.temporary(count, type);
  }
  // Copies numbers of the host to where ops read them.
  View table(bool saved, const std::vector<int32_t>& values) {
    return table(saved, values, device::DType::i32);
  }
  View table(bool saved, const std::vector<float>& values) {
    return table(saved, values, device::DType::f32);
  }
  View make_activation(bool saved, int64_t count) { return make(saved, count, activation()); }
  // Allocates the gradient of a norm's output that one product writes. GPUs round it, because its
  // writer and its reader both wait for memory.
  View make_norm_gradient(int64_t count) {
    return arena.temporary(count, on_gpu() ? activation() : device::DType::f32);
  }
  bool on_gpu() const { return queue.device() == device::Kind::cuda; }
  // Returns x as an operand of products: x itself, or a rounded copy, which the current scope
  // frees.
  View operand(View x) {
    if (x.type == activation()) return x;
    View y = arena.temporary(x.count, activation());
    run(kernels::Cast{.y = y, .x = x});
    return y;
  }
  template <class Args>
  void run(const Args& args) {
    kernels::run(args, queue);
  }
  void run_by_rows(std::initializer_list<kernels::Gemm> products) {
    kernels::run_by_rows({products.begin(), products.size()}, queue);
  }
  // Runs `work`, whose ops must have the same arguments whenever `shapes` are the same. It makes no
  // table and uses no other values of the host. A graph may run instead of `work`; the arena is
  // then unchanged.
  template <class Work>
  void repeat(std::initializer_list<int64_t> shapes, const Work& work) {
    if (!graphs) return work();
    device::Graphs::Key key(shapes);
    key.insert(key.end(), {graph_kind, arena.low().bytes, arena.high().bytes});
    graphs->run(key, work);
  }

 private:
  template <class T>
  View table(bool saved, const std::vector<T>& values, device::DType type) {
    View v = make(saved, int64_t(values.size()), type);
    device::upload(v, values.data(), queue);
    return v;
  }
};

// Adds the slices' contributions to parameter gradients along the tree. `leaf(j, targets)` writes
// slice j's contribution, or adds it where a target says accumulate. Targets of parameters without
// a gradient are empty. leaf runs once per slice even if all targets are empty, because it may do
// other work too.
template <size_t N, class Leaf>
void sum_over_slices(Context& ctx, const int (&parameters)[N], Leaf leaf) {
  using Targets = std::array<shard::GradientStore::Target, N>;
  Targets final;
  for (size_t i = 0; i < N; ++i) final[i] = ctx.gradient(parameters[i]);
  if (ctx.slices == 1) {
    leaf(0, final);
    return;
  }
  device::Arena::Scope scope(ctx.arena);
  int slots = base::TreeSum::slots(ctx.slices);
  std::array<Targets, 32> slot;
  slot.fill(final);  // slot 0 is the gradient
  for (int s = 1; s < slots; ++s)
    for (auto& t : slot[size_t(s)])
      if (!t.view.none()) t.view = ctx.arena.temporary(t.view.count);
  for (const auto& t : final)
    CHECK(t.view.none() || t.write == Write::overwrite, "slices need overwriting gradients");
  auto add = [&](int into, int from) {
    for (size_t i = 0; i < N; ++i) {
      View y = slot[size_t(into)][i].view;
      if (!y.none()) ctx.run(kernels::Add{.y = y, .a = y, .b = slot[size_t(from)][i].view});
    }
  };
  base::TreeSum sum;
  for (int64_t j = 0; j < ctx.slices; ++j) {
    leaf(j, slot[size_t(sum.next_slot())]);
    sum.push(add);
  }
  sum.finish(add);
}

}  // namespace nn
