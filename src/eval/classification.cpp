// SPDX-License-Identifier: Apache-2.0
// Evaluates the share of images whose own class is among the k most likely ones, and the mean loss
// without label smoothing. The result is exact for any size of the set, number of ranks and batch
// size. An example's numbers depend only on the example and are added in the order of positions.
#include <algorithm>

#include "data/stream/host_batch.hpp"
#include "eval/evaluator.hpp"
#include "models/classify_pass.hpp"

namespace eval {
namespace {

struct ClassificationOptions : config::Table::Variant {
  std::vector<int64_t> k = {1, 5};
  void bind(config::Table& t) override;
};

void ClassificationOptions::bind(config::Table& t) {
  t.key("k", k,
        "an image counts for topK if its class is among the K most likely ones; among equally "
        "likely ones the first come first")
      .min(1)
      .check([this] {
        if (k.empty()) return std::string("names no number");
        for (size_t i = 0; i < k.size(); ++i)
          if (std::count(k.begin(), k.end(), k[i]) > 1)
            return fmt::format("{} is there twice", k[i]);
        return std::string();
      })
      .on_resume(config::OnResume::may_change);
}

class Classification : public Evaluator {
 public:
  explicit Classification(const ClassificationOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no example to classify", set.name());
  }

  Result run(const Context& context) override {
    const Rounds rounds(context);
    const int64_t n = context.dataset.size();
    auto loader = rounds.loader(context, [](int64_t p) { return p; });
    auto& pass = dynamic_cast<models::ClassifyPass&>(*context.pass);
    std::vector<double> values(size_t(2 * n), 0.0), loss(static_cast<size_t>(context.batch)),
        rank(loss.size());
    for (int64_t round = 0; round < rounds.count(); ++round) {
      if (context.interrupted()) return {.values = {}, .examples = 0, .interrupted = true};
      data::BatchPtr batch = loader->next();
      const models::HostBatch host = data::host_batch(*batch, rounds.first(round));
      context.forward([&](const models::Inputs& into) { pass.prepare(host, into); },
                      [&](nn::Context& ctx, const models::Inputs& in) {
                        pass.run(ctx, in, loss.data(), rank.data());
                      });
      rounds.store(round, loss, values.data());
      rounds.store(round, rank, values.data() + n);
    }
    share_values(context.world, values);
    Result result{{}, n, "images"};
    for (int64_t k : options_.k) {
      const auto ranks = values.begin() + n;
      const auto hits = std::count_if(ranks, ranks + n, [&](double r) { return r < double(k); });
      result.values.emplace_back(fmt::format("top{}", k), double(hits) / double(n));
    }
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += values[size_t(i)];
    result.values.emplace_back("loss", sum / double(n));
    return result;
  }

 private:
  ClassificationOptions options_;
};

}  // namespace

Registered classification_row() {
  return {
      "classification",
      "share of the images whose class is among the k most likely ones, and mean loss",
      [](const config::Table::Variant& options) {
        std::vector<Metric> out;
        for (int64_t k : dynamic_cast<const ClassificationOptions&>(options).k)
          out.push_back(
              {fmt::format("top{}", k), "1",
               fmt::format("share of the images whose class is among the {} most likely", k)});
        out.push_back(
            {"loss", "nats", "mean over images of the cross-entropy, without label smoothing"});
        return out;
      },
      "rank classes",
      [](const models::Model& model) -> std::unique_ptr<models::ForwardPass> {
        auto* classifier = dynamic_cast<const models::Classifier*>(&model);
        return classifier ? classifier->make_classify_pass() : nullptr;
      },
      [] {
        return std::shared_ptr<config::Table::Variant>(std::make_shared<ClassificationOptions>());
      },
      [](const config::Table::Variant& options) -> std::unique_ptr<Evaluator> {
        return std::make_unique<Classification>(
            dynamic_cast<const ClassificationOptions&>(options));
      }};
}

}  // namespace eval
