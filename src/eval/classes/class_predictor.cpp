// SPDX-License-Identifier: Apache-2.0
#include "eval/classes/class_predictor.hpp"

#include <algorithm>
#include <numeric>

#include "base/elementary.hpp"

namespace eval {
namespace {

using Loss = kernels::ClassLoss;

class ClassPredictor : public Predictor {
 public:
  ClassPredictor(ClassPass& pass, const std::string& probe, int64_t top_k)
      : pass_(pass),
        probe_(probe),
        classes_(pass.classes()),
        top_(std::min(top_k, classes_)),
        loss_(pass.loss()) {}

  std::vector<PredictedColumn> columns() const override {
    return {{"logit", device::DType::f32, {classes_}, "1", "the model's output for each class"},
            {"prediction",
             device::DType::i32,
             {},
             "1",
             "the class of the largest logit; of equal ones the first"},
            {"top_class", device::DType::i32, {top_}, "1", "classes by falling logits"},
            {"top_probability",
             device::DType::f32,
             {top_},
             "1",
             loss_ == Loss::softmax   ? "their softmax over all classes"
             : loss_ == Loss::sigmoid ? "their sigmoid, each for itself"
                                      : "their outputs, which are no probabilities"}};
  }
  std::map<std::string, std::string> made_from() const override {
    std::map<std::string, std::string> out = {{"predict.top_k", std::to_string(top_)}};
    if (!probe_.empty()) out["probe"] = probe_;
    return out;
  }

  void run(nn::Context& ctx, const models::Inputs& inputs,
           std::span<const device::View> columns) override {
    float* const logits = columns[0].f32();
    pass_.run(ctx, inputs, {.scores = logits});
    std::vector<int32_t> order(static_cast<size_t>(classes_));
    for (int64_t i = 0; i < ctx.batch; ++i) {
      const float* const row = logits + i * classes_;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(
          order.begin(), order.begin() + top_, order.end(),
          [&](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
      columns[1].i32()[i] = order[0];
      const double all = loss_ == Loss::softmax ? sum_of_exponentials(row, row[order[0]]) : 1;
      for (int64_t k = 0; k < top_; ++k) {
        const int32_t c = order[size_t(k)];
        columns[2].i32()[i * top_ + k] = c;
        columns[3].f32()[i * top_ + k] =
            kernels::compares_values(loss_)
                ? row[c]
                : float(loss_ == Loss::softmax
                            ? base::math::exp(double(row[c]) - double(row[order[0]])) / all
                            : 1 / (1 + base::math::exp(-double(row[c]))));
      }
    }
  }

 private:
  // Added in the order of the classes, relative to the largest logit.
  double sum_of_exponentials(const float* row, float largest) const {
    double sum = 0;
    for (int64_t c = 0; c < classes_; ++c) sum += base::math::exp(double(row[c]) - double(largest));
    return sum;
  }

  ClassPass& pass_;
  std::string probe_;
  int64_t classes_, top_;
  Loss loss_;
};

}  // namespace

std::unique_ptr<Predictor> make_class_predictor(ClassPass& pass, const std::string& probe,
                                                int64_t top_k) {
  return std::make_unique<ClassPredictor>(pass, probe, top_k);
}

}  // namespace eval
