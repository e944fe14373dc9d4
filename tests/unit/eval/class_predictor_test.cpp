// SPDX-License-Identifier: Apache-2.0
// Tests predictions of classifiers: the order of classes, also of equally likely ones, and their
// probabilities.
#include "eval/classes/class_predictor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "rig.hpp"

namespace predictor {

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

// Gives the one example of a batch these logits.
class GivenLogits : public eval::ClassPass {
 public:
  GivenLogits(Floats row, bool exclusive) : row_(std::move(row)), exclusive_(exclusive) {}
  std::string name() const override { return "logits"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  void run(nn::Context&, const models::Inputs&, const eval::ClassNumbers& to) override {
    std::copy(row_.begin(), row_.end(), to.scores);
  }
  int64_t classes() const override { return int64_t(row_.size()); }
  kernels::ClassLoss loss() const override {
    return exclusive_ ? kernels::ClassLoss::softmax : kernels::ClassLoss::sigmoid;
  }

 private:
  Floats row_;
  bool exclusive_;
};

struct Predicted {
  int32_t prediction = -1;
  Ints top;
  Floats probability;
};
Predicted predict(const Floats& row, int64_t top_k, bool exclusive = true) {
  GivenLogits pass(row, exclusive);
  const auto predictor = eval::make_class_predictor(pass, "", top_k);
  const auto top = size_t(predictor->columns()[2].shape[0]);
  Floats logits(row.size());
  Predicted out{-1, Ints(top, -1), Floats(top, NAN)};
  const device::View columns[] = {device::view(logits.data(), int64_t(logits.size())),
                                  device::view(&out.prediction, 1),
                                  device::view(out.top.data(), int64_t(top)),
                                  device::view(out.probability.data(), int64_t(top))};
  rig::forward(pass, {}, [&](nn::Context& ctx, const models::Inputs& in) {
    predictor->run(ctx, in, columns);
  });
  EXPECT_EQ(logits, row);
  return out;
}

TEST(ClassPredictor, AmongEqualLogitsTheFirstClassesComeFirst) {
  const Predicted two = predict({0, 1, 1, 0, 1}, 2);
  EXPECT_EQ(two.prediction, 1);
  EXPECT_EQ(two.top, (Ints{1, 2}));
  EXPECT_EQ(predict({0, 1, 1, 0, 1}, 5).top, (Ints{1, 2, 4, 0, 3}));
  EXPECT_EQ(predict(Floats(6, 2.5f), 3).top, (Ints{0, 1, 2}));
  // Every number of likely classes has the order of a stable sort.
  Floats row;
  for (int i = 0; i < 40; ++i) row.push_back(float(i * 7 % 5));
  Ints order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](int32_t c) { return row[size_t(c)]; });
  for (int64_t top = 1; top <= 40; ++top) {
    const Predicted p = predict(row, top);
    EXPECT_EQ(p.top, Ints(order.begin(), order.begin() + top));
    EXPECT_EQ(p.prediction, order[0]);
  }
}

TEST(ClassPredictor, ProbabilitiesAreOfAllClassesOrOfEachAlone) {
  const Floats row = {1, 3, 2, -1};
  double all = 0;
  for (float x : row) all += std::exp(double(x));
  const Predicted of_all = predict(row, 3), alone = predict(row, 9, false);
  EXPECT_EQ(of_all.top, (Ints{1, 2, 0}));
  EXPECT_EQ(alone.top, (Ints{1, 2, 0, 3})) << "there are no more classes";
  for (size_t k = 0; k < 3; ++k) {
    const double x = double(row[size_t(of_all.top[k])]);
    EXPECT_NEAR(of_all.probability[k], std::exp(x) / all, 1e-7);
    EXPECT_NEAR(alone.probability[k], 1 / (1 + std::exp(-x)), 1e-7);
  }
}

}  // namespace predictor
