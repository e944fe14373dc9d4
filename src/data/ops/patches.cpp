// SPDX-License-Identifier: Apache-2.0
// patches, shuffle_patches: the pieces of a puzzle as views, and their order as a label.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.hpp"
#include "data/ops/views.hpp"

namespace data {
namespace {

constexpr int64_t kMostSides = 16, kMostPermutations = 100000;

// Cuts a square grid of patches, each at a random place of its cell. Patches are numbered column by
// column, as published.
class Patches : public Op {
 public:
  explicit Patches(const Arguments& a)
      : keys_(keys_of(a)), side_(a.integer("side")), jitter_(a.integer("jitter")) {
    if (side_ < 2 || side_ > kMostSides)
      a.fail("side", fmt::format("{} patches a side; give 2 to {}", side_, kMostSides));
    if (jitter_ < 0) a.fail("jitter", "jitter is a number of pixels, 0 or more");
  }

  Spec propagate(Spec spec) const override {
    FieldSpec in = field_of(spec, keys_.in);
    if (in.shape.size() == 4 && in.shape[0] == 1) in.shape.erase(in.shape.begin());
    image_of({{keys_.in, in}}, keys_.in);
    const bool known = in.shape[0] > 0 && in.shape[1] > 0;
    const int64_t size = known ? patch_size(in.shape, base::Exit::config) : -1;
    spec[keys_.out] = FieldSpec::array(in.type, {side_ * side_, size, size, in.shape[2]});
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Array& in = array_of(sample, keys_.in);
    const std::vector<int64_t> shape(in.shape.end() - 3, in.shape.end());
    const int64_t cell = cell_size(shape), size = patch_size(shape, base::Exit::data),
                  pixel = shape[2] * device::size_of(in.type), row = shape[1] * pixel;
    Array out = array_for(context, keys_.out, in.type, {side_ * side_, size, size, shape[2]}, in);
    Draws draw(context.stream);
    uint8_t* to = out.bytes.data();
    for (int64_t i = 0; i < side_; ++i)
      for (int64_t j = 0; j < side_; ++j) {
        const int64_t x = i * cell + shift(draw), y = j * cell + shift(draw);
        for (int64_t r = 0; r < size; ++r, to += size * pixel)
          std::memcpy(to, in.bytes.data() + (y + r) * row + x * pixel, size_t(size * pixel));
      }
    sample[keys_.out] = std::move(out);
  }

 private:
  int64_t cell_size(const std::vector<int64_t>& shape) const {
    return std::min(shape[0], shape[1]) / side_;
  }
  int64_t patch_size(const std::vector<int64_t>& shape, base::Exit code) const {
    const int64_t size = cell_size(shape) - jitter_;
    if (size < 1)
      base::fail(code,
                 "an image {} has cells of {} pixels in a grid of {}, and jitter = {} leaves no "
                 "pixel of a cell; enlarge the image or lower jitter",
                 text_of(shape), cell_size(shape), side_, jitter_);
    return size;
  }
  int64_t shift(Draws& draw) const { return jitter_ > 0 ? draw.below(jitter_) : 0; }

  Keys keys_;
  int64_t side_, jitter_;
};

using PatchOrder = std::vector<int32_t>;

PatchOrder drawn_permutation(Draws& draw, int64_t n) {
  PatchOrder one;
  for (int64_t i = 0; i < n; ++i) {
    one.push_back(int32_t(i));
    std::swap(one.back(), one[size_t(draw.below(i + 1))]);
  }
  return one;
}

// Returns `count` different permutations of n things, the same ones at every call. They come in
// groups: a random permutation and its cyclic shifts, in which nothing keeps its place. No set of
// as many permutations has a larger mean distance.
std::vector<PatchOrder> far_permutations(int64_t count, int64_t n) {
  std::vector<PatchOrder> all;
  std::set<PatchOrder> known;
  Draws draw(base::Stream(0, "permutations"));
  while (int64_t(all.size()) < count) {
    PatchOrder one = drawn_permutation(draw, n);
    if (known.contains(one)) continue;
    for (int64_t s = 0; s < n; ++s) {
      known.insert(one);
      if (int64_t(all.size()) < count) all.push_back(one);
      std::rotate(one.begin(), one.begin() + 1, one.end());
    }
  }
  return all;
}

// Returns n!, or a number above kMostPermutations if it is larger than that.
int64_t orders_of(int64_t n) {
  int64_t orders = 1;
  for (int64_t i = 2; i <= n && orders <= kMostPermutations; ++i) orders *= i;
  return orders;
}

class ShufflePatches : public Op {
 public:
  explicit ShufflePatches(const Arguments& a)
      : keys_(keys_of(a)),
        label_(a.text("label")),
        count_(a.integer("permutations")),
        patches_(a.integer("patches")) {
    if (patches_ < 2 || patches_ > kMostSides * kMostSides)
      a.fail("patches", fmt::format("{} patches; give 2 to {}", patches_, kMostSides * kMostSides));
    const int64_t most = std::min(orders_of(patches_), kMostPermutations);
    if (count_ == 0) return;
    if (count_ < 2 || count_ > most)
      a.fail("permutations",
             fmt::format("{} permutations; give 2 to {} for {} patches", count_, most, patches_));
    permutations_ = far_permutations(count_, patches_);
  }

  Spec propagate(Spec spec) const override {
    const FieldSpec in = field_of(spec, keys_.in);
    if (in.kind != FieldSpec::Kind::array || in.shape.size() != 4 || in.shape[0] != patches_)
      base::fail(base::Exit::config,
                 "field '{}' is {}, not {} views; put patches before it, and set its argument "
                 "patches to their number",
                 keys_.in, text_of(in), patches_);
    spec[keys_.out] = in;
    if (count_ > 0) spec[label_] = FieldSpec::array(device::DType::i32, {}, count_);
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Array in = array_of(sample, keys_.in);
    CHECK(in.shape.size() == 4 && in.shape[0] == patches_, "views {}", text_of(in.shape));
    Draws draw(context.stream);
    const int64_t number = count_ > 0 ? draw.below(count_) : 0;
    const PatchOrder order =
        count_ > 0 ? permutations_[size_t(number)] : drawn_permutation(draw, patches_);
    Array out(in.type, in.shape);
    const size_t each = in.bytes.size() / order.size();
    for (size_t i = 0; i < order.size(); ++i)
      std::memcpy(out.bytes.data() + i * each, in.bytes.data() + size_t(order[i]) * each, each);
    sample[keys_.out] = std::move(out);
    if (count_ == 0) return;
    Array label(device::DType::i32, {});
    *label.i32() = int32_t(number);
    sample[label_] = std::move(label);
  }

 private:
  Keys keys_;
  std::string label_;
  int64_t count_, patches_;
  std::vector<PatchOrder> permutations_;
};

}  // namespace

OpRow patches_row() {
  using Type = Parameter::Type;
  return {
      "patches", "views that are the cells of a grid, cut at random places: [side * side, ...]",
      on_views({{"side", Type::integer, "3", "cells in each direction"},
                {"jitter", Type::integer, "21",
                 "a patch is this many pixels smaller than its cell, and lies in it at random"}}),
      [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
        return std::make_unique<Patches>(a);
      }};
}

OpRow shuffle_patches_row() {
  using Type = Parameter::Type;
  return {"shuffle_patches",
          "puts the views in one of several very different orders; writes the order's number",
          on_views({{"permutations", Type::integer, "2000",
                     "number of orders; 0: any order, without a number"},
                    {"patches", Type::integer, "9", "number of views"},
                    {"label", Type::text, "\"permutation\"",
                     "field to write: the order's number, i32"}}),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<ShufflePatches>(a);
          }};
}

}  // namespace data
