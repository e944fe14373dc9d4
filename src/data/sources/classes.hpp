// SPDX-License-Identifier: Apache-2.0
// The classes of all samples of a source, for parts that take samples of each class and for orders
// that draw by class.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "base/packed_numbers.hpp"
#include "data/sources/source.hpp"

namespace data {

struct Classes {
  std::vector<std::string> names;  // as text, sorted
  std::vector<int64_t> sizes;      // samples of each class
  base::PackedNumbers of_sample;   // index in `names`

  int64_t count() const { return int64_t(names.size()); }
};

// Reads one field of every sample before any op, such as a label: a whole number or a text. Sources
// that can read it without the images do so. Throws Error(Exit::config) if `spec`, the source's
// fields, lacks the field or gives it another type, and Error(Exit::data) if a sample cannot be
// read.
Classes read_classes(const Source& source, const Spec& spec, const std::string& field, int threads,
                     const std::stop_token& token);

}  // namespace data
