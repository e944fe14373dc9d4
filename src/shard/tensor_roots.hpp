// SPDX-License-Identifier: Apache-2.0
// How names of tensors begin in checkpoints.
#pragma once

#include <string>

namespace shard {

// The weights, their average ([ema]), and a teacher's weights and buffers. A run may start or stop
// keeping an average, so a file may lack it or hold an unwanted one.
inline const std::string kWeightRoot = "/params/", kAverageRoot = "/ema/",
                         kTeacherRoot = "/teacher/";

}  // namespace shard
