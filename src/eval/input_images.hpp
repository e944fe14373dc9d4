// SPDX-License-Identifier: Apache-2.0
// Images of a set as the model gets them, for people and tools/report.
#pragma once

#include <cstdint>
#include <string>

#include "data/dataset.hpp"

namespace eval {

// Returns a .npy file of the first `count` images of the set after all its ops: u8 [images, height,
// width, channels]. "" if the set's field "image" is not an array of pixels of fixed size. Pixels
// in f32 become bytes by the range of the values of all these images: -1 to 1, 0 to 1, or 0 to 255.
// A broken sample is an area of one colour.
std::string input_images_npy(const data::Dataset& set, int64_t count);

}  // namespace eval
