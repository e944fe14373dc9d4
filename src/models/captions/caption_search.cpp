// SPDX-License-Identifier: Apache-2.0
#include "models/captions/caption_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/elementary.hpp"

namespace models {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// NaN counts as impossible, so that comparisons have an order.
double or_never(double x) { return std::isnan(x) ? kMinusInfinity : x; }

constexpr int64_t kBlock = 64;  // logits

// Returns whether one of kBlock logits is above `least`. The loop has no branch, so that the
// compiler vectorizes it.
bool any_above(const float* logits, float least) {
  int above = 0;
  for (int64_t i = 0; i < kBlock; ++i) above |= logits[i] > least;
  return above != 0;
}

// Returns the ids of the `count` largest logits, the largest first. Among equals, the smallest id
// comes first.
std::vector<int32_t> most_likely(const float* logits, int64_t vocabulary, int64_t count) {
  std::vector<int32_t> best;
  for (int64_t begin = 0; begin < vocabulary; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, vocabulary);
    const bool full = int64_t(best.size()) == count && end - begin == kBlock;
    if (full && !any_above(logits + begin, logits[best.back()])) continue;
    for (int64_t id = begin; id < end; ++id) {
      if (int64_t(best.size()) == count && !(logits[id] > logits[best.back()])) continue;
      if (std::isnan(logits[id])) continue;
      auto place = best.end();
      while (place != best.begin() && logits[id] > logits[*(place - 1)]) --place;
      best.insert(place, int32_t(id));
      if (int64_t(best.size()) > count) best.pop_back();
    }
  }
  if (best.empty()) best.push_back(0);  // all are NaN
  return best;
}

}  // namespace

CaptionSearch::CaptionSearch(const DecodeOptions& options, int64_t images, int64_t first_position,
                             int64_t slots, int64_t length)
    : options_(options),
      first_position_(first_position),
      slots_(slots),
      length_(length),
      images_(size_t(images)) {
  CHECK(length >= 1 && images * options.places() <= slots, "{} images with {} places in {} rows",
        images, options.places(), slots);
  for (Image& image : images_) image.live.push_back({{}, {}, 0, true});
  list_rows();
}

double CaptionSearch::score(const DecodeOptions& options, double log_likelihood, int64_t n) {
  return log_likelihood / base::math::pow((5 + double(n)) / 6, options.length_penalty);
}

void CaptionSearch::list_rows() {
  rows_.ids.clear();
  rows_.images.clear();
  rows_.past.clear();
  for (size_t b = 0; b < images_.size(); ++b)
    for (Hypothesis& h : images_[b].live) {
      h.past.push_back(int32_t(step_ * slots_ + int64_t(rows_.ids.size())));
      rows_.ids.push_back(h.ids.empty() ? 0 : h.ids.back());  // id 0 leads (cappa.md 1.6)
      rows_.images.push_back(int32_t(b));
      rows_.past.insert(rows_.past.end(), h.past.begin(), h.past.end());
    }
}

void CaptionSearch::list_candidates(const Hypothesis& from, size_t row, const float* logits,
                                    double first_nll, int64_t vocabulary, int64_t count,
                                    std::vector<Candidate>& out) const {
  bool first = true;
  for (int32_t id : most_likely(logits, vocabulary, count)) {
    const double likelihood = double(logits[id]) - double(logits[0]) - first_nll;
    out.push_back({or_never(from.log_likelihood + likelihood), row, id, from.greedy && first});
    first = false;
  }
}

CaptionSearch::Candidate CaptionSearch::sample(const Hypothesis& from, int64_t position,
                                               const float* logits, double first_nll,
                                               int64_t vocabulary) const {
  std::vector<int32_t> ids(static_cast<size_t>(vocabulary));
  std::iota(ids.begin(), ids.end(), 0);
  auto before = [&](int32_t a, int32_t b) {
    const double x = or_never(double(logits[a])), y = or_never(double(logits[b]));
    return x != y ? x > y : a < b;
  };
  if (options_.top_k > 0 && options_.top_k < vocabulary) {
    std::nth_element(ids.begin(), ids.begin() + options_.top_k, ids.end(), before);
    ids.resize(size_t(options_.top_k));
  }
  std::sort(ids.begin(), ids.end(), before);
  std::vector<double> weights;
  double total = 0;
  for (int32_t id : ids) {
    const double x = double(logits[id]) - double(logits[ids[0]]);
    weights.push_back(std::isnan(x) ? 0 : base::math::exp(x / options_.temperature));
    total += weights.back();
  }
  size_t kept = 0;
  double sum = 0;
  while (kept < ids.size() && (kept == 0 || sum < options_.top_p * total)) sum += weights[kept++];
  const base::Stream stream =
      base::Stream(options_.seed, "captions").sub(uint64_t(first_position_ + position));
  const double draw = stream.uniform64(uint64_t(step_)) * sum;
  size_t i = 0;
  for (double below = weights[0]; i + 1 < kept && below <= draw; below += weights[i]) ++i;
  const double likelihood = double(logits[ids[i]]) - double(logits[0]) - first_nll;
  return {or_never(from.log_likelihood + likelihood), 0, ids[i], false};
}

void CaptionSearch::continue_image(Image& image, const std::vector<Candidate>& chosen) {
  std::vector<Hypothesis> next;
  for (const Candidate& c : chosen) {
    const Hypothesis& from = image.live[c.row];
    Hypothesis h{from.ids, from.past, c.log_likelihood, c.greedy};
    const bool end = c.id == options_.end_id;
    if (!end) h.ids.push_back(c.id);
    if (!end && step_ + 1 < length_) {
      next.push_back(std::move(h));
      continue;
    }
    image.ended.push_back(
        {{std::move(h.ids), c.log_likelihood, end}, score(options_, c.log_likelihood, step_ + 1)});
  }
  image.live = std::move(next);
  if (image.ended.empty() || image.live.empty()) return;
  // Likelihoods only fall, and the divisor is largest for the longest caption.
  double best = kMinusInfinity, reachable = kMinusInfinity;
  for (const Ended& e : image.ended) best = std::max(best, e.score);
  for (const Hypothesis& h : image.live)
    reachable = std::max(reachable, score(options_, h.log_likelihood, length_));
  if (best >= reachable) image.live.clear();
}

void CaptionSearch::advance(const float* logits, const float* first_nll, int64_t vocabulary) {
  CHECK(options_.end_id >= 0 && options_.end_id < vocabulary, "end id {} of {} tokens",
        options_.end_id, vocabulary);
  std::vector<Candidate> candidates;
  int64_t row = 0;
  for (size_t b = 0; b < images_.size(); ++b) {
    Image& image = images_[b];
    if (image.live.empty()) continue;
    const int64_t places = options_.places() - int64_t(image.ended.size());
    candidates.clear();
    for (size_t i = 0; i < image.live.size(); ++i, ++row) {
      const float* x = logits + row * vocabulary;
      const double nll = double(first_nll[row]);
      if (options_.method == DecodeMethod::sample)
        candidates.push_back(sample(image.live[i], int64_t(b), x, nll, vocabulary));
      else
        list_candidates(image.live[i], i, x, nll, vocabulary, places, candidates);
    }
    // Among equals, the hypothesis that was more likely before wins, then the smaller id.
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& c) {
      if (a.log_likelihood != c.log_likelihood) return a.log_likelihood > c.log_likelihood;
      return std::pair(a.row, a.id) < std::pair(c.row, c.id);
    });
    const auto greedy = std::find_if(candidates.begin(), candidates.end(),
                                     [](const Candidate& c) { return c.greedy; });
    if (greedy != candidates.end() && greedy - candidates.begin() >= places)
      candidates[size_t(places - 1)] = *greedy;
    if (int64_t(candidates.size()) > places) candidates.resize(size_t(places));
    continue_image(image, candidates);
  }
  ++step_;
  list_rows();
}

std::vector<Caption> CaptionSearch::captions() const {
  CHECK(done());
  std::vector<Caption> out;
  for (const Image& image : images_) {
    size_t best = 0;
    for (size_t i = 1; i < image.ended.size(); ++i)
      if (image.ended[i].score > image.ended[best].score) best = i;
    out.push_back(image.ended[best].caption);
  }
  return out;
}

}  // namespace models
