// SPDX-License-Identifier: Apache-2.0
// Decides by [init] which tensor of a file initialises which parameter.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/init_options.hpp"
#include "checkpoint/weight_file.hpp"
#include "models/trunk_weights.hpp"

namespace checkpoint {

struct Wanted {
  std::string path;  // "encoder/pos_embedding"
  std::vector<int64_t> shape;
  bool grid = false;  // [1, g * g, width]: one row per image patch, may be resampled
};

struct InitPlan {
  struct Load {
    size_t wanted, source;  // indices
    bool resample = false;
    bool transpose = false;  // the file's [out, in] becomes [in, out]
    bool whole() const { return resample || transpose; }
  };
  std::vector<Load> loads;  // in the order of the file
  // The parameters and tensors that are not loaded. Parameters stay random: `skipped` ones are in
  // the file, `missing` ones are not, `unmapped` ones are not covered by init.map. `unused` are
  // tensors of the file.
  std::vector<std::string> skipped, missing, unmapped, unused;
};

// How the weights are used. A run that begins does not load what dont_load names, because it trains
// those parameters anew. A model that is used as it is loads all that the file has. dont_load then
// names tensors that may be missing, left over or of another shape.
enum class Use { begins, as_it_is };

// Plans the loading by the published rules (cappa.md 7.5). A path that only one side has is an
// error, unless dont_load matches it. A different shape or type is an error too.
// Error(Exit::checkpoint) lists all of them and names the remedy. It is Error(Exit::config) for a
// trunk of another form. trunk: what the model's trunk declares.
InitPlan plan_init(const std::vector<Wanted>& wanted, const WeightFile& file,
                   const InitOptions& options, const models::TrunkWeights& trunk = {},
                   Use use = Use::begins);

}  // namespace checkpoint
