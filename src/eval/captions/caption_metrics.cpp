// SPDX-License-Identifier: Apache-2.0
#include "eval/captions/caption_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <unordered_map>

#include "base/elementary.hpp"
#include "base/error.hpp"
#include "base/fused.hpp"
#include "base/text.hpp"
#include "eval/captions/caption_tokens.hpp"

namespace eval {
namespace {

constexpr int kOrders = 4;  // n-grams of 1 to 4 words

struct Count {
  int32_t ngram;
  int order;  // words of the n-gram, less one
  int64_t times;
};

struct NgramCounts {
  int64_t words = 0;
  // By order, then by first appearance. This is the order in which Python's dict holds them, so
  // sums of floats round alike.
  std::vector<Count> counts;
};

// Numbers the words and the n-grams of a set, in the order of their first appearance.
class NgramTable {
 public:
  size_t size() const { return ngrams_.size(); }

  NgramCounts count(const std::string& caption) {
    const std::vector<std::string_view> words = split_at_white_space(caption);
    NgramCounts out{int64_t(words.size()), {}};
    std::vector<int32_t> numbers(words.size());
    for (size_t i = 0; i < words.size(); ++i)
      numbers[i] =
          words_.try_emplace(std::string(words[i]), static_cast<int32_t>(words_.size() + 1))
              .first->second;
    // begun[i] is the n-gram of the last order that begins at word i; 0 is the empty one.
    std::vector<int32_t> begun(words.size(), 0);
    for (int order = 0; order < kOrders; ++order) {
      for (size_t i = 0; i + size_t(order) < words.size(); ++i) {
        begun[i] = longer(begun[i], numbers[i + size_t(order)]);
        add(begun[i], order, out.counts);
      }
    }
    for (const Count& c : out.counts) place_[size_t(c.ngram)] = -1;
    return out;
  }

 private:
  // Returns the number of the n-gram `shorter` followed by `word`. Numbers begin at 1.
  int32_t longer(int32_t shorter, int32_t word) {
    const uint64_t key = uint64_t(uint32_t(shorter)) << 32 | uint32_t(word);
    return ngrams_.try_emplace(key, static_cast<int32_t>(ngrams_.size() + 1)).first->second;
  }

  void add(int32_t ngram, int order, std::vector<Count>& counts) {
    if (place_.size() <= size_t(ngram)) place_.resize(size_t(ngram) + 1, -1);
    int64_t& place = place_[size_t(ngram)];
    if (place < 0) {
      place = int64_t(counts.size());
      counts.push_back({ngram, order, 0});
    }
    ++counts[size_t(place)].times;
  }

  std::unordered_map<std::string, int32_t> words_;
  std::unordered_map<uint64_t, int32_t> ngrams_;
  std::vector<int64_t> place_;  // by n-gram: its place in the counts of this caption, or -1
};

struct CountedSet {
  std::vector<NgramCounts> candidates;
  std::vector<std::vector<NgramCounts>> references;
  size_t ngrams = 0;  // n-grams of the set are numbered 1..ngrams
};

CountedSet count_set(const std::vector<std::string>& candidates,
                     const std::vector<std::vector<std::string>>& references) {
  NgramTable table;
  CountedSet set;
  for (size_t i = 0; i < candidates.size(); ++i) {
    set.candidates.push_back(table.count(candidates[i]));
    std::vector<NgramCounts>& counted = set.references.emplace_back();
    for (const std::string& reference : references[i]) counted.push_back(table.count(reference));
  }
  set.ngrams = table.size();
  return set;
}

// The counts that BLEU is computed from, for one example or a set.
struct BleuCounts {
  int64_t words = 0, reference_words = 0;
  std::array<int64_t, kOrders> guessed{}, correct{};
};

// Returns BLEU-1 to BLEU-4. The small numbers avoid a division by zero; they come from the
// published scorer (bleu_scorer.py, compute_score).
std::array<double, kOrders> bleu_of(const BleuCounts& counts) {
  const double tiny = 1e-15, small = 1e-9;
  std::array<double, kOrders> bleu{};
  double product = 1;
  for (size_t n = 0; n < kOrders; ++n) {
    product *= (double(counts.correct[n]) + tiny) / (double(counts.guessed[n]) + small);
    bleu[n] = base::math::pow(product, 1.0 / double(n + 1));
  }
  const double ratio = (double(counts.words) + tiny) / (double(counts.reference_words) + small);
  if (ratio < 1)
    for (double& b : bleu) b *= base::math::exp(1 - 1 / ratio);
  return bleu;
}

// Returns the length of the reference whose length is closest to `words`; of two equally close
// ones, the shorter.
int64_t closest_length(int64_t words, const std::vector<NgramCounts>& references) {
  int64_t closest = references[0].words;
  for (const NgramCounts& reference : references) {
    const int64_t distance = std::abs(reference.words - words), best = std::abs(closest - words);
    if (distance < best || (distance == best && reference.words < closest))
      closest = reference.words;
  }
  return closest;
}

void score_bleu(const CountedSet& set, CaptionMetrics& metrics) {
  BleuCounts total;
  std::vector<int64_t> most(set.ngrams + 1, 0);  // largest count in one of the references
  for (size_t i = 0; i < set.candidates.size(); ++i) {
    const NgramCounts& candidate = set.candidates[i];
    BleuCounts counts;
    counts.words = candidate.words;
    counts.reference_words = closest_length(candidate.words, set.references[i]);
    for (const NgramCounts& reference : set.references[i])
      for (const Count& c : reference.counts)
        most[size_t(c.ngram)] = std::max(most[size_t(c.ngram)], c.times);
    for (const Count& c : candidate.counts)
      counts.correct[size_t(c.order)] += std::min(most[size_t(c.ngram)], c.times);
    for (const NgramCounts& reference : set.references[i])
      for (const Count& c : reference.counts) most[size_t(c.ngram)] = 0;
    for (size_t n = 0; n < kOrders; ++n)
      counts.guessed[n] = std::max<int64_t>(0, candidate.words - int64_t(n));

    metrics.examples[i].bleu = bleu_of(counts);
    total.words += counts.words;
    total.reference_words += counts.reference_words;
    for (size_t n = 0; n < kOrders; ++n) {
      total.guessed[n] += counts.guessed[n];
      total.correct[n] += counts.correct[n];
    }
  }
  metrics.set.bleu = bleu_of(total);
}

// Returns the length of the longest common subsequence.
int64_t common_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<int64_t> longest(b.size() + 1, 0);  // of the words of a so far and the first j of b
  for (const std::string& word : a) {
    int64_t diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t above = longest[j];
      longest[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, longest[j - 1]);
      diagonal = above;
    }
  }
  return longest[b.size()];
}

double rouge_l_of(const std::string& candidate, const std::vector<std::string>& references) {
  const double beta = 1.2;  // rouge.py
  const std::vector<std::string> words = base::split(candidate, ' ');
  double precision = 0, recall = 0;
  for (const std::string& reference : references) {
    const std::vector<std::string> of_reference = base::split(reference, ' ');
    const double common = double(common_words(of_reference, words));
    precision = std::max(precision, common / double(words.size()));
    recall = std::max(recall, common / double(of_reference.size()));
  }
  if (precision == 0 || recall == 0) return 0;
  return (1 + beta * beta) * precision * recall / base::fused(beta * beta, precision, recall);
}

// TF-IDF weights of the n-grams of one caption.
struct TfIdf {
  std::vector<double> weights;         // in the order of NgramCounts::counts
  std::array<double, kOrders> norm{};  // Euclidean, by order
  int64_t bigrams = 0;                 // the published scorer's length of a caption
};

class CiderD {
 public:
  explicit CiderD(const CountedSet& set)
      : log_documents_(base::math::log(double(set.references.size()))),
        frequency_(set.ngrams + 1, 0),
        of_reference_(set.ngrams + 1, 0) {
    std::vector<size_t> seen(set.ngrams + 1, 0);  // 1 + the last example with this n-gram
    for (size_t i = 0; i < set.references.size(); ++i)
      for (const NgramCounts& reference : set.references[i])
        for (const Count& c : reference.counts) {
          if (seen[size_t(c.ngram)] != i + 1) frequency_[size_t(c.ngram)] += 1;
          seen[size_t(c.ngram)] = i + 1;
        }
  }

  double score(const NgramCounts& candidate, const std::vector<NgramCounts>& references) {
    const TfIdf of_candidate = weigh(candidate);
    std::array<double, kOrders> sums{};
    for (const NgramCounts& reference : references)
      add_similarity(candidate, of_candidate, reference, sums);
    double sum = 0;
    for (double s : sums) sum += s;
    return sum / kOrders / double(references.size()) * 10.0;
  }

 private:
  TfIdf weigh(const NgramCounts& caption) const {
    TfIdf out;
    for (const Count& c : caption.counts) {
      const double log_frequency = base::math::log(std::max(1.0, frequency_[size_t(c.ngram)]));
      const double weight = double(c.times) * (log_documents_ - log_frequency);
      out.weights.push_back(weight);
      double& norm = out.norm[size_t(c.order)];
      norm = base::fused(weight, weight, norm);
      if (c.order == 1) out.bigrams += c.times;
    }
    for (double& n : out.norm) n = std::sqrt(n);
    return out;
  }

  // Adds the similarity of a candidate and one reference to the sums, by order.
  void add_similarity(const NgramCounts& candidate, const TfIdf& of_candidate,
                      const NgramCounts& reference, std::array<double, kOrders>& sums) {
    const double sigma = 6;
    const TfIdf weighed = weigh(reference);
    for (size_t j = 0; j < reference.counts.size(); ++j)
      of_reference_[size_t(reference.counts[j].ngram)] = weighed.weights[j];
    std::array<double, kOrders> products{};
    for (size_t j = 0; j < candidate.counts.size(); ++j) {
      const Count& c = candidate.counts[j];
      const double other = of_reference_[size_t(c.ngram)];
      double& product = products[size_t(c.order)];
      product = base::fused(std::min(of_candidate.weights[j], other), other, product);
    }
    for (const Count& c : reference.counts) of_reference_[size_t(c.ngram)] = 0;

    const double difference = double(of_candidate.bigrams - weighed.bigrams);
    const double penalty = base::math::exp(-(difference * difference) / (2 * sigma * sigma));
    for (size_t n = 0; n < kOrders; ++n) {
      const double norms = of_candidate.norm[n] * weighed.norm[n];
      if (norms != 0) sums[n] = base::fused(products[n] / norms, penalty, sums[n]);
    }
  }

  double log_documents_;
  std::vector<double> frequency_;     // by n-gram: examples whose references contain it
  std::vector<double> of_reference_;  // by n-gram: its weight in the reference at hand, or 0
};

}  // namespace

CaptionMetrics tokenized_caption_metrics(const std::vector<std::string>& candidates,
                                         const std::vector<std::vector<std::string>>& references) {
  CHECK(candidates.size() == references.size(), "{} candidates, {} lists of references",
        candidates.size(), references.size());
  if (candidates.empty())
    base::fail(base::Exit::data, "there is no caption to score: the set holds no example");
  for (size_t i = 0; i < references.size(); ++i)
    if (references[i].empty())
      base::fail(base::Exit::data,
                 "example {} has no reference caption, so its caption cannot be scored; leave the "
                 "example out or give it a caption",
                 i);
  CaptionMetrics metrics{{}, std::vector<CaptionScores>(candidates.size())};
  const CountedSet set = count_set(candidates, references);
  score_bleu(set, metrics);
  CiderD cider(set);
  for (size_t i = 0; i < candidates.size(); ++i) {
    CaptionScores& example = metrics.examples[i];
    example.rouge_l = rouge_l_of(candidates[i], references[i]);
    example.cider_d = cider.score(set.candidates[i], set.references[i]);
    metrics.set.rouge_l += example.rouge_l;
    metrics.set.cider_d += example.cider_d;
  }
  metrics.set.rouge_l /= double(candidates.size());
  metrics.set.cider_d /= double(candidates.size());
  return metrics;
}

CaptionMetrics caption_metrics(const std::vector<std::string>& candidates,
                               const std::vector<std::vector<std::string>>& references) {
  const auto tokenized = [](const std::vector<std::string>& captions) {
    std::vector<std::string> out;
    for (const std::string& caption : captions) out.push_back(tokenize_caption(caption));
    return out;
  };
  std::vector<std::vector<std::string>> of_references;
  for (const std::vector<std::string>& captions : references)
    of_references.push_back(tokenized(captions));
  return tokenized_caption_metrics(tokenized(candidates), of_references);
}

}  // namespace eval
