// HDF5 files: sample i is row i of some datasets, dense arrays, texts or whole image files.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "data/source.hpp"

namespace data {

struct Hdf5Options : SourceOptions {
  std::string path;
  std::map<std::string, std::string> fields;  // field -> "DATASET: TYPE"
  void bind(config::Table& t) override;
  Spec spec() const override;
  std::vector<std::string> files() const override;
  std::unique_ptr<Source> open(const OpenContext& context) const override;
};

// "images: u8 [64, 64, 3]" -> dataset "/images" and what its rows are. Types: bytes (lists of bytes of any length),
// text, texts (several per row), u8, i32 or f32 with sizes in brackets or none for single numbers. Error(Exit::config).
std::pair<std::string, FieldSpec> parse_hdf5_field(std::string_view text);

}  // namespace data
