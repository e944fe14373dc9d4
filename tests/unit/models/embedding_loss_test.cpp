// SPDX-License-Identifier: Apache-2.0
// Checks the losses of embeddings against their definitions in ssl.md 3 (embedding_loss_rig.hpp).
#include "embedding_loss_rig.hpp"
#include "models/heads/head_kinds.hpp"

namespace {
namespace embedding_loss_test {

using namespace embedding_rig;

TEST(EmbeddingLoss, Simclr) {
  for (const auto& shape : {std::pair<int64_t, int64_t>{2, 0}, {3, 0}, {2, 4}, {3, 2}}) {
    const int64_t views = shape.first, group = shape.second;
    Tensors in{
        .views = views, .widths = {5}, .outputs = {numbers(kExamples * views * 5, "simclr")}};
    const models::SimclrLossOptions options{.temperature = 0.25, .negative_group = group};
    check_loss({fmt::format("{} views, groups of {}", views, group),
                [=](auto&) { return models::make_simclr_loss(options); }, in,
                [=](const Tensors& t, Bench&) {
                  const int64_t n = kExamples * views;
                  std::vector<Doubles> u;
                  for (int64_t r = 0; r < n; ++r) u.push_back(unit(row_of(t.outputs[0], r, 5)));
                  auto s = [&](int64_t a, int64_t b) {
                    return std::exp(dot(u[size_t(a)], u[size_t(b)]) / 0.25);
                  };
                  double loss = 0;
                  for (int64_t a = 0; a < n; ++a) {
                    double negatives = 0;
                    for (int64_t b = 0; b < n; ++b)
                      if (a / views != b / views &&
                          (group == 0 || a / views / group == b / views / group))
                        negatives += s(a, b);
                    for (int64_t p = a / views * views; p < (a / views + 1) * views; ++p)
                      if (p != a) loss -= std::log(s(a, p) / (s(a, p) + negatives));
                  }
                  return loss / double(n * (views - 1));
                }});
  }
}

TEST(EmbeddingLoss, BarlowTwins) {
  for (const double divisor : {1.0, 4.0}) {
    Tensors in{.views = 2, .widths = {5}, .outputs = {numbers(kExamples * 2 * 5, "barlow", 1, 1)}};
    const models::BarlowLossOptions options{
        .lambda = 0.25, .scale = 0.5, .gradient_divisor = divisor};
    auto reference = [](const Tensors& t, Bench&) {
      const int64_t n = 2 * kExamples;
      Doubles h = t.outputs[0];
      for (int64_t c = 0; c < 5; ++c) {
        double mean = 0, variance = 0;
        for (int64_t r = 0; r < n; ++r) mean += h[size_t(r * 5 + c)] / double(n);
        for (int64_t r = 0; r < n; ++r)
          variance += std::pow(h[size_t(r * 5 + c)] - mean, 2) / double(n);
        for (int64_t r = 0; r < n; ++r)
          h[size_t(r * 5 + c)] = (h[size_t(r * 5 + c)] - mean) / std::sqrt(variance + 1e-5);
      }
      double loss = 0;
      for (int64_t i = 0; i < 5; ++i)
        for (int64_t j = 0; j < 5; ++j) {
          double c = 0;
          for (int64_t b = 0; b < kExamples; ++b)
            c += h[size_t(2 * b * 5 + i)] * h[size_t((2 * b + 1) * 5 + j)] / double(kExamples);
          loss += 0.5 * (i == j ? (c - 1) * (c - 1) : 0.25 * c * c);
        }
      return loss;
    };
    Subject s{"barlow twins", [=](auto&) { return models::make_barlow_loss(options); }, in,
              reference};
    if (divisor == 1) {
      check_loss(s);
      continue;
    }
    const Outcome divided = run_loss(s, {});
    s.make = [](auto&) {
      return models::make_barlow_loss({.lambda = 0.25, .scale = 0.5, .gradient_divisor = 1});
    };
    const Outcome whole = run_loss(s, {});
    EXPECT_EQ(divided.losses, whole.losses);
    for (size_t i = 0; i < whole.gradients[0].size(); ++i)
      EXPECT_NEAR(divided.gradients[0][i] * 4, whole.gradients[0][i], 1e-7);
  }
}

TEST(EmbeddingLoss, Moco) {
  constexpr int64_t kWidth = 5, kQueue = 16;
  Tensors in{.views = 1,
             .teacher_views = 1,
             .widths = {kWidth},
             .outputs = {numbers(kExamples * kWidth, "query")},
             .teacher = {numbers(kExamples * kWidth, "key")}};
  const models::MocoLossOptions options{.queue_size = kQueue, .temperature = 0.25};
  const Subject s{"moco", [=](auto& list) { return models::make_moco_loss(options, kWidth, list); },
                  in,
                  [](const Tensors& t, Bench& bench) {
                    const Doubles queue = doubles(bench.weight("loss/queue"));
                    double loss = 0;
                    for (int64_t b = 0; b < kExamples; ++b) {
                      const Doubles q = unit(row_of(t.outputs[0], b, kWidth));
                      Doubles logits = {dot(q, unit(row_of(t.teacher[0], b, kWidth)))};
                      for (int64_t k = 0; k < kQueue; ++k)
                        logits.push_back(dot(q, row_of(queue, k, kWidth)));
                      loss -= log_softmax(logits, 0.25)[0] / double(kExamples);
                    }
                    return loss;
                  }};
  check_loss(s);
  const Outcome got = run_loss(s, {});
  EXPECT_EQ(got.states[1], Floats{8}) << "the place moves by a batch";
  for (int64_t b = 0; b < kExamples; ++b) {
    const Doubles key = unit(row_of(in.teacher[0], b, kWidth));
    for (int64_t i = 0; i < kWidth; ++i)
      EXPECT_NEAR(double(got.states[0][size_t(b * kWidth + i)]), key[size_t(i)], 1e-6);
  }
  models::ParameterList list;
  const auto loss = models::make_moco_loss(options, kWidth, list);
  try {
    loss->check_batch(6);
    ADD_FAILURE() << "a queue that is no multiple of the batch";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    EXPECT_NE(std::string(e.what()).find("model.loss.queue_size = 16"), std::string::npos);
  }
}

TEST(EmbeddingLoss, Dino) {
  constexpr int64_t kWidth = 7, kViews = 4;
  Tensors in{.views = kViews,
             .teacher_views = 2,
             .widths = {kWidth},
             .outputs = {numbers(kExamples * kViews * kWidth, "student", 0.5)},
             .teacher = {numbers(kExamples * 2 * kWidth, "teacher", 0.2)}};
  models::DinoLossOptions options{.student_temperature = 0.5,
                                  .teacher_temperature_start = 0.25,
                                  .teacher_temperature = 0.5,
                                  .teacher_temperature_warmup_steps = 3};
  options.teacher_views = {0, 2};
  for (auto [step, warmth] : {std::pair<int64_t, double>{1, 0.25}, {2, 0.375}, {3, 0.5}, {9, 0.5}})
    EXPECT_EQ(options.teacher_temperature_at(step), warmth);
  Subject s{"dino", [=](auto& list) { return models::make_dino_loss(options, kWidth, list); }, in,
            [](const Tensors& t, Bench&) {
              double loss = 0;
              for (int64_t b = 0; b < kExamples; ++b)
                for (const int64_t a : {0, 1})
                  for (int64_t v = 0; v < kViews; ++v) {
                    if (v == 2 * a) continue;
                    const Doubles q = log_softmax(row_of(t.teacher[0], b * 2 + a, kWidth), 0.375);
                    const Doubles p =
                        log_softmax(row_of(t.outputs[0], b * kViews + v, kWidth), 0.5);
                    for (int64_t k = 0; k < kWidth; ++k)
                      loss -= std::exp(q[size_t(k)]) * p[size_t(k)];
                  }
              return loss / double(kExamples * (2 * kViews - 2));
            }};
  s.step = 2;
  check_loss(s);
  const Outcome got = run_loss(s, {});
  for (int64_t k = 0; k < kWidth; ++k) {
    double mean = 0;
    for (int64_t r = 0; r < 2 * kExamples; ++r)
      mean += in.teacher[0][size_t(r * kWidth + k)] / double(2 * kExamples);
    EXPECT_NEAR(double(got.states[0][size_t(k)]), 0.1 * mean, 1e-6);
  }
}

// Sinkhorn of rows of samples, as ssl.md 3.5 writes it.
std::vector<Doubles> assigned(const std::vector<Doubles>& scores, double epsilon, int rounds) {
  std::vector<Doubles> q = scores;
  const size_t columns = q[0].size();
  for (Doubles& row : q)
    for (double& v : row) v = std::exp(v / epsilon);
  for (int round = 0; round < rounds; ++round) {
    for (size_t k = 0; k < columns; ++k) {
      double sum = 0;
      for (const Doubles& row : q) sum += row[k];
      for (Doubles& row : q) row[k] /= sum * double(columns);
    }
    for (Doubles& row : q) {
      double sum = 0;
      for (double v : row) sum += v;
      for (double& v : row) v /= sum;
    }
  }
  return q;
}

constexpr int64_t kSwavWidth = 4, kSwavViews = 3;

Subject swav(const models::SwavLossOptions& options, bool from_teacher, int64_t step) {
  const std::vector<int64_t> prototypes = {5, 3};
  Tensors in{
      .views = kSwavViews, .teacher_views = from_teacher ? 2 : 0, .widths = {kSwavWidth, 5, 3}};
  for (const int64_t width : in.widths) {
    in.outputs.push_back(numbers(kExamples * kSwavViews * width, "swav", 0.4));
    if (from_teacher) in.teacher.push_back(numbers(kExamples * 2 * width, "teacher", 0.4));
  }
  const Tensors fixed = in;  // targets have no gradient
  auto reference = [=](const Tensors& t, Bench& bench) {
    double loss = 0;
    for (size_t h = 0; h < prototypes.size(); ++h)
      for (size_t i = 0; i < 2; ++i) {
        const int64_t k = prototypes[h], view = options.assign_views[i];
        std::vector<Doubles> samples;
        for (int64_t b = 0; b < kExamples; ++b)
          samples.push_back(from_teacher ? row_of(fixed.teacher[1 + h], b * 2 + int64_t(i), k)
                                         : row_of(fixed.outputs[1 + h], b * kSwavViews + view, k));
        if (options.queue_length > 0 && step > options.queue_start_steps) {
          const Doubles queue = doubles(bench.weight("loss/local_emb_queue")),
                        w = doubles(bench.weight(fmt::format("head/prototypes{}.weight", h)));
          const bool first = step == options.queue_start_steps + 1 && options.random_first_scores;
          for (int64_t r = 0; r < options.queue_length; ++r) {
            const int64_t row = int64_t(i) * options.queue_length + r;
            Doubles s;
            for (int64_t c = 0; c < k; ++c)
              s.push_back(dot(row_of(queue, row, kSwavWidth), row_of(w, c, kSwavWidth)));
            if (first)
              s = row_of(doubles(bench.weight(fmt::format("loss/local_queue{}", h))), row, k);
            samples.push_back(s);
          }
        }
        auto q = assigned(samples, options.epsilon, int(options.sinkhorn_iterations));
        for (Doubles& row : q)
          if (step <= options.hard_assignment_steps) {
            const size_t best = size_t(std::max_element(row.begin(), row.end()) - row.begin());
            std::fill(row.begin(), row.end(), 0.0);
            row[best] = 1;
          }
        for (int64_t b = 0; b < kExamples; ++b)
          for (int64_t v = 0; v < kSwavViews; ++v)
            if (v != view)
              loss -= dot(q[size_t(b)], log_softmax(row_of(t.outputs[1 + h], b * kSwavViews + v, k),
                                                    options.temperature));
      }
    return loss / double(kExamples * 2 * (kSwavViews - 1) * 2);
  };
  Subject s{fmt::format("swav, step {}", step),
            [=](models::ParameterList& list) {
              models::HeadOptions head;
              auto o = std::make_shared<models::SwavHeadOptions>();
              o->layers = {kSwavWidth};
              o->prototypes = prototypes;
              o->batch_norm.on = false;
              head.kind = "swav";
              head.options = o;
              const auto made = models::make_head(head, "head", 2, list);
              return models::make_swav_loss(options, from_teacher, *made, list);
            },
            in, reference};
  s.varied = {1, 2};
  s.step = step;
  return s;
}

models::SwavLossOptions swav_options() {
  models::SwavLossOptions o;
  o.temperature = 0.5;
  o.epsilon = 0.25;
  o.assign_views = {0, 2};
  return o;
}

TEST(EmbeddingLoss, Swav) {
  models::SwavLossOptions o = swav_options();
  check_loss(swav(o, false, 1));
  check_loss(swav(o, true, 1));
  o.double_precision = true;
  o.sinkhorn_iterations = 5;
  check_loss(swav(o, false, 1));
  o.hard_assignment_steps = 2;
  check_loss(swav(o, false, 2));
  check_loss(swav(o, false, 3));
}

TEST(EmbeddingLoss, SwavQueue) {
  models::SwavLossOptions o = swav_options();
  o.queue_length = 16;
  o.queue_start_steps = 1;
  check_loss(swav(o, false, 1));
  check_loss(swav(o, false, 2));  // random scores of the queue
  check_loss(swav(o, false, 3));
  o.random_first_scores = false;
  const Subject s = swav(o, false, 2);
  check_loss(s);
  std::unique_ptr<Bench> bench;
  const Outcome got = run_loss(s, {}, &bench);
  const Doubles before = doubles(bench->weight("loss/local_emb_queue"));
  for (int64_t i : {0, 1})
    for (int64_t r = 0; r < 16; ++r)
      for (int64_t c = 0; c < kSwavWidth; ++c) {
        const double want = r < kExamples
                                ? s.in.outputs[0][size_t((r * kSwavViews + 2 * i) * kSwavWidth + c)]
                                : before[size_t((i * 16 + r - kExamples) * kSwavWidth + c)];
        ASSERT_EQ(double(got.states[0][size_t((i * 16 + r) * kSwavWidth + c)]), want);
      }
}

TEST(EmbeddingLoss, NceWithMemoryBank) {
  constexpr int64_t kWidth = 5, kSamples = 20, kNegatives = 6;
  for (const auto kind : {models::BankLoss::nce, models::BankLoss::cross_entropy})
    for (const int64_t outputs : {1, 2}) {
      Tensors in{.views = 1, .widths = std::vector<int64_t>(size_t(outputs), kWidth)};
      for (int64_t o = 0; o < outputs; ++o)
        in.outputs.push_back(numbers(kExamples * kWidth, fmt::format("nce{}", o)));
      for (int64_t b = 0; b < kExamples; ++b) in.index.push_back(int32_t((7 * b + 3) % kSamples));
      for (int64_t i = 0; i < kExamples * outputs * kNegatives; ++i)
        in.negatives.push_back(int32_t(5 * i % kSamples));
      models::NceLossOptions options{.samples = kSamples,
                                     .negatives = kNegatives,
                                     .temperature = 0.5,
                                     .norm_constant = 9,
                                     .loss = kind};
      options.loss_weights.assign(size_t(outputs), 0.5);
      options.update_output = outputs - 1;
      Subject s{
          fmt::format("{} outputs", outputs),
          [=](auto& list) { return models::make_nce_loss(options, kWidth, list); }, in,
          [=](const Tensors& t, Bench& bench) {
            const Doubles memory = doubles(bench.weight("loss/memory"));
            double loss = 0;
            for (int64_t o = 0; o < outputs; ++o)
              for (int64_t b = 0; b < kExamples; ++b) {
                const Doubles u = unit(row_of(t.outputs[size_t(o)], b, kWidth));
                Doubles logits = {dot(u, row_of(memory, t.index[size_t(b)], kWidth)) / 0.5};
                for (int64_t k = 0; k < kNegatives; ++k)
                  logits.push_back(
                      dot(u, row_of(memory, t.negatives[size_t((b * outputs + o) * kNegatives + k)],
                                    kWidth)) /
                      0.5);
                double part = 0;
                if (kind == models::BankLoss::cross_entropy) {
                  part = -log_softmax(logits, 1)[0];
                } else {
                  const double noise = double(kNegatives) / kSamples;
                  for (size_t k = 0; k < logits.size(); ++k) {
                    const double x = std::exp(logits[k]) / 9;
                    part -= std::log((k == 0 ? x : noise) / (x + noise + 1.1920929e-7));
                  }
                }
                loss += 0.5 * part / double(kExamples);
              }
            return loss;
          }};
      s.varied.clear();
      for (int64_t o = 0; o < outputs; ++o) s.varied.push_back(size_t(o));
      check_loss(s);
    }
}

}  // namespace embedding_loss_test
}  // namespace
