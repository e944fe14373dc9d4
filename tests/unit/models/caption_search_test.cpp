// SPDX-License-Identifier: Apache-2.0
// Tests the choice of tokens on made-up models, whose logits are a function of all tokens before:
// greedy and beam search against plain loops and all captions, sampling against probabilities.
#include "models/captions/caption_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

namespace {

using models::Caption;
using models::CaptionSearch;
using models::DecodeMethod;
using models::DecodeOptions;
using Tokens = std::vector<int32_t>;

// Returns the logits of the token after `before`, the leading 0 included.
using Logits = std::function<std::vector<float>(int64_t image, const Tokens& before)>;

Logits made_logits(uint64_t seed, int64_t vocabulary, double scale = 1.5) {
  return [=](int64_t image, const Tokens& before) {
    base::Stream s = base::Stream(seed, "logits").sub(uint64_t(image));
    for (int32_t id : before) s = s.sub(uint64_t(id));
    std::vector<float> out;
    for (int64_t i = 0; i < vocabulary; ++i) out.push_back(float(scale * s.normal(uint64_t(i))));
    return out;
  };
}

double log_sum(const std::vector<float>& logits) {
  double sum = 0;
  for (float x : logits) sum += std::exp(double(x));
  return std::log(sum);
}

// Runs a search. Tokens before a position are found through the cache rows of the search, as keys
// and values are.
std::vector<Caption> found_by(const DecodeOptions& options, const Logits& model, int64_t images,
                              int64_t length, int64_t first_position = 0) {
  const int64_t slots = images * options.places() + 1;
  CaptionSearch all(options, images, first_position, slots, length);
  std::map<int32_t, int32_t> cache;  // token by cache row
  for (int64_t t = 0; !all.done(); ++t) {
    const models::CaptionSteps::Rows rows = all.rows();
    std::vector<float> logits, nll;
    for (size_t r = 0; r < rows.ids.size(); ++r)
      cache[int32_t(t * slots) + int32_t(r)] = rows.ids[r];
    for (size_t r = 0; r < rows.ids.size(); ++r) {
      Tokens before;
      for (int64_t p = 0; p <= t; ++p)
        before.push_back(cache.at(rows.past[r * size_t(t + 1) + size_t(p)]));
      const std::vector<float> x = model(first_position + rows.images[r], before);
      nll.push_back(float(log_sum(x) - double(x[0])));
      logits.insert(logits.end(), x.begin(), x.end());
    }
    all.advance(logits.data(), nll.data(), int64_t(logits.size() / rows.ids.size()));
  }
  return all.captions();
}

// Follows the largest logit in a plain loop.
Caption greedy(const Logits& model, int64_t image, int64_t length) {
  Tokens before{0};
  Caption out;
  while (int64_t(before.size()) <= length) {
    const std::vector<float> x = model(image, before);
    int32_t best = 0;
    for (size_t i = 0; i < x.size(); ++i)
      if (x[i] > x[size_t(best)]) best = int32_t(i);
    out.log_likelihood += double(x[size_t(best)]) - log_sum(x);
    if (best == 1) {
      out.ended = true;
      break;
    }
    before.push_back(best);
  }
  out.ids.assign(before.begin() + 1, before.end());
  return out;
}

double score_of(const DecodeOptions& o, const Caption& c) {
  return c.log_likelihood / std::pow((5 + double(c.ids.size()) + c.ended) / 6, o.length_penalty);
}

// Visits every caption of at most `length` tokens, and returns the best score.
double best_of_all(const DecodeOptions& o, const Logits& model, int64_t image, int64_t length,
                   Tokens before = {0}, double likelihood = 0) {
  double best = -1e300;
  const std::vector<float> x = model(image, before);
  for (size_t i = 0; i < x.size(); ++i) {
    const double now = likelihood + double(x[i]) - log_sum(x);
    if (i == 1 || int64_t(before.size()) == length) {
      const double n = double(before.size());
      best = std::max(best, now / std::pow((5 + n) / 6, o.length_penalty));
      continue;
    }
    Tokens next = before;
    next.push_back(int32_t(i));
    best = std::max(best, best_of_all(o, model, image, length, next, now));
  }
  return best;
}

TEST(CaptionSearch, GreedyFollowsTheLargestLogit) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Logits model = made_logits(seed, 7);
    DecodeOptions one{.method = DecodeMethod::beam, .beams = 1, .length_penalty = 0.7};
    const auto found = found_by({}, model, 5, 6), beam = found_by(one, model, 5, 6);
    for (size_t b = 0; b < 5; ++b) {
      const Caption want = greedy(model, int64_t(b), 6);
      EXPECT_EQ(found[b].ids, want.ids);
      EXPECT_EQ(found[b].ended, want.ended);
      EXPECT_NEAR(found[b].log_likelihood, want.log_likelihood, 1e-5);
      EXPECT_EQ(beam[b].ids, want.ids) << "beam 1";
      EXPECT_EQ(beam[b].log_likelihood, found[b].log_likelihood) << "beam 1";
    }
  }
}

// A search passes over blocks of 64 logits that no caption can take. These vocabularies have whole
// blocks and a part of one at the end. Rounded logits have ties in several blocks.
TEST(CaptionSearch, FindsTheLargestOfManyLogits) {
  for (const int64_t vocabulary : {64, 65, 191, 192, 300})
    for (const bool ties : {false, true}) {
      const Logits exact = made_logits(11, vocabulary);
      const Logits model = [&](int64_t image, const Tokens& before) {
        std::vector<float> x = exact(image, before);
        for (float& one : x) one = ties ? std::round(one) : one;
        x[x.size() / 2] = NAN;
        return x;
      };
      CaptionSearch search({.method = DecodeMethod::beam, .beams = 4}, 1, 0, 5, 2);
      const std::vector<float> logits = model(0, {0});
      std::vector<int32_t> want;
      for (int32_t id = 0; id < int32_t(vocabulary); ++id)
        if (!std::isnan(logits[size_t(id)])) want.push_back(id);
      std::stable_sort(want.begin(), want.end(),
                       [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
      want.resize(4);
      std::erase(want, 1);  // ends its caption
      const float nll = 0;
      search.advance(logits.data(), &nll, vocabulary);
      EXPECT_EQ(search.rows().ids, want) << vocabulary << " tokens, ties " << ties;
    }
}

TEST(CaptionSearch, TiesGoToTheSmallestId) {
  auto tied = [](int64_t, const Tokens& before) {
    return before.size() < 3 ? std::vector<float>{0, -1, 2, 2, 2}
                             : std::vector<float>{0, 3, 3, 3, 1};
  };
  for (int64_t beams : {0, 1, 3}) {
    DecodeOptions o{.method = beams ? DecodeMethod::beam : DecodeMethod::greedy, .beams = beams};
    const Caption c = found_by(o, tied, 1, 9)[0];
    EXPECT_EQ(c.ids, (Tokens{2, 2}));
    EXPECT_TRUE(c.ended);
  }
}

TEST(CaptionSearch, WideBeamFindsTheBestOfAllCaptions) {
  for (uint64_t seed = 0; seed < 8; ++seed)
    for (double penalty : {0.0, 0.6, 1.5}) {
      const Logits model = made_logits(seed, 4);
      DecodeOptions o{.method = DecodeMethod::beam, .beams = 4096, .length_penalty = penalty};
      const auto found = found_by(o, model, 2, 5);
      for (size_t b = 0; b < 2; ++b)
        EXPECT_NEAR(score_of(o, found[b]), best_of_all(o, model, int64_t(b), 5), 1e-5)
            << "seed " << seed << ", penalty " << penalty;
    }
}

// A short caption has ended with the larger likelihood. The longer caption wins only by the divisor
// of its full length, so the search may not end before.
TEST(CaptionSearch, ALongCaptionWinsByItsLength) {
  const float end = float(std::log(0.55)), on = float(std::log(0.45));
  const Logits model = [&](int64_t, const Tokens& before) {
    return before.size() == 1 ? std::vector<float>{-40, end, on, -40}
                              : std::vector<float>{-20, -20, 20, -20};
  };
  for (const auto& [penalty, length, tokens] :
       {std::tuple{1.0, 6, 6u}, {1.0, 2, 0u}, {1.0, 4, 4u}, {2.0, 2, 2u}, {0.0, 6, 0u}}) {
    const DecodeOptions o{.method = DecodeMethod::beam, .beams = 2, .length_penalty = penalty};
    const Caption found = found_by(o, model, 1, length)[0];
    EXPECT_EQ(found.ids, Tokens(tokens, 2)) << "penalty " << penalty << ", length " << length;
    EXPECT_EQ(found.ended, tokens == 0);
    EXPECT_NEAR(score_of(o, found), best_of_all(o, model, 0, length), 1e-5);
  }
}

TEST(CaptionSearch, BeamNeverScoresBelowGreedy) {
  int better = 0, all = 0;
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (int64_t beams : {2, 4, 5})
      for (double penalty : {0.0, 0.6, 2.0}) {
        const Logits model = made_logits(seed, 9, 0.7);
        DecodeOptions o{.method = DecodeMethod::beam, .beams = beams, .length_penalty = penalty};
        const auto found = found_by(o, model, 4, 8);
        for (size_t b = 0; b < 4; ++b, ++all) {
          const double mine = score_of(o, found[b]),
                       other = score_of(o, greedy(model, int64_t(b), 8));
          EXPECT_GE(mine, other - 1e-5);
          better += mine > other + 1e-5;
        }
      }
  EXPECT_GT(better, all / 4) << "of " << all << ": the search must find more than greedy does";
}

// The logits are the same at every position, so counts of the first token follow from them.
TEST(CaptionSearch, SamplesFollowTheirProbabilities) {
  const std::vector<float> logits{0.5f, -9, 1.5f, 0, 2, -0.5f};
  const Logits fixed = [&](int64_t, const Tokens&) { return logits; };
  struct Setting {
    double temperature;
    int64_t top_k;
    double top_p;
    std::vector<int> kept;  // ids that may be drawn
  };
  // Probabilities at temperature 1: 0.11, 0, 0.3, 0.07, 0.49, 0.04 (rounded). The two largest have
  // 0.78 together, the three largest 0.89. Among the four largest the first has 0.51.
  for (const Setting& s : {Setting{1, 0, 1, {0, 1, 2, 3, 4, 5}},
                           {0.5, 0, 1, {0, 1, 2, 3, 4, 5}},
                           {1, 3, 1, {0, 2, 4}},
                           {1, 0, 0.8, {0, 2, 4}},
                           {2, 2, 1, {2, 4}},
                           {1, 0, 0.5, {2, 4}},
                           {1, 4, 0.5, {4}},
                           {1, 0, 1e-9, {4}}}) {
    DecodeOptions o{.method = DecodeMethod::sample,
                    .temperature = s.temperature,
                    .top_k = s.top_k,
                    .top_p = s.top_p,
                    .seed = 11};
    constexpr int64_t kDraws = 20000;
    const auto found = found_by(o, fixed, kDraws, 1);
    double total = 0;
    for (int id : s.kept) total += std::exp(double(logits[size_t(id)]) / s.temperature);
    std::vector<double> counts(6);
    for (const Caption& c : found) counts[c.ids.empty() ? 1 : size_t(c.ids[0])] += 1.0 / kDraws;
    for (int id = 0; id < 6; ++id) {
      const bool kept = std::find(s.kept.begin(), s.kept.end(), id) != s.kept.end();
      const double p = kept ? std::exp(double(logits[size_t(id)]) / s.temperature) / total : 0;
      EXPECT_NEAR(counts[size_t(id)], p, 1e-9 + 5 * std::sqrt(p * (1 - p) / kDraws))
          << "id " << id << ", temperature " << s.temperature << ", top_k " << s.top_k << ", top_p "
          << s.top_p;
    }
    const size_t id = found[7].ids.empty() ? 1 : size_t(found[7].ids[0]);
    EXPECT_NEAR(found[7].log_likelihood, double(logits[id]) - log_sum(logits), 1e-6)
        << "the likelihood is that of the model, without temperature";
  }
}

// Four tokens are equally likely. Two of them have exactly half of the probability.
TEST(CaptionSearch, SamplesKeepAsManyTokensAsAskedFor) {
  const Logits equal = [](int64_t, const Tokens&) { return std::vector<float>(4, 0.25f); };
  for (const auto& [top_k, top_p, kept] : {std::tuple{0, 0.5, 2u}, {3, 1.0, 3u}}) {
    const DecodeOptions o{
        .method = DecodeMethod::sample, .end_id = 3, .top_k = top_k, .top_p = top_p};
    std::map<int32_t, int> counts;
    for (const Caption& c : found_by(o, equal, 300, 1)) ++counts[c.ids.empty() ? 3 : c.ids[0]];
    EXPECT_EQ(counts.size(), kept);
    for (const auto& [id, count] : counts) EXPECT_GT(count, 60) << id;
  }
}

// Each position of a text has a draw of its own, so pairs of tokens are as frequent as those of
// independent tokens.
TEST(CaptionSearch, SamplesOfTwoPositionsAreIndependent) {
  constexpr int64_t kDraws = 20000;
  const Logits equal = [](int64_t, const Tokens&) { return std::vector<float>{0, -99, 0}; };
  std::map<Tokens, double> pairs;
  const DecodeOptions o{.method = DecodeMethod::sample, .seed = 2};
  for (const Caption& c : found_by(o, equal, kDraws, 2)) pairs[c.ids] += 1.0 / kDraws;
  for (int32_t first : {0, 2})
    for (int32_t second : {0, 2})
      EXPECT_NEAR(pairs[Tokens({first, second})], 0.25, 5 * std::sqrt(0.25 * 0.75 / kDraws));
}

TEST(CaptionSearch, SamplesDependOnSeedAndPositionAlone) {
  const Logits model = made_logits(3, 12);
  DecodeOptions o{.method = DecodeMethod::sample, .seed = 5};
  const auto all = found_by(o, model, 20, 8), again = found_by(o, model, 5, 8, 10);
  int other = 0;
  for (size_t b = 0; b < 5; ++b) {
    EXPECT_EQ(again[b].ids, all[10 + b].ids);
    EXPECT_EQ(again[b].log_likelihood, all[10 + b].log_likelihood);
  }
  o.seed = 6;
  const auto reseeded = found_by(o, model, 20, 8);
  for (size_t b = 0; b < 20; ++b) other += reseeded[b].ids != all[b].ids;
  EXPECT_GT(other, 15);
  o.temperature = 1e-3;
  const auto cold = found_by(o, model, 20, 8), most_likely = found_by({}, model, 20, 8);
  for (size_t b = 0; b < 20; ++b) EXPECT_EQ(cold[b].ids, most_likely[b].ids);
}

// Weights that are not finite must not hang or crash the search.
TEST(CaptionSearch, EndsOnLogitsThatAreNotNumbers) {
  const Logits bad = [](int64_t, const Tokens&) { return std::vector<float>(5, NAN); };
  for (DecodeMethod method : {DecodeMethod::greedy, DecodeMethod::beam, DecodeMethod::sample}) {
    const DecodeOptions o{.method = method};
    EXPECT_EQ(found_by(o, bad, 2, 4).size(), 2);
  }
}

}  // namespace
