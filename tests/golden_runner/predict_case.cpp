// SPDX-License-Identifier: Apache-2.0
// Results of the published evaluators, with the parameters and images of a model case: scores of
// captions, perplexity, representations, cached decoding.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decode_case.hpp"
#include "models/captions/cappa.hpp"
#include "run_case.hpp"

namespace golden {
namespace {

// The passes of the engine for images and short texts, and of the one for all positions.
constexpr step::PassId kScores{0}, kEmbeddings{1}, kPairs{0};

}  // namespace

// Over this case, in bf16, the worst deviation as a part of a set's largest value is 0.0009 for
// scores and perplexities, 0.0032 for representations, 0.0043 for cached logits and 0.0052 for
// caches. The last two get the tolerance that logits have in model cases. tf32 and fp16 keep 11
// bits instead of 8: an eighth of the tolerance.
double Runner::tolerance(const CaseFile& recorded, const std::string& set) const {
  if (settings_.compute == host::Compute::f32) return recorded.tolerance(set);
  double largest = 0;
  for (float v : recorded.floats(set, recorded.shape(set)))
    largest = std::max(largest, std::abs(double(v)));
  return largest * (set.starts_with("decode/") ? 0.02 : 0.01) *
         (settings_.compute == host::Compute::bf16 ? 1 : 0.125);
}

void Runner::share(std::vector<double>& values) const {
  mesh_.world->all_reduce({values.data(), device::DType::f64, int64_t(values.size())}).wait();
}

void Runner::compare_scores(step::Engine& engine, const CaseFile& recorded, Report& report) const {
  const Shape shape = recorded.shape("score/label_tokens");
  if (shape.size() != 2) recorded.fail("score/label_tokens", "is no table");
  const int64_t classes = shape[0];
  const models::TextList texts{shape[1], recorded.ints("score/label_tokens", shape)};
  auto& pass = engine.pass<models::PairScorePass>(kPairs);
  std::vector<double> scores(size_t(case_.batch * classes), 0.0);
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    const int64_t first = geometry_.first_example(mesh_, m);
    const models::HostBatch batch = host_batch(1, first, geometry_.micro_batch, false);
    engine.forward(kPairs, batch, [&](nn::Context& ctx, const models::Inputs& inputs) {
      pass.run(ctx, inputs, texts, scores.data() + first * classes);
    });
  }
  share(scores);
  const std::vector<float> want = recorded.floats("score/scores", {recorded_, classes});
  const double allowed = tolerance(recorded, "score/scores");
  report.compare("scores", "score/scores", scores.data(), want.data(), recorded_ * classes,
                 allowed);
  const std::vector<int32_t> prediction = recorded.ints("score/prediction", {recorded_}),
                             label = recorded.ints("score/label", {recorded_});
  const std::vector<uint8_t> mask = recorded.bytes("score/mask", {recorded_});
  int64_t hits = 0, counted = 0, open = 0;
  for (int64_t b = 0; b < recorded_; ++b) {
    const double* mine = scores.data() + b * classes;
    const int64_t best = std::max_element(mine, mine + classes) - mine;
    // The scores of two classes may differ by less than their tolerance.
    const float* theirs = want.data() + b * classes;
    const bool near =
        std::abs(double(theirs[best]) - double(theirs[prediction[size_t(b)]])) <= 2 * allowed;
    report.require("predictions", fmt::format("image {}", b), near,
                   fmt::format("{}, not {}", best, prediction[size_t(b)]));
    if (!mask[size_t(b)]) continue;
    ++counted;
    open += best != prediction[size_t(b)];
    hits += best == label[size_t(b)];
  }
  report.compare("prec@1 (sum)", "score/prec@1_sum", double(hits),
                 double(recorded.ints("score/prec@1_sum", {})[0]), double(open));
  report.compare("examples", "score/mask_sum", double(counted),
                 double(recorded.ints("score/mask_sum", {})[0]), 0);
}

void Runner::compare_perplexity(step::Engine& engine, const CaseFile& recorded, bool masks,
                                Report& report) const {
  auto& pass = engine.pass<models::ScorePass>(kScores);
  std::vector<double> nll(size_t(case_.batch), 0.0), weight(nll);
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    const int64_t first = geometry_.first_example(mesh_, m);
    const models::HostBatch batch = host_batch(1, first, geometry_.micro_batch, masks);
    engine.forward(kScores, batch, [&](nn::Context& ctx, const models::Inputs& inputs) {
      pass.run(ctx, inputs, nll.data() + first, weight.data() + first);
    });
  }
  share(nll);
  share(weight);
  const std::vector<uint8_t> mask = recorded.bytes("perplexity/mask", {recorded_});
  for (const char* kind : {"sum", "per_token"}) {
    const std::string group = fmt::format("perplexity/{}{}", kind, masks ? "_label_masks" : "");
    if (!recorded.has(group)) continue;
    std::vector<double> each(nll.begin(), nll.begin() + recorded_);
    double sum = 0, examples = 0;
    for (size_t b = 0; b < each.size(); ++b) {
      if (kind == std::string("per_token")) each[b] = weight[b] > 0 ? nll[b] / weight[b] : 0;
      sum += mask[b] ? each[b] : 0;
      examples += mask[b];
    }
    const std::string set = group + "/per_example";
    report.compare("perplexity", set, each.data(), recorded.floats(set, {recorded_}).data(),
                   recorded_, tolerance(recorded, set));
    for (const auto& [name, value] : {std::pair{"/batch_sum", sum}, {"/value", sum / examples}})
      report.compare("perplexity", group + name, value,
                     double(recorded.floats(group + name, {})[0]),
                     tolerance(recorded, group + name));
  }
}

void Runner::compare_representations(step::Engine& engine, const CaseFile& recorded,
                                     Report& report) const {
  auto& pass = engine.pass<models::EmbedPass>(kEmbeddings);
  const int64_t n = geometry_.micro_batch;
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    const int64_t first = geometry_.first_example(mesh_, m);
    const models::HostBatch batch = host_batch(1, first, n, false);
    std::vector<std::vector<float>> got;
    std::vector<float*> features;
    for (const models::Tap& tap : pass.taps())
      features.push_back(got.emplace_back(size_t(n * tap.count())).data());
    engine.forward(kEmbeddings, batch, [&](nn::Context& ctx, const models::Inputs& inputs) {
      pass.run(ctx, inputs, features);
    });
    for (size_t t = 0; t < got.size(); ++t) {
      const models::Tap& tap = pass.taps()[t];
      const std::string set = (tap.name == "encoded" ? "decode/" : "enc_rep/") + tap.name;
      if (!recorded.has(set)) continue;
      // Cached decoding is recorded for the first images only.
      Shape shape = recorded.shape(set);
      const int64_t count = std::clamp<int64_t>((shape.empty() ? 0 : shape[0]) - first, 0, n);
      if (!shape.empty()) {
        shape = {shape[0]};
        shape.insert(shape.end(), tap.shape.begin(), tap.shape.end());
      }
      const std::vector<float> want = recorded.floats(set, shape);
      if (count > 0)
        report.compare("representations", set, got[t].data(), want.data() + first * tap.count(),
                       count * tap.count(), tolerance(recorded, set));
    }
  }
}

void Runner::run_predictions(const CaseFile& recorded, Report& report) const {
  if (recorded.has("perplexity") && batch_.labels.empty())
    file_.fail("batch/labels", "no such data set, and there are recorded perplexities");
  auto cappa = [](const models::Model& model) -> const models::Cappa& {
    return dynamic_cast<const models::Cappa&>(model);
  };
  step::EngineOptions options = engine_options();
  options.passes = {
      [cappa](const models::Model& model) { return cappa(model).make_score_pass(); },
      [cappa](const models::Model& model) { return cappa(model).make_embed_pass(kTaps); }};
  {
    step::Engine engine(options, mesh_, settings_.device);
    load_parameters(engine);
    for (bool masks : {false, true})
      if (recorded.has("perplexity")) compare_perplexity(engine, recorded, masks, report);
    compare_representations(engine, recorded, report);
  }
  // Texts of classes and cached decoding may use all positions, and batch/labels may be shorter.
  auto whole = std::make_shared<models::CappaOptions>(*case_.model);
  whole->text_len = 0;
  options.model = models::make_model({"cappa", whole}, memory());
  options.passes = {
      [cappa](const models::Model& model) { return cappa(model).make_pair_score_pass(); }};
  if (recorded.has("decode")) options.passes.push_back(make_decode_pass(recorded));
  step::Engine engine(options, mesh_, settings_.device);
  load_parameters(engine);
  if (recorded.has("score")) compare_scores(engine, recorded, report);
  if (recorded.has("decode"))
    compare_decoding(
        recorded, batch_.image, engine,
        [&](const std::string& set) { return tolerance(recorded, set); }, report);
}

}  // namespace golden
