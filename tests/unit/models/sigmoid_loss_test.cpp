// SPDX-License-Identifier: Apache-2.0
// Checks the sigmoid loss of pairs against its definition (siglip.md 2), with the gradients of its
// two parameters.
#include <numeric>

#include "embedding_loss_rig.hpp"
#include "models/losses/step_batch.hpp"

namespace {
namespace sigmoid_loss_test {

using namespace embedding_rig;

constexpr int64_t kWidth = 5;

Tensors pairs() {
  return {.views = 1,
          .widths = {kWidth, kWidth},
          .outputs = {numbers(kExamples * kWidth, "images"), numbers(kExamples * kWidth, "texts")}};
}

// Returns the loss of a step. parameters: t and b.
double sigmoid_loss(const Tensors& in, const Doubles& parameters) {
  double loss = 0;
  for (int64_t i = 0; i < kExamples; ++i)
    for (int64_t j = 0; j < kExamples; ++j) {
      const double cosine =
          dot(unit(row_of(in.outputs[0], i, kWidth)), unit(row_of(in.outputs[1], j, kWidth)));
      const double z = std::exp(parameters[0]) * cosine + parameters[1];
      loss += std::log1p(std::exp(i == j ? -z : z)) / double(kExamples);
    }
  return loss;
}

TEST(SigmoidLoss, EveryImageMeetsEveryText) {
  for (const auto& [temperature, bias] : {std::pair{10.0, -2.0}, {1.0, 0.5}}) {
    const models::SigmoidLossOptions options{temperature, bias};
    Doubles parameters = {std::log(temperature), bias};
    const Tensors in = pairs();
    const Subject s{"sigmoid",
                    [=](auto& list) { return models::make_sigmoid_loss(options, list); },
                    in,
                    [&](const Tensors& t, Bench&) { return sigmoid_loss(t, parameters); },
                    {0, 1}};
    check_loss(s);
    Doubles got;
    for (const Floats& parts : run_loss(s, {}).parameters)
      got.push_back(std::accumulate(parts.begin(), parts.end(), 0.0));
    expect_close(got, differences(parameters, [&] { return sigmoid_loss(in, parameters); }), 1e-5,
                 "gradients of t and b");
  }
}

// A pass adds the parts of its examples to the gradients, in the block of the loss.
TEST(SigmoidLoss, PassesAddTheGradientsOfParameters) {
  models::ParameterList list;
  const auto loss = models::make_sigmoid_loss({}, list);
  for (const int64_t slices : {1, 4}) {
    Bench bench(list, kExamples, {1, slices});
    bench.begin_step();
    Floats t = floats(numbers(kExamples, "t")), b = floats(numbers(kExamples, "b"));
    models::StepEmbeddings::Part part;
    part.parameters = {view(t), view(b)};
    nn::Context ctx = bench.context(1);
    models::add_parameter_gradients(ctx, *loss, part, -1);
    bench.finish_step();
    for (const auto& [name, parts] : {std::pair{"t", &t}, {"b", &b}})
      EXPECT_NEAR(bench.gradient(name).f32()[0], std::accumulate(parts->begin(), parts->end(), 0.0),
                  1e-6)
          << name << ", slices " << slices;
  }
}

}  // namespace sigmoid_loss_test
}  // namespace
