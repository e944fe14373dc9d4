// Mean over the captions of their summed negative log-likelihood in nats (big_vision's proj.cappa.perplexity, never
// exponentiated), and the same per token: summed NLL / summed tokens. Exact for any size of the set and any number of
// ranks.
#include <cstring>

#include "base/narrow.hpp"
#include "data/host_batch.hpp"
#include "eval/evaluator.hpp"
#include "models/caption_scorer.hpp"

namespace eval {
namespace {

struct PerplexityOptions : config::Table::Variant {
  bool shuffle_images = false;
  void bind(config::Table& t) override;
};

void PerplexityOptions::bind(config::Table& t) {
  t.key("shuffle_images", shuffle_images, "give each caption another image (a fixed rotation): what the image is worth")
      .on_resume(config::OnResume::may_change);
}

class Perplexity : public Evaluator {
 public:
  explicit Perplexity(const PerplexityOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (options_.shuffle_images && set.size() < 2)
      base::fail(base::Exit::data,
                 "shuffle_images: [data.{}] holds {} example, so there is no other image to give it; use a larger set "
                 "or leave shuffle_images out",
                 set.name(), set.size());
  }

  Result run(const Context& context) override {
    int64_t n = context.dataset.size(), b = context.batch, ranks = context.world.size(), rank = context.world.rank();
    int64_t rounds = base::ceil_div(n, b * ranks);
    // Half the set away: neighbours (variants of one picture) must not get each other's images.
    int64_t shift = n / 2;
    auto captions = loader(context, rounds, [=](int64_t p) { return p; });
    std::unique_ptr<data::Loader> images;
    if (options_.shuffle_images)
      images = loader(context, rounds, [=](int64_t p) { return p < n ? (p + shift) % n : p; });

    auto& score = dynamic_cast<models::ScorePass&>(*context.pass);
    std::vector<double> values(size_t(2 * n), 0.0), nll(static_cast<size_t>(b)), weight(static_cast<size_t>(b));
    for (int64_t round = 0; round < rounds; ++round) {
      if (context.interrupted()) return {.values = {}, .examples = 0, .interrupted = true};
      data::BatchPtr batch = captions->next(), other = images ? images->next() : nullptr;
      int64_t first = (round * ranks + rank) * b;
      models::HostBatch host = data::host_batch(*batch, first);
      if (other) host.features["image"] = other->view("image");
      // Every rank runs every round, because weights may have to be gathered.
      context.forward([&](const models::Inputs& into) { score.prepare(host, into); },
                      [&](nn::Context& ctx, const models::Inputs& in) { score.run(ctx, in, nll.data(), weight.data()); });
      for (int64_t i = 0; i < b && first + i < n; ++i)
        values[size_t(first + i)] = nll[size_t(i)], values[size_t(n + first + i)] = weight[size_t(i)];
    }
    share_values(context.world, values);
    double sum = 0, tokens = 0;
    for (int64_t i = 0; i < n; ++i) sum += values[size_t(i)], tokens += values[size_t(n + i)];
    Result result{{}, n, "captions"};
    if (tokens > 0)  // else nothing was predicted, and 0 nats would look like a perfect result
      result.values = {{"perplexity", sum / double(n)}, {"perplexity_per_token", sum / tokens}};
    return result;
  }

 private:
  static std::unique_ptr<data::Loader> loader(const Context& context, int64_t rounds,
                                              std::function<int64_t(int64_t)> place) {
    int64_t b = context.batch, ranks = context.world.size(), rank = context.world.rank();
    auto positions = [=](int64_t round) {
      std::vector<int64_t> out(static_cast<size_t>(b));
      for (int64_t i = 0; i < b; ++i) out[size_t(i)] = place((round * ranks + rank) * b + i);
      return out;
    };
    int64_t n = context.dataset.size();
    return std::make_unique<data::Loader>(context.dataset, data::Order(data::Shuffle::none, n, 0), context.loader,
                                          data::LoaderPlan{positions, 0, rounds, n});
  }

  PerplexityOptions options_;
};

}  // namespace

Registered perplexity_row() {
  return {"perplexity",
          "mean summed negative log-likelihood per caption, in nats",
          {"perplexity", "perplexity_per_token"},
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
