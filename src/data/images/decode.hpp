// SPDX-License-Identifier: Apache-2.0
// Decodes images to u8 [height, width, 3] RGB like TensorFlow's decoder. Grey becomes RGB, palettes
// are expanded, alpha is dropped (not blended), and 16 bits lose their low byte. CMYK is multiplied
// out without a colour profile, rotation tags are ignored, and only the first frame of an animation
// is read. TensorFlow does not read WebP; here its alpha is dropped too, and animated WebP is
// refused.
#pragma once

#include "data/array.hpp"

namespace data {

// A larger image counts as an attack or a mistake. It is refused by its header, before memory is
// allocated.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr int64_t kMostPixels = 20'000;  // fuzzers would spend their time on large images
#else
constexpr int64_t kMostPixels = 100'000'000;
#endif

// Finds the format by the first bytes. `precise` selects JPEG's accurate integer transform instead
// of the fast one, which is TensorFlow's default. Throws Error(Exit::data) for anything that is not
// a whole image.
Array decode_image(const Bytes& file, bool precise);

// Decoders of one format each, for decode_image and tests.
Array decode_png(const Bytes& file);
Array decode_jpeg(const Bytes& file, bool precise);
Array decode_webp(const Bytes& file);
Array decode_gif(const Bytes& file);
void check_image_size(const char* format, int64_t width, int64_t height);

}  // namespace data
