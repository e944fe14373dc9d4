// SPDX-License-Identifier: Apache-2.0
// Checks the head of images and patches: its outputs against a reference in double, its gradients
// against differences of that reference, and its slices.
#include "embedding_rig.hpp"
#include "models/heads/head_kinds.hpp"

namespace {
namespace patch_head_test {

using namespace embedding_rig;
using Named = std::map<std::string, Doubles>;

constexpr int64_t kExamples = 4, kPatches = 3, kRows = kExamples * (1 + kPatches), kIn = 5;

std::unique_ptr<models::Head> make_head(models::ParameterList& list) {
  auto o = std::make_shared<models::PatchHeadOptions>();
  o->patches = kPatches;
  o->patch.layers = {2};
  o->joined.layers = {4};
  o->image.layers = {3, 6};
  models::HeadOptions head;
  head.kind = "image_and_patches";
  head.options = o;
  return models::make_head(head, "head", kIn, list);
}

// y = weight . x + bias
Doubles layer(const Named& p, const std::string& path, const Doubles& x) {
  Doubles y = p.at(path + ".bias");
  const Doubles& w = p.at(path + ".weight");
  for (size_t o = 0; o < y.size(); ++o)
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  return y;
}

// The embeddings of the patches of all examples, then those of the images.
Doubles reference(const Named& p, const Doubles& x) {
  Doubles patches, images;
  auto row = [&](int64_t r) { return Doubles(x.begin() + r * kIn, x.begin() + (r + 1) * kIn); };
  for (int64_t b = 0; b < kExamples; ++b) {
    const int64_t first = b * (1 + kPatches);
    Doubles all;
    for (int64_t i = 1; i <= kPatches; ++i)
      for (double v : layer(p, "head/patch.0", row(first + i))) all.push_back(v);
    for (double v : layer(p, "head/joined.0", all)) patches.push_back(v);
    for (double v : layer(p, "head/image.1", layer(p, "head/image.0", row(first))))
      images.push_back(v);
  }
  patches.insert(patches.end(), images.begin(), images.end());
  return patches;
}

TEST(PatchHead, OutputsAndGradients) {
  models::ParameterList list;
  const auto head = make_head(list);
  EXPECT_EQ(head->widths(), (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(head->joins(), 1 + kPatches);
  Doubles x = numbers(kRows * kIn, "x");
  const Doubles dy = numbers(kExamples * 10, "dy");
  for (const int64_t slices : {1, 4}) {
    Bench bench(list, kExamples, {1, slices});
    Named values;
    for (const shard::Parameter& p : bench.layout().parameters())
      values[p.path] = doubles(bench.weight(p.path));
    bench.begin_step();
    nn::Context ctx = bench.context(1);
    Floats input = floats(x), d = floats(dy), dx(x.size(), NAN), y(dy.size(), NAN);
    const int64_t middle = kExamples * 4, last = kExamples * 6;
    const std::vector<View> outputs = {view(y).slice(0, middle), view(y).slice(middle, last)},
                            gradients = {view(d).slice(0, middle), view(d).slice(middle, last)};
    const auto pass = head->make_pass();
    const int64_t low = ctx.arena.low().bytes;
    head->forward(ctx, view(input), kRows, outputs, -1, *pass);
    head->backward(ctx, gradients, view(dx), -1, *pass);
    EXPECT_EQ(ctx.arena.low().bytes, low);
    EXPECT_EQ(ctx.arena.high().bytes, 0);
    bench.finish_step();
    expect_close({y.begin(), y.end()}, reference(values, x), 3e-6, "outputs");
    auto objective = [&] {
      const Doubles of = reference(values, x);
      double sum = 0;
      for (size_t i = 0; i < of.size(); ++i) sum += of[i] * dy[i];
      return sum;
    };
    expect_close({dx.begin(), dx.end()}, differences(x, objective), 1e-5, "gradient of the input");
    for (auto& [path, v] : values)
      expect_close(doubles(bench.gradient(path)), differences(v, objective), 1e-5, path);
  }
}

}  // namespace patch_head_test
}  // namespace
