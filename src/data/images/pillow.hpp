// SPDX-License-Identifier: Apache-2.0
// Transforms of RGB bytes as Pillow makes them, byte for byte (ssl.md 6.2, 6.3). Self-supervised
// recipes were published with them.
#pragma once

#include <cstdint>

#include "data/array.hpp"

namespace data::pillow {

// Pixels [height, width, 3] without gaps. The memory belongs to an Array, so 16 bytes after the end
// may be read.
struct Image {
  uint8_t* data;
  int64_t height, width;
  int64_t pixels() const { return height * width; }
  int64_t bytes() const { return pixels() * 3; }
};

struct Box {
  int64_t y, x, height, width;
  bool operator==(const Box&) const = default;
};

// ---- space (pillow_resize.cpp, pillow_filter.cpp)

// Resizes the pixels in the box, which must lie inside `from`, to fill `to`. The method is
// bilinear, with a kernel that widens when the image shrinks. `to` may not overlap `from`.
void resize(const Image& from, const Box& box, const Image& to);
void mirror(const Image& image);  // left to right
// Turns the pixels of `from` counter-clockwise about the middle, into `to` of the same size.
// Corners that nothing covers become black. 0 <= degrees < 360.
void rotate(const Image& from, double degrees, const Image& to);
// A box filter: `reach` whole neighbours on each side, and a part of the next one. Weights are in
// units of 2^-24.
struct BoxFilter {
  int64_t reach;
  uint32_t whole, part;
};
// Returns the box that, applied three times, has the variance of a Gaussian of this deviation.
BoxFilter box_filter(float radius);
// Blurs by the box filter, three times in each direction. The radius is the Gaussian's deviation.
void gaussian_blur(const Image& image, float radius);
// Blends the image with a smoothed one: 0 = smooth, 1 = unchanged, 2 = sharp.
void sharpness(const Image& image, float factor);

// ---- colour, pixel by pixel (pillow_colour.cpp, pillow_hue.cpp)

// The channels of an image one after the other, which is the layout that vector loops need.
class Planes {
 public:
  static constexpr int64_t kUnit = 128;  // a channel is padded with zeros to a multiple of this
  explicit Planes(const Image& image);   // copies the pixels
  void store(const Image& image) const;  // copies them back
  uint8_t* channel(int c) { return bytes_.data() + c * stride_; }
  const uint8_t* channel(int c) const { return bytes_.data() + c * stride_; }
  int64_t pixels() const { return pixels_; }

 private:
  int64_t pixels_, stride_;
  Bytes bytes_;
};

// A factor of 1 changes nothing; 0 gives black, the mean grey, or grey pixels.
void brightness(Planes& image, float factor);
void contrast(Planes& image, float factor);
void saturation(Planes& image, float factor);
// Replaces the channels by hue, saturation and value, and back.
void to_hsv(Planes& image);
void from_hsv(Planes& image);
// Rotates the hue by `turn` of the colour circle, in [-0.5, 0.5], in 8-bit HSV. Even 0 changes
// pixels, because HSV rounds.
void hue(Planes& image, double turn);
void grayscale(Planes& image);
void autocontrast(Planes& image);                  // each channel is spread over 0..255
void solarize(const Image& image, int threshold);  // inverts bytes from the threshold on
void posterize(const Image& image, int bits);      // keeps the upper bits

}  // namespace data::pillow
