// SPDX-License-Identifier: Apache-2.0
// Sums and gathers over all examples of a step, which losses use. Positions in the global batch are
// ordered by replica, then pass, then rank of the replica, then example within the pass.
#pragma once

#include "base/tree_sum.hpp"
#include "models/losses/embedding_loss.hpp"

namespace models {

class StepBatch {
 public:
  using Part = StepEmbeddings::Part;

  StepBatch(nn::Context& ctx, const StepEmbeddings& step) : ctx_(ctx), step_(step) {
    CHECK(ctx.group && ctx.states, "a loss needs the examples of all ranks and its states");
    CHECK(step.examples == int64_t(step.parts.size()) * ctx.batch * ctx.group->ranks(),
          "{} examples in {} passes of {}", step.examples, step.parts.size(), ctx.batch);
  }

  // Examples of a slice, and their rows of a tensor with `width` elements for each example.
  int64_t slice() const { return ctx_.batch / ctx_.slices; }
  View rows(View v, int64_t j, int64_t width) const {
    return v.none() ? v : v.slice(j * slice() * width, slice() * width);
  }
  // Position of the first example of slice j of a part.
  int64_t first(size_t part, int64_t j) const { return step_.parts[part].first + j * slice(); }
  // Calls f(part's number, slice) for every slice of this rank.
  template <class F>
  void for_slices(const F& f) const {
    for (size_t m = 0; m < step_.parts.size(); ++m)
      for (int64_t j = 0; j < ctx_.slices; ++j) f(m, j);
  }

  // Returns the sum over all slices of the step, which is the same on all ranks, as a temporary:
  // f32 or f64 [count]. leaf(part's number, slice, target) overwrites target with a slice's part.
  template <class Leaf>
  View sum(int64_t count, device::DType type, const Leaf& leaf) const {
    Slots passes(ctx_, int64_t(step_.parts.size()), 0, count, type);
    device::Arena::Scope scope(ctx_.arena);
    Slots slices(ctx_, ctx_.slices, 1, count, type);  // slot 0 is one of `passes`
    for (size_t m = 0; m < step_.parts.size(); ++m) {
      slices.at[0] = passes.next();
      for (int64_t j = 0; j < ctx_.slices; ++j) {
        leaf(m, j, slices.next());
        slices.push();
      }
      ctx_.group->add_in_replica(slices.finish(), ctx_.queue);
      passes.push();
    }
    const View total = passes.finish();
    ctx_.group->add_replicas(total, ctx_.queue);
    return total;
  }

  // Returns the rows of all examples in order of position, [examples, width], as a temporary.
  // of_part(part's number): [batch, width].
  template <class Of>
  View gather(int64_t width, device::DType type, const Of& of_part) const {
    const int64_t passes = int64_t(step_.parts.size());
    const View all = ctx_.arena.temporary(step_.examples * width, type);
    if (passes == 1) {
      ctx_.group->gather(of_part(size_t(0)), all, ctx_.queue);
      return all;
    }
    device::Arena::Scope scope(ctx_.arena);
    const View pass = ctx_.arena.temporary(all.count / passes, type);
    const int64_t replicas = ctx_.group->replicas(), each = pass.count / replicas;
    for (int64_t m = 0; m < passes; ++m) {
      ctx_.group->gather(of_part(size_t(m)), pass, ctx_.queue);
      for (int64_t r = 0; r < replicas; ++r)
        device::copy(all.slice((r * passes + m) * each, each), pass.slice(r * each, each),
                     ctx_.queue);
    }
    return all;
  }

 private:
  // Partial sums along the tree.
  struct Slots {
    // Makes room for all slots from `begin` on.
    Slots(nn::Context& context, int64_t leaves, int begin, int64_t count, device::DType type)
        : ctx(context) {
      for (int s = begin; s < base::TreeSum::slots(leaves); ++s)
        at[size_t(s)] = ctx.arena.temporary(count, type);
    }
    View next() const { return at[size_t(tree.next_slot())]; }
    void push() {
      tree.push([this](int into, int from) { add(into, from); });
    }
    View finish() {
      tree.finish([this](int into, int from) { add(into, from); });
      return at[0];
    }
    void add(int into, int from) const;

    nn::Context& ctx;
    std::array<View, 40> at{};
    base::TreeSum tree{};
  };

  nn::Context& ctx_;
  const StepEmbeddings& step_;
};

// Copies the values of the first part to all others: for a loss that is one number per step.
void copy_to_other_parts(nn::Context& ctx, const StepEmbeddings& step);

// If the loss has parameters, adds the parts of a pass's examples to their gradients. next: the
// block that runs backward afterwards.
void add_parameter_gradients(nn::Context& ctx, const EmbeddingLoss& loss,
                             const StepEmbeddings::Part& part, int next);

}  // namespace models
