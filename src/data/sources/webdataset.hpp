// SPDX-License-Identifier: Apache-2.0
// Reads WebDataset: samples in plain tar shards. The members of a sample share their name up to the
// first dot.
#pragma once

#include "data/sources/shard_options.hpp"

namespace data {

struct WebdatasetOptions : ShardOptions {
  void bind(config::Table& t) override;
  Spec spec() const override;
  std::unique_ptr<Source> open(const OpenContext& context) const override;
  std::string lacks_list(const OpenContext& context) const override;
  std::string list_share(const OpenContext& context, int rank, int ranks) const override;

 private:
  // Returns the problem of one entry of `fields`, or "".
  std::string field_problem(const std::string& field, const std::string& text) const;
};

}  // namespace data
