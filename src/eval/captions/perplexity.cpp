// SPDX-License-Identifier: Apache-2.0
// Evaluates the mean over captions of their summed negative log-likelihood in nats, which is
// big_vision's proj.cappa.perplexity and is never exponentiated. Also evaluates summed NLL over
// summed tokens. Both are exact for any size of the set and any number of ranks.
#include "data/stream/host_batch.hpp"
#include "eval/evaluator.hpp"
#include "eval/shuffled_images.hpp"
#include "models/caption_scorer.hpp"

namespace eval {
namespace {

struct PerplexityOptions : config::Table::Variant {
  ShuffledImages shuffled;
  bool normalize_by_seqlen = false;
  void bind(config::Table& t) override;
};

void PerplexityOptions::bind(config::Table& t) {
  shuffled.bind(t);
  t.key("normalize_by_seqlen", normalize_by_seqlen,
        "perplexity is the mean over captions of each caption's mean over its tokens, not of its "
        "sum; a caption without tokens counts as 0")
      .on_resume(config::OnResume::may_change);
}

class Perplexity : public Evaluator {
 public:
  explicit Perplexity(const PerplexityOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override { options_.shuffled.check(set); }

  Result run(const Context& context) override {
    const int64_t n = context.dataset.size();
    std::vector<double> values(size_t(2 * n), 0.0), nll(static_cast<size_t>(context.batch)),
        weight(nll.size());
    const Rounds rounds(context, "captions", values);
    auto captions = rounds.loader(context, [](int64_t p) { return p; });
    std::unique_ptr<data::Loader> images;
    if (options_.shuffled.on) images = rounds.loader(context, options_.shuffled.place(n));

    auto& score = context.pass_as<models::ScorePass>();
    for (int64_t round = 0; round < rounds.count(); ++round) {
      if (context.interrupted()) return {.values = {}, .examples = 0, .interrupted = true};
      data::BatchPtr batch = captions->next(), other = images ? images->next() : nullptr;
      models::HostBatch host = data::host_batch(*batch, rounds.first(round));
      if (other) host.features["image"] = other->view("image");
      context.forward(host, [&](nn::Context& ctx, const models::Inputs& in) {
        score.run(ctx, in, nll.data(), weight.data());
      });
      rounds.store(context, round, {&nll, &weight}, values);
    }
    share_values(context.world, values);
    double sum = 0, tokens = 0, means = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double nll_of_caption = values[size_t(i)], weights = values[size_t(n + i)];
      sum += nll_of_caption;
      tokens += weights;
      if (weights > 0) means += nll_of_caption / weights;
    }
    Result result{{}, n, "captions"};
    if (tokens > 0)  // without tokens nothing was predicted, and 0 nats would look perfect
      result.values = {{"perplexity", (options_.normalize_by_seqlen ? means : sum) / double(n)},
                       {"perplexity_per_token", sum / tokens}};
    return result;
  }

 private:
  PerplexityOptions options_;
};

}  // namespace

Registered perplexity_row() {
  return {
      "perplexity",
      "mean summed negative log-likelihood per caption, in nats",
      [](const config::Table::Variant& options) {
        const bool means = dynamic_cast<const PerplexityOptions&>(options).normalize_by_seqlen;
        return std::vector<Metric>{
            means ? Metric{"perplexity", "nats/token",
                           "mean over captions of the negative log-likelihood per token of each"}
                  : Metric{"perplexity", "nats/caption",
                           "mean over captions of the summed negative log-likelihood (the "
                           "published code's name for it)"},
            {"perplexity_per_token", "nats/token",
             "summed negative log-likelihood over summed tokens"}};
      },
      "score captions",
      [](const models::Model& model) -> std::unique_ptr<models::ForwardPass> {
        auto* scorer = dynamic_cast<const models::CaptionScorer*>(&model);
        return scorer ? scorer->make_score_pass() : nullptr;
      },
      [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<PerplexityOptions>()); },
      [](const config::Table::Variant& options) -> std::unique_ptr<Evaluator> {
        return std::make_unique<Perplexity>(dynamic_cast<const PerplexityOptions&>(options));
      }};
}

}  // namespace eval
