// SPDX-License-Identifier: Apache-2.0
#include "eval/evaluator.hpp"

namespace eval {

// One row for each evaluator: src/eval/FAMILY/NAME.cpp ends in NAME_row().
#define EVALUATORS(ROW) \
  ROW(captioning)       \
  ROW(classification)   \
  ROW(fewshot)          \
  ROW(knn)              \
  ROW(lidar)            \
  ROW(low_shot)         \
  ROW(perplexity) ROW(probes) ROW(rankme) ROW(retrieval) ROW(scoring) ROW(svm) ROW(svm_low_shot)

REGISTRY(registry, Registered, "evaluator", EVALUATORS)

void EvalOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.kind("kind", kind, options, registry(), "which evaluator");
  t.key("data", data, "name of a [data.NAME] table").required().on_resume(may);
  t.duration("every", every, "how often; 0 = only at start or end").on_resume(may);
  t.key("at_start", at_start, "before the first step of a new run, too").on_resume(may);
  t.key("at_end", at_end, "after the last step, too").on_resume(may);
  t.key("when", when,
        "MEASURE:below:VALUE or MEASURE:above:VALUE, for example \"loss:below:2.5\": the "
        "evaluations of `every` run only at steps whose training measure satisfies this; those at "
        "start and end always run")
      .on_resume(may);
  if (!when.empty() && !(every.set() && every.value > 0))
    t.error("when", "applies only to the evaluations of `every`, which is not set");
  t.choice(
       "weights", weights, kWeightsNames,
       "raw: the weights as trained; ema: their average ([ema]), whose rows are called NAME_ema in "
       "logs, metrics, plots, checkpoint.best and early_stop; both: one after the other")
      .on_resume(may);
  t.choice("compute", compute, kComputeNames,
           "type of products and of the activations between them: run: that of precision.compute; "
           "f32 or bf16: this type, with the values of a run whose precision.compute it is")
      .on_resume(may);
}

std::map<std::string, EvalOptions> evaluations(const std::map<std::string, EvalOptions>& tables) {
  std::map<std::string, EvalOptions> out;
  for (const auto& [name, options] : tables)
    for (Weights on : {Weights::raw, Weights::ema}) {
      if (options.weights != on && options.weights != Weights::both) continue;
      EvalOptions& one = out[on == Weights::ema ? name + "_ema" : name] = options;
      one.weights = on;
    }
  return out;
}

const Registered& row_of(const EvalOptions& options) { return registry().at(options.kind); }

std::unique_ptr<Evaluator> make_evaluator(const EvalOptions& options) {
  return registry().at(options.kind).make(*options.options);
}

std::unique_ptr<models::ForwardPass> make_pass(const EvalOptions& options,
                                               const models::Model& model) {
  const Registered& row = row_of(options);
  return row.make_pass ? row.make_pass(model) : row.make_sized_pass(model, *options.options);
}

std::map<std::string, std::string> data_sets_of(const EvalOptions& options) {
  std::map<std::string, std::string> sets = {{"data", options.data}};
  if (auto further = row_of(options).further_sets) sets.merge(further(*options.options));
  return sets;
}

std::optional<Features> features_of(const EvalOptions& options, const std::string& key,
                                    const models::Model& model) {
  auto features = row_of(options).features;
  return features ? features(model, *options.options, key) : std::nullopt;
}

Features labelled_images(const models::Model& model, const std::string& key) {
  Features features = {{"image", model.single_image()}};
  features["label"] = {.type = device::DType::i32, .shape = {}, .key = key};
  return features;
}

std::vector<Metric> metrics_of(const EvalOptions& options) {
  return row_of(options).metrics(*options.options);
}

}  // namespace eval
