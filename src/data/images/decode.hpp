// SPDX-License-Identifier: Apache-2.0
// Encoded images to u8 [height, width, 3] RGB, as TensorFlow's decoder makes them: grey becomes
// RGB, palettes are expanded, alpha is dropped (not blended), 16 bits lose their low byte, CMYK is
// multiplied out without a colour profile, rotation tags are ignored, and of an animation only the
// first frame is read. (WebP it does not read; here alpha is dropped too, and animations are
// refused.)
#pragma once

#include "data/array.hpp"

namespace data {

// A larger image is taken for an attack or a mistake: refused by its header, before memory is
// taken.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr int64_t kMostPixels = 20'000;  // fuzzers would spend their time on large images
#else
constexpr int64_t kMostPixels = 100'000'000;
#endif

// Format by its first bytes. `precise`: JPEG's accurate integer transform instead of the fast one,
// which is TensorFlow's default. Error(Exit::data) for anything that is not whole.
Array decode_image(const Bytes& file, bool precise);

// One format each; for decode_image and tests.
Array decode_png(const Bytes& file);
Array decode_jpeg(const Bytes& file, bool precise);
Array decode_webp(const Bytes& file);
Array decode_gif(const Bytes& file);
void check_image_size(const char* format, int64_t width, int64_t height);

}  // namespace data
