// SPDX-License-Identifier: Apache-2.0
// Checks a loss of embeddings against its definition in double, and its gradients against
// differences of this definition. Loss, gradients and states must have the same bits for every cut
// of the examples into passes of equal slices.
#pragma once

#include <algorithm>

#include "embedding_rig.hpp"

namespace embedding_rig {

constexpr int64_t kExamples = 8;

// Tensors of all examples, [examples, views, width] each.
struct Tensors {
  int64_t views = 1, teacher_views = 0;
  std::vector<int64_t> widths{};
  std::vector<Doubles> outputs{}, teacher{};
  std::vector<int32_t> index{}, negatives{}, labels{};
};

struct Subject {
  std::string name;
  std::function<std::unique_ptr<models::EmbeddingLoss>(models::ParameterList&)> make;
  Tensors in;
  // Returns the loss of the step; the states are those that the bench has before it.
  std::function<double(const Tensors&, Bench&)> reference;
  std::vector<size_t> varied = {0};  // outputs with gradients
  int64_t step = 1;
  std::function<void(Bench&)> set = [](Bench&) {};  // sets states before the step
};

struct Outcome {
  Floats losses;
  std::vector<Floats> terms;
  std::vector<Floats> gradients;
  std::vector<Floats> states;
  std::vector<Floats> parameters;  // by parameter: the parts of its gradient, by example
};

inline Outcome run_loss(const Subject& s, Cuts cuts, std::unique_ptr<Bench>* keep = nullptr) {
  models::ParameterList list;
  const auto loss = s.make(list);
  loss->check_batch(kExamples);
  const int64_t n = kExamples / cuts.passes;
  auto bench = std::make_unique<Bench>(list, n, cuts);
  s.set(*bench);
  bench->begin_step();
  Outcome out;
  std::vector<Floats> inputs, teacher;
  for (const Doubles& v : s.in.outputs) inputs.push_back(floats(v));
  for (const Doubles& v : s.in.teacher) teacher.push_back(floats(v));
  for (const Floats& v : inputs) out.gradients.emplace_back(v.size(), NAN);
  out.losses.assign(size_t(kExamples), NAN);
  std::vector<Floats> terms(loss->terms().size(), Floats(size_t(kExamples), NAN));
  std::vector<Floats> parameters(loss->parameters().size(), Floats(size_t(kExamples), NAN));
  models::StepEmbeddings step{.examples = kExamples,
                              .views = s.in.views,
                              .teacher_views = s.in.teacher_views,
                              .widths = s.in.widths,
                              .teacher_widths = s.in.widths,
                              .parts = {}};
  for (int64_t m = 0; m < cuts.passes; ++m) {
    auto& part = step.parts.emplace_back();
    part.first = m * n;
    auto rows = [&](Floats& all) {
      const int64_t each = int64_t(all.size()) / kExamples;
      return view(all).slice(m * n * each, n * each);
    };
    for (size_t o = 0; o < inputs.size(); ++o) {
      part.outputs.push_back(rows(inputs[o]));
      part.gradients.push_back(rows(out.gradients[o]));
    }
    for (Floats& t : teacher) part.teacher.push_back(rows(t));
    part.loss = rows(out.losses);
    for (Floats& t : terms) part.terms.push_back(rows(t));
    for (Floats& p : parameters) part.parameters.push_back(rows(p));
    auto places = [&](const std::vector<int32_t>& all) {
      const int64_t each = int64_t(all.size()) / kExamples;
      return device::view(all.data() + m * n * each, n * each);
    };
    if (!s.in.index.empty()) part.index = places(s.in.index);
    if (!s.in.negatives.empty()) part.negatives = places(s.in.negatives);
    if (!s.in.labels.empty()) part.labels = places(s.in.labels);
  }
  nn::Context ctx = bench->context(s.step);
  loss->run(ctx, step);
  EXPECT_EQ(bench->arena().high().bytes, 0) << "temporaries are dropped";
  for (const shard::Parameter& p : bench->layout().parameters())
    if (p.kind == shard::ParameterKind::state) {
      const View v = bench->state(p.path);
      out.states.emplace_back(v.f32(), v.f32() + v.count);
    }
  out.terms = terms;
  out.parameters = parameters;
  if (keep) *keep = std::move(bench);
  return out;
}

inline void check_loss(Subject s) {
  SCOPED_TRACE(s.name);
  models::ParameterList list;
  s.make(list);
  Bench before(list, kExamples, {});
  s.set(before);
  const Outcome got = run_loss(s, {});
  double loss = 0;
  for (float l : got.losses) loss += double(l) / double(kExamples);
  const double want = s.reference(s.in, before);
  EXPECT_NEAR(loss, want, 2e-6 * std::abs(want));
  for (const size_t o : s.varied) {
    const Doubles gradient(got.gradients[o].begin(), got.gradients[o].end());
    expect_close(gradient, differences(s.in.outputs[o], [&] { return s.reference(s.in, before); }),
                 1e-5, fmt::format("gradient of output {}", o));
  }
  const Outcome sliced = run_loss(s, {1, 4});
  for (const Cuts& cuts : {Cuts{2, 2}, Cuts{4, 1}}) {
    const Outcome again = run_loss(s, cuts);
    EXPECT_EQ(again.losses, sliced.losses) << cuts.passes << " passes";
    EXPECT_EQ(again.gradients, sliced.gradients) << cuts.passes << " passes";
    EXPECT_EQ(again.states, sliced.states) << cuts.passes << " passes";
    EXPECT_EQ(again.parameters, sliced.parameters) << cuts.passes << " passes";
  }
  for (const size_t o : s.varied)
    expect_close({sliced.gradients[o].begin(), sliced.gradients[o].end()},
                 {got.gradients[o].begin(), got.gradients[o].end()}, 1e-5, "slices");
}

inline Doubles row_of(const Doubles& all, int64_t row, int64_t width) {
  return {all.begin() + row * width, all.begin() + (row + 1) * width};
}
inline Doubles unit(Doubles row) {
  double square = 0;
  for (double v : row) square += v * v;
  for (double& v : row) v /= std::sqrt(square);
  return row;
}
inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
// Returns log softmax(row / temperature).
inline Doubles log_softmax(Doubles row, double temperature) {
  double top = -1e300, sum = 0;
  for (double& v : row) top = std::max(top, v /= temperature);
  for (double v : row) sum += std::exp(v - top);
  for (double& v : row) v -= top + std::log(sum);
  return row;
}

}  // namespace embedding_rig
