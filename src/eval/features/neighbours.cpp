// SPDX-License-Identifier: Apache-2.0
#include "eval/features/neighbours.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.hpp"
#include "eval/fits/dense.hpp"

namespace eval {
namespace {

constexpr int64_t kRowsOfPart = 48;  // they stay in the cache while all images are compared
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

// Writes the product of each image with each row to out: [images, kRowsOfPart]. x: [images, width];
// y: [rows, width]. Two images meet three rows at a time.
void products_of(const double* x, int64_t images, const double* y, int64_t rows, int64_t width,
                 double* out) {
  constexpr int kImages = 2, kRows = 3;
  for (int64_t i = 0; i < images; i += kImages)
    for (int64_t r = 0; r < rows; r += kRows) {
      double* to = out + i * kRowsOfPart + r;
      if (i + kImages > images || r + kRows > rows) {
        for (int64_t a = i; a < std::min(i + kImages, images); ++a)
          for (int64_t b = r; b < std::min(r + kRows, rows); ++b)
            out[a * kRowsOfPart + b] = dot(x + a * width, y + b * width, width);
        continue;
      }
      double products[kImages * kRows];
      dots<kImages, kRows>(x + i * width, y + r * width, width, products);
      std::copy_n(products, kRows, to);
      std::copy_n(products + kRows, kRows, to + kRowsOfPart);
    }
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
    const int64_t images = end - begin;
    const std::vector<double> own(x + begin * width, x + end * width);
    std::vector<double> of_rows, products(size_t(images * kRowsOfPart)), scales;
    for (int64_t i = begin; i < end; ++i) scales.push_back(inverse_length(x + i * width));
    std::vector<char> broken(size_t(images), 0);
    for (int64_t first = 0; first < n; first += kRowsOfPart) {
      const int64_t rows = std::min(kRowsOfPart, n - first);
      const float* part = rows_.x + first * width;
      of_rows.assign(part, part + rows * width);
      products_of(own.data(), images, of_rows.data(), rows, width, products.data());
      for (int64_t i = 0; i < images; ++i)
        for (int64_t r = 0; r < rows; ++r) {
          const double similarity = products[size_t(i * kRowsOfPart + r)] * scales[size_t(i)] *
                                    inverse_lengths_[size_t(first + r)];
          if (!std::isfinite(similarity))
            broken[size_t(i)] = 1;
          else
            add(out[size_t(begin + i)], {similarity, first + r}, k);
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
