// SPDX-License-Identifier: Apache-2.0
// The evaluator of several classifiers on taps of one trunk (model kind linear_probe): keys,
// numbers and pass. The images pass through the trunk once.
#include <algorithm>

#include "eval/classes/ranking.hpp"
#include "eval/features/labelled_features.hpp"

namespace eval {
namespace {

struct ProbesOptions : config::Table::Variant, RankingKeys {
  void bind(config::Table& t) override;
};

void ProbesOptions::bind(config::Table& t) {
  t.key("probes", heads, "names of the model's probes whose numbers are given")
      .required()
      .check([this] { return problem_of_list(heads); })
      .on_resume(config::OnResume::may_change);
  bind_k(t, k);
}

std::vector<Metric> probes_metrics(const ProbesOptions& options) {
  std::vector<Metric> out;
  for (const std::string& name : options.heads) {
    for (int64_t k : options.k)
      out.push_back({fmt::format("{}_top{}", name, k), "1",
                     fmt::format("share of the images whose class is among the {} most likely "
                                 "ones of probe {}",
                                 k, name)});
    out.push_back({name + "_loss", "nats", "mean cross-entropy of probe " + name});
  }
  return out;
}

std::unique_ptr<models::ForwardPass> make_probes_pass(const models::Model& model,
                                                      const ProbesOptions& options) {
  auto* ranker = dynamic_cast<const models::ClassRanker*>(&model);
  const std::vector<std::string> known = ranker ? ranker->head_names() : std::vector<std::string>();
  if (known.empty()) return nullptr;
  for (const std::string& name : options.heads)
    if (std::ranges::count(known, name) == 0)
      base::fail(base::Exit::config, "probes: the model has no probe \"{}\"; it has {}", name,
                 fmt::join(known, ", "));
  return ranker->make_class_pass({.heads = options.heads});
}

const ProbesOptions& probes_options(const config::Table::Variant& options) {
  return dynamic_cast<const ProbesOptions&>(options);
}

}  // namespace

Registered probes_row() {
  using Variant = config::Table::Variant;
  return {"probes",
          "for each probe of a frozen trunk, the share of images whose class is among the k most "
          "likely ones, and mean loss",
          [](const Variant& options) { return probes_metrics(probes_options(options)); },
          "rank classes with several heads",
          nullptr,
          [] { return std::shared_ptr<Variant>(std::make_shared<ProbesOptions>()); },
          [](const Variant& options) -> std::unique_ptr<Evaluator> {
            return make_ranking(probes_options(options));
          },
          [](const models::Model& model, const Variant& options) {
            return make_probes_pass(model, probes_options(options));
          }};
}

}  // namespace eval
