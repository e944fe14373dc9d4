// SPDX-License-Identifier: Apache-2.0
// Tests the pass of evaluators that rank classes, with given logits: losses and ranks of several
// heads, the numbers that are asked for, and labels that are no classes.
#include "eval/classes/class_pass.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/models/one_rank.hpp"

namespace class_pass {

using device::View;
using Floats = std::vector<float>;

constexpr int64_t kImages = 3, kOfImage = 4;

// Head h gives (h + 1) times the image as logits of its classes.
class Multiples : public models::ClassRanker {
 public:
  explicit Multiples(kernels::ClassLoss loss) : loss_(loss) {}
  std::vector<std::string> head_names() const override { return {"one", "two"}; }
  int64_t num_classes() const override { return kOfImage; }
  models::ClassLogits logits(const std::vector<std::string>& heads) const override {
    const std::vector<std::string> names = heads.empty() ? head_names() : heads;
    return {.image = {"image", device::DType::f32, kOfImage, "image"},
            .heads = int64_t(names.size()),
            .classes = kOfImage,
            .loss = loss_,
            .run = [names](nn::Context& ctx, View image, View kept,
                           const models::ClassLogits::Use& use) {
              for (size_t h = 0; h < names.size(); ++h) {
                device::Arena::Scope scope(ctx.arena);
                const View x = kept.none() ? ctx.arena.temporary(image.count)
                                           : kept.slice(int64_t(h) * image.count, image.count);
                ctx.run(kernels::Fill{.y = x});
                ctx.run(kernels::Add{
                    .y = x, .a = x, .b = image, .scale = names[h] == "two" ? 2.0f : 1.0f});
                use(int64_t(h), x);
              }
            }};
  }

 private:
  kernels::ClassLoss loss_;
};

struct Numbers {
  std::vector<double> loss, rank;
  Floats scores;
};

const Floats kImage = {1, 3, 2, 3, 0, 0, 0, 0, 5, -1, 2, 4};

Numbers numbers(const eval::ClassRequest& request, std::vector<int32_t> labels = {3, 0, 2},
                kernels::ClassLoss loss = kernels::ClassLoss::softmax) {
  const Multiples model(loss);
  const std::unique_ptr<eval::ClassPass> pass = eval::make_class_pass(model, request);
  one_rank::Stores stores({}, {}, {.batch = kImages});
  const models::Inputs inputs = stores.make_inputs(pass->inputs());
  const models::HostBatch batch{
      .features = {{"image", device::view(kImage.data(), int64_t(kImage.size()))},
                   {"label", device::view(labels.data(), kImages)}},
      .examples = kImages};
  one_rank::copy_fields(batch, pass->inputs(), inputs);
  pass->prepare(batch, inputs);
  Numbers out{std::vector<double>(6, NAN), std::vector<double>(6, NAN), Floats(24, NAN)};
  stores.run_planned([&](nn::Context& ctx) { pass->plan(ctx, inputs); },
                     [&](nn::Context& ctx) {
                       pass->run(ctx, inputs,
                                 {request.ranks ? out.loss.data() : nullptr,
                                  request.ranks ? out.rank.data() : nullptr,
                                  request.scores ? out.scores.data() : nullptr});
                     });
  return out;
}

TEST(ClassPass, LossesAndRanksFollowFromTheLogitsOfEachHead) {
  const Numbers got = numbers({.scores = true});
  const int32_t labels[] = {3, 0, 2};
  const double ranks[] = {1, 0, 2};  // of equal logits the first class is the more likely one
  for (int64_t h : {0, 1})
    for (int64_t i = 0; i < kImages; ++i) {
      double sum = 0;
      const double factor = double(h + 1);
      for (int64_t c = 0; c < kOfImage; ++c) {
        const float x = kImage[size_t(i * kOfImage + c)];
        sum += std::exp(factor * double(x));
        EXPECT_EQ(double(got.scores[size_t((h * kImages + i) * kOfImage + c)]), factor * double(x));
      }
      const double own = factor * double(kImage[size_t(i * kOfImage + labels[i])]);
      EXPECT_NEAR(got.loss[size_t(h * kImages + i)], std::log(sum) - own, 1e-6);
      EXPECT_EQ(got.rank[size_t(h * kImages + i)], ranks[i]);
    }
}

TEST(ClassPass, HasTheHeadsInTheOrderAskedFor) {
  const Numbers all = numbers({}), turned = numbers({.heads = {"two", "one"}}),
                two = numbers({.heads = {"two"}, .ranks = false, .scores = true});
  for (size_t i = 0; i < size_t(kImages); ++i) {
    EXPECT_EQ(turned.loss[i], all.loss[size_t(kImages) + i]);
    EXPECT_EQ(turned.loss[size_t(kImages) + i], all.loss[i]);
  }
  for (size_t i = 0; i < kImage.size(); ++i) EXPECT_EQ(two.scores[i], 2 * kImage[i]);
}

TEST(ClassPass, TheLossIsTheModels) {
  const Numbers got = numbers({.heads = {"one"}}, {1, 1, 1}, kernels::ClassLoss::squared);
  // of errors 1, 2, 2, 3 to the targets 0, 1, 0, 0
  EXPECT_NEAR(got.loss[0], (1 + 4 + 4 + 9) / 4.0, 1e-6);
}

TEST(ClassPass, RefusesLabelsThatAreNoClasses) {
  for (int32_t label : {-1, 4}) try {
      numbers({}, {0, label, 0});
      ADD_FAILURE() << label;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::data);
      EXPECT_NE(std::string(e.what()).find("position 1 is not in [0, 4)"), std::string::npos)
          << e.what();
    }
  const eval::ClassRequest scores{.ranks = false, .scores = true};
  EXPECT_EQ(eval::make_class_pass(Multiples(kernels::ClassLoss::softmax), scores)->inputs().size(),
            1u)
      << "labels are not read";
}

}  // namespace class_pass
