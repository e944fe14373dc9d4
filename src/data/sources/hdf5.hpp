// SPDX-License-Identifier: Apache-2.0
// Reads HDF5 files: sample i is row i of some datasets (dense arrays, texts or whole image files).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/sources/shard_options.hpp"

namespace data {

struct Hdf5Options : ShardOptions {
  void bind(config::Table& t) override;
  // Fields without a type get the type of the dataset in the first file. Throws Error(Exit::data)
  // if that dataset cannot be inspected.
  Spec spec() const override;
  // Returns why the rows of a file cannot be read, or "". Reads no rows.
  std::string rows_problem(const std::string& file) const;
  std::unique_ptr<Source> open(const OpenContext& context) const override;
};

// Parses "images: u8 [64, 64, 3]" or just "images" into the dataset "/images" and the type of its
// rows, if given. Types are bytes (lists of bytes of any length), text, texts (several per row),
// and u8, i32 or f32. Sizes follow these in brackets; single numbers have none. Throws
// Error(Exit::config).
struct Hdf5Field {
  std::string dataset;
  std::optional<FieldSpec> spec;
  bool operator==(const Hdf5Field&) const = default;
};
Hdf5Field parse_hdf5_field(std::string_view text);

}  // namespace data
