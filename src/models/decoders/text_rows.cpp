// SPDX-License-Identifier: Apache-2.0
#include "models/decoders/text_rows.hpp"

#include <algorithm>
#include <numeric>

#include "base/narrow.hpp"

namespace models {

nn::Sequences TextRows::sequences() const {
  if (whole()) return {length, count()};
  return {length, cuts, placed};
}

void TextRows::index_in_text(std::vector<int32_t>& index) const {
  index.clear();
  for (size_t b = 0; b + 1 < offsets.size(); ++b)
    for (int32_t l = 0; l < rows_of(b); ++l) index.push_back(int32_t(int64_t(b) * length) + l);
}

void TextRows::index_in(const TextRows& other, std::vector<int32_t>& index) const {
  CHECK(offsets.size() == other.offsets.size() && length == other.length);
  index.clear();
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    CHECK(rows_of(b) <= other.rows_of(b), "example {} has {} rows, {} there", b, rows_of(b),
          other.rows_of(b));
    for (int32_t l = 0; l < rows_of(b); ++l) index.push_back(other.offsets[b] + l);
  }
}

int64_t TextRows::unit(int64_t examples, int64_t text_length) {
  return base::round_up(base::ceil_div(examples * text_length, 32), 16);
}

void TextRows::assign(const std::vector<int64_t>& counts, int64_t slices, int64_t text_length) {
  length = text_length;
  offsets.assign(1, 0);
  cuts.assign(1, 0);
  const int64_t each = int64_t(counts.size()) / slices, step = unit(each, length);
  for (int64_t j = 0; j < slices; ++j) {
    auto begin = counts.begin() + j * each, end = begin + each;
    int64_t sum = std::accumulate(begin, end, int64_t{0});
    int64_t more = std::min(base::round_up(sum, step), each * length) - sum;
    for (auto count = begin; count != end; ++count) {
      int64_t raise = std::min(more, length - *count);
      CHECK(*count >= 0 && raise >= 0, "{} rows of a text of {}", *count, length);
      more -= raise;
      offsets.push_back(offsets.back() + int32_t(*count + raise));
    }
    cuts.push_back(offsets.back());
  }
}

void TextRows::assign_all(int64_t batch, int64_t slices, int64_t text_length) {
  assign_set(0, batch, slices, text_length);
}

int64_t TextRows::sets(int64_t examples, int64_t text_length) {
  return base::ceil_div(examples * text_length, unit(examples, text_length));
}

void TextRows::assign_set(int64_t set, int64_t batch, int64_t slices, int64_t text_length) {
  length = text_length;
  offsets.assign(1, 0);
  cuts.assign(1, 0);
  const int64_t each = batch / slices, step = unit(each, length), full = each * length;
  for (int64_t j = 0; j < slices; ++j) {
    int64_t left = set == 0 ? full : (sets(each, length) - set) * step;
    for (int64_t b = 0; b < each; ++b) {
      int64_t n = std::min(left, length);
      left -= n;
      offsets.push_back(offsets.back() + int32_t(n));
    }
    cuts.push_back(offsets.back());
  }
}

}  // namespace models
