// SPDX-License-Identifier: Apache-2.0
#include "eval/features/neighbours.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.hpp"
#include "eval/fits/dense.hpp"

namespace eval {
namespace {

constexpr int64_t kImagesOfPart = 64;  // they stay in the cache while all images are compared
constexpr double kLeastLength = 1e-12;

bool nearer(const Neighbour& a, const Neighbour& b) {
  return a.similarity > b.similarity || (a.similarity == b.similarity && a.row < b.row);
}

// Adds a row to the heap of the k nearest rows so far, whose front is the farthest.
void add(std::vector<Neighbour>& heap, const Neighbour& one, int64_t k) {
  if (int64_t(heap.size()) == k) {
    if (!nearer(one, heap.front())) return;
    std::pop_heap(heap.begin(), heap.end(), nearer);
    heap.pop_back();
  }
  heap.push_back(one);
  std::push_heap(heap.begin(), heap.end(), nearer);
}

}  // namespace

NeighbourSearch::NeighbourSearch(const LabelledRows& rows, bool normalise)
    : rows_(rows), normalise_(normalise) {
  for (size_t i = 0; i < rows.labels.size(); ++i)
    inverse_lengths_.push_back(inverse_length(rows.x + int64_t(i) * rows.features));
}

double NeighbourSearch::inverse_length(const float* x) const {
  return normalise_ ? 1 / std::max(std::sqrt(dot(x, x, rows_.features)), kLeastLength) : 1;
}

std::vector<std::vector<Neighbour>> NeighbourSearch::find(const float* x, int64_t count, int64_t k,
                                                          int threads) const {
  const int64_t n = int64_t(rows_.labels.size()), width = rows_.features;
  std::vector<std::vector<Neighbour>> out(static_cast<size_t>(count));
  for_parts(threads, count, [&](int64_t begin, int64_t end) {
    std::vector<char> broken(size_t(end - begin), 0);
    for (int64_t part = 0; part < n; part += kImagesOfPart)
      for (int64_t i = begin; i < end; ++i) {
        const double scale = inverse_length(x + i * width);
        for (int64_t r = part; r < std::min(part + kImagesOfPart, n); ++r) {
          const double similarity =
              dot(x + i * width, rows_.x + r * width, width) * scale * inverse_lengths_[size_t(r)];
          if (!std::isfinite(similarity))
            broken[size_t(i - begin)] = 1;
          else
            add(out[size_t(i)], {similarity, r}, k);
        }
      }
    for (int64_t i = begin; i < end; ++i) {
      if (broken[size_t(i - begin)]) out[size_t(i)].clear();
      std::sort(out[size_t(i)].begin(), out[size_t(i)].end(), nearer);
    }
  });
  return out;
}

std::vector<double> vote(const LabelledRows& rows, const std::vector<Neighbour>& neighbours,
                         int64_t k, double temperature) {
  std::vector<double> scores(size_t(rows.classes), 0.0);
  for (size_t i = 0; i < neighbours.size() && int64_t(i) < k; ++i)
    scores[size_t(rows.labels[size_t(neighbours[i].row)])] +=
        base::math::exp((neighbours[i].similarity - neighbours[0].similarity) / temperature);
  return scores;
}

double place_of(const std::vector<double>& scores, int64_t c) {
  if (c >= int64_t(scores.size())) return std::numeric_limits<double>::infinity();
  double before = 0;
  for (int64_t other = 0; other < int64_t(scores.size()); ++other) {
    const double score = scores[size_t(other)], own = scores[size_t(c)];
    before += double(score > own || (score == own && other < c));
  }
  return before;
}

}  // namespace eval
