// SPDX-License-Identifier: Apache-2.0
// HDF5 files: sample i is row i of some datasets, dense arrays, texts or whole image files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/sources/shard_options.hpp"

namespace data {

struct Hdf5Options : ShardOptions {
  void bind(config::Table& t) override;
  // Fields without a type are what the dataset of the first file is; Error(Exit::data) if it cannot
  // be looked at.
  Spec spec() const override;
  std::unique_ptr<Source> open(const OpenContext& context) const override;
};

// "images: u8 [64, 64, 3]" or just "images" -> dataset "/images" and what its rows are, if that is
// said. Types: bytes (lists of bytes of any length), text, texts (several per row), u8, i32 or f32
// with sizes in brackets or none for single numbers. Error(Exit::config).
struct Hdf5Field {
  std::string dataset;
  std::optional<FieldSpec> spec;
  bool operator==(const Hdf5Field&) const = default;
};
Hdf5Field parse_hdf5_field(std::string_view text);

}  // namespace data
