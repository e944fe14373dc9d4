// SPDX-License-Identifier: Apache-2.0
#include "eval/captions/pair_scores.hpp"

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "data/stream/host_batch.hpp"

namespace eval {
namespace {

constexpr const char* kIds = "labels";  // field of token ids, for caption models
// Numbers that ranks exchange at once.
constexpr int64_t kExchanged = int64_t{1} << 22;

// Returns the mean over all images of the scores of each text. Scores are added in the order of
// positions on every rank, so the bits do not depend on the number of ranks.
std::vector<double> mean_over_images(const Context& context, PairScores& scores) {
  const int64_t n = context.dataset.size(), texts = scores.texts,
                most = std::clamp<int64_t>(kExchanged / n, 1, std::max<int64_t>(texts, 1));
  std::vector<double> means, all;
  for (int64_t first = 0; first < texts; first += most) {
    const int64_t count = std::min(most, texts - first);
    all.assign(size_t(count * n), 0.0);
    for (size_t i = 0; i < scores.positions.size(); ++i)
      std::copy_n(scores.of(i) + first, count, all.begin() + scores.positions[i] * count);
    share_values(context.world, all);
    for (int64_t t = 0; t < count; ++t) {
      double sum = 0;
      for (int64_t p = 0; p < n; ++p) sum += all[size_t(p * count + t)];
      means.push_back(sum / double(n));
    }
  }
  return means;
}

}  // namespace

void PairOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("normalize_by_length", normalize_by_length,
        "divide the log-likelihood of a text by its number of tokens (not as published); cosines "
        "have none")
      .on_resume(may);
  t.key("subtract_prior", subtract_prior,
        "subtract from each text's score its mean over the images of the set, which rates what is "
        "special to an image (not as published)")
      .on_resume(may);
}

void bind_k(config::Table& t, std::vector<int64_t>& k, std::string_view doc) {
  t.key("k", k, doc)
      .min(1)
      .check([&k] {
        if (k.empty()) return std::string("names no number");
        for (int64_t one : k)
          if (std::ranges::count(k, one) > 1) return fmt::format("{} is listed twice", one);
        return std::string();
      })
      .on_resume(config::OnResume::may_change);
}

models::TextList tokenized(const data::Dataset& set, const std::vector<std::string>& texts) {
  const auto field = set.spec().find(kIds);
  models::TextList list;
  std::vector<int32_t> ids;
  int32_t padding = 0;
  if (field == set.spec().end() || field->second.shape.size() != 1 ||
      !set.tokenize(kIds, "", ids, padding))
    base::fail(base::Exit::data,
               "[data.{}]: no op tokenize makes the field \"{}\", so texts cannot become ids; add "
               "tokenize(...) to its preprocess",
               set.name(), kIds);
  list.length = field->second.shape[0];
  for (const std::string& text : texts) {
    set.tokenize(kIds, text, ids, padding);
    if (int64_t(ids.size()) > list.length)
      base::fail(base::Exit::data,
                 "{} has {} tokens, and tokenize of [data.{}] keeps {}; use a shorter text or a "
                 "larger max_len",
                 base::quoted(text), ids.size(), set.name(), list.length);
    ids.resize(size_t(list.length), padding);
    list.ids.insert(list.ids.end(), ids.begin(), ids.end());
  }
  return list;
}

bool score_pairs(const Context& context, const models::TextList& texts,
                 const Journal::Take& restore, const TakeScores& take) {
  const Rounds rounds(context, context.dataset, "images", restore);
  auto& pass = context.pass_as<models::PairScorePass>();
  pass.begin();
  const int64_t n = context.dataset.size(), count = pass.columns(texts);
  auto loader = rounds.loader(context, [](int64_t p) { return p; });
  std::vector<double> scores(size_t(context.batch * count));
  for (int64_t round = 0; round < rounds.count(); ++round) {
    if (context.interrupted()) return false;
    const data::BatchPtr batch = loader->next();
    const models::HostBatch host = data::host_batch(*batch, rounds.first(round));
    context.forward(host, [&](nn::Context& ctx, const models::Inputs& in) {
      pass.run(ctx, in, texts, scores.data());
    });
    for (int64_t i = 0; i < context.batch && rounds.first(round) + i < n; ++i)
      take(*batch, i, rounds.first(round) + i, scores.data() + i * count);
    if (context.journal) context.journal->write();
  }
  return true;
}

void adjust(const Context& context, const PairOptions& options, const models::TextList& texts,
            PairScores& scores) {
  if (options.normalize_by_length) {
    const auto tokens = context.pass_as<models::PairScorePass>().tokens(texts);
    for (size_t i = 0; i < scores.positions.size(); ++i)
      for (size_t t = 0; t < tokens.size(); ++t)
        scores.of(i)[t] /= double(std::max<int64_t>(tokens[t], 1));
  }
  if (!options.subtract_prior) return;
  const std::vector<double> means = mean_over_images(context, scores);
  for (size_t i = 0; i < scores.positions.size(); ++i)
    for (size_t t = 0; t < means.size(); ++t) scores.of(i)[t] -= means[t];
}

double rank_of(const double* scores, int64_t n, int64_t i) {
  int64_t before = 0;
  for (int64_t j = 0; j < n; ++j) {
    if (std::isnan(scores[j])) return std::nan("");
    before += scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
  }
  return double(before);
}

double recall(const double* ranks, int64_t n, int64_t k) {
  int64_t hits = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(ranks[i])) return std::nan("");
    hits += ranks[i] < double(k);
  }
  return double(hits) / double(n);
}

std::unique_ptr<models::ForwardPass> make_pair_pass(const models::Model& model,
                                                    const PairOptions& options) {
  const auto* scorer = dynamic_cast<const models::PairScorer*>(&model);
  if (!scorer) return nullptr;
  std::unique_ptr<models::PairScorePass> pass = scorer->make_pair_score_pass();
  if (options.normalize_by_length && pass->kind() == models::PairScore::cosine)
    base::fail(base::Exit::config,
               "normalize_by_length divides log-likelihoods, and the scores of this model are "
               "cosines; set it to false");
  return pass;
}

}  // namespace eval
