// SPDX-License-Identifier: Apache-2.0
// Which tensor of a file goes where: our parameter paths against their names, as [init] asks.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/init_options.hpp"
#include "checkpoint/weight_file.hpp"

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
  };
  std::vector<Load> loads;  // in the order of the file
  // What becomes of everything else. Ours, which stay random: `skipped` are in the file, `missing`
  // are not, `unmapped` were not asked for. Theirs: `unused`.
  std::vector<std::string> skipped, missing, unmapped, unused;
};

// As published (cappa.md 7.5) a path that only one side has is an error unless dont_load matches
// it, and so are a shape or type that differs: Error(Exit::checkpoint) lists all of them and says
// what to do.
InitPlan plan_init(const std::vector<Wanted>& wanted, const WeightFile& file,
                   const InitOptions& options);

}  // namespace checkpoint
