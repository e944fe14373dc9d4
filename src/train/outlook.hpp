// SPDX-License-Identifier: Apache-2.0
// Estimates the time from a request to stop to the end of the process.
#pragma once

#include <cstdint>

namespace train {

// Returns the seconds of one more step and of `queued` steps that are submitted but not settled.
inline double steps_outlook_s(double slowest_step_s, int64_t queued) {
  return slowest_step_s * double(1 + queued);
}

// Returns the seconds of the save that a stop makes, and of a `pending` one that it waits for.
// `measured_s` is the time of the last save. Before the first save it is 0, and 100 MB/s plus half
// a second for the file are assumed.
inline double saves_outlook_s(double measured_s, double bytes, bool pending) {
  const double save_s = measured_s > 0 ? measured_s : 0.5 + bytes / 100e6;
  return save_s * (pending ? 2 : 1);
}

}  // namespace train
