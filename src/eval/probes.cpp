// SPDX-License-Identifier: Apache-2.0
// Evaluates classifiers on several taps of one trunk (model kind linear_probe): for each of them
// the share of images whose own class is among the k most likely ones, and the mean loss. The
// images pass the trunk once. The result is exact for any size of the set, number of ranks and
// batch size, as that of the evaluator classification.
#include <algorithm>

#include "data/stream/host_batch.hpp"
#include "eval/labelled_features.hpp"
#include "models/probe_classifier.hpp"

namespace eval {
namespace {

struct ProbesOptions : config::Table::Variant {
  std::vector<std::string> names;
  std::vector<int64_t> k = {1, 5};
  void bind(config::Table& t) override;
};

void ProbesOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("probes", names, "names of the model's probes whose numbers are given")
      .required()
      .check([this] { return problem_of_list(names); })
      .on_resume(may);
  t.key("k", k,
        "an image counts for topK if its class is among the K most likely ones; among equally "
        "likely ones the first come first")
      .min(1)
      .check([this] { return problem_of_list(k); })
      .on_resume(may);
}

class Probes : public Evaluator {
 public:
  explicit Probes(const ProbesOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no example to classify", set.name());
  }

  Result run(const Context& context) override {
    auto& pass = dynamic_cast<models::ProbesPass&>(*context.pass);
    const int64_t n = context.dataset.size();
    const auto heads = int64_t(pass.probe_names().size());
    // Losses of the images by head, then ranks.
    std::vector<double> values(size_t(2 * heads * n), 0.0);
    std::vector<std::vector<double>> of_batch(size_t(2 * heads),
                                              std::vector<double>(size_t(context.batch)));
    std::vector<double> loss(size_t(heads * context.batch)), rank(loss);
    std::vector<const std::vector<double>*> columns;
    for (const std::vector<double>& column : of_batch) columns.push_back(&column);
    const Rounds rounds(context, "images", values);
    auto loader = rounds.loader(context, [](int64_t p) { return p; });
    for (int64_t round = 0; round < rounds.count(); ++round) {
      if (context.interrupted()) return {.values = {}, .examples = 0, .interrupted = true};
      const data::BatchPtr batch = loader->next();
      const models::HostBatch host = data::host_batch(*batch, rounds.first(round));
      context.forward([&](const models::Inputs& into) { pass.prepare(host, into); },
                      [&](nn::Context& ctx, const models::Inputs& in) {
                        pass.run(ctx, in, loss.data(), rank.data());
                      });
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(loss.begin() + h * context.batch, context.batch, of_batch[size_t(h)].begin());
        std::copy_n(rank.begin() + h * context.batch, context.batch,
                    of_batch[size_t(heads + h)].begin());
      }
      rounds.store(context, round, columns, values);
    }
    share_values(context.world, values);
    return result(pass.probe_names(), values, n);
  }

 private:
  Result result(const std::vector<std::string>& all, const std::vector<double>& values,
                int64_t n) const {
    Result result{{}, n, "images"};
    for (const std::string& name : options_.names) {
      const auto h = std::find(all.begin(), all.end(), name) - all.begin();
      const auto loss = values.begin() + h * n,
                 rank = values.begin() + (int64_t(all.size()) + h) * n;
      double total = 0;
      for (int64_t i = 0; i < n; ++i) total += loss[i];
      for (int64_t k : options_.k)
        result.values.emplace_back(
            fmt::format("{}_top{}", name, k),
            double(std::count_if(rank, rank + n, [&](double r) { return r < double(k); })) /
                double(n));
      result.values.emplace_back(name + "_loss", total / double(n));
    }
    return result;
  }

  ProbesOptions options_;
};

std::vector<Metric> probes_metrics(const ProbesOptions& options) {
  std::vector<Metric> out;
  for (const std::string& name : options.names) {
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
  auto* classifier = dynamic_cast<const models::ProbeClassifier*>(&model);
  if (!classifier) return nullptr;
  const std::vector<std::string> known = classifier->probe_names();
  for (const std::string& name : options.names)
    if (std::count(known.begin(), known.end(), name) == 0)
      base::fail(base::Exit::config, "probes: the model has no probe \"{}\"; it has {}", name,
                 fmt::join(known, ", "));
  return classifier->make_probes_pass();
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
            return std::make_unique<Probes>(probes_options(options));
          },
          [](const models::Model& model, const Variant& options) {
            return make_probes_pass(model, probes_options(options));
          }};
}

}  // namespace eval
