// SPDX-License-Identifier: Apache-2.0
// Classes for tests, without a source.
#pragma once

#include <algorithm>
#include <vector>

#include "data/sources/classes.hpp"

namespace data::test {

// Classes 0, 1, ... by sample, named "00", "01", ...; at most a hundred.
inline Classes classes_of(const std::vector<uint32_t>& numbers) {
  const uint32_t count = *std::max_element(numbers.begin(), numbers.end()) + 1;
  ClassPiece piece;
  for (uint32_t c = 0; c < count; ++c) piece.names.push_back(fmt::format("{:02}", c));
  piece.sizes.resize(count);
  base::PackedNumbers packed;
  for (const uint32_t number : numbers) {
    packed.push_back(number);
    ++piece.sizes[number];
  }
  piece.numbers = base::Occurrences(std::move(packed), count);
  std::vector<ClassPiece> pieces;
  pieces.push_back(std::move(piece));
  return Classes(std::move(pieces));
}

}  // namespace data::test
