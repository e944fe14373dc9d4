// SPDX-License-Identifier: Apache-2.0
// How far the clocks of ranks differ. No rank leaves a barrier before all have entered it, so each
// barrier bounds the difference, and the shortest ones bound it best.
#pragma once

#include <vector>

#include "comm/comm.hpp"

namespace comm {

// An interval that contains the difference of two clocks, in seconds.
struct Offset {
  double least = -1e300, most = 1e300;
  double middle() const { return (least + most) / 2; }
};
// Readings of one rank's clock before and after a barrier of all ranks.
struct Readings {
  double before = 0, after = 0;
};
// Returns the readings of all ranks: [i][r] is from rank r at barrier i. All ranks call.
std::vector<std::vector<Readings>> read_clocks(Comm& world, int barriers, double (*now_s)());
// Returns how far each rank's clock is ahead of rank 0's.
std::vector<Offset> clock_offsets(const std::vector<std::vector<Readings>>& rounds);

}  // namespace comm
