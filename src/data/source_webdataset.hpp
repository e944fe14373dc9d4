// WebDataset: samples in plain tar shards, members of a sample share their name up to the first dot.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "data/source.hpp"

namespace data {

struct WebdatasetOptions : SourceOptions {
  std::string path;
  std::map<std::string, std::string> fields;
  void bind(config::Table& t) override;
  Spec spec() const override;
  std::unique_ptr<Source> open(const OpenContext& context) const override;
  std::vector<std::string> files() const override;
};

}  // namespace data
