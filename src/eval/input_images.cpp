// SPDX-License-Identifier: Apache-2.0
#include "eval/input_images.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "data/bad_sample.hpp"

namespace eval {
namespace {

constexpr const char* kImage = "image";

// Returns the file format's header (NumPy's NEP 1, version 1.0). It ends at a multiple of 64 bytes.
std::string npy_header(const std::vector<int64_t>& shape) {
  std::string text = fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}), }}",
                                 fmt::join(shape, ", "));
  constexpr size_t kStart = 10, kAlign = 64;
  text.append((kAlign - (kStart + text.size() + 1) % kAlign) % kAlign, ' ');
  text += '\n';
  std::string head("\x93NUMPY\x01\x00", 8);
  head += char(text.size() & 0xff);
  head += char(text.size() >> 8);
  return head + text;
}

std::string bytes_of(const std::vector<float>& values) {
  const auto [low, high] = std::ranges::minmax(values);
  const float offset = low < 0 ? 1.0f : 0.0f;
  const float scale = low < 0 ? 127.5f : high > 1 ? 1.0f : 255.0f;
  std::string out;
  out.reserve(values.size());
  for (float v : values)
    out += char(uint8_t(std::lround(std::clamp((v + offset) * scale, 0.0f, 255.0f))));
  return out;
}

}  // namespace

std::string input_images_npy(const data::Dataset& set, int64_t count) {
  count = std::min(count, set.size());
  const auto field = set.spec().find(kImage);
  if (count < 1 || field == set.spec().end() || !field->second.fixed() ||
      field->second.shape.size() != 3)
    return "";
  const bool bytes = field->second.type == device::DType::u8;
  if (!bytes && field->second.type != device::DType::f32) return "";
  const auto pixels = size_t(data::count_of(field->second.shape));
  std::string raw(bytes ? pixels * size_t(count) : 0, '\0');
  std::vector<float> values(bytes ? 0 : pixels * size_t(count));
  for (int64_t i = 0; i < count; ++i) {
    try {
      const data::Sample sample = set.get(i, i);
      const auto& image = std::get<data::Array>(sample.at(kImage));
      if (bytes)
        std::copy_n(image.u8(), pixels, raw.begin() + int64_t(pixels) * i);
      else
        std::copy_n(image.f32(), pixels, values.begin() + int64_t(pixels) * i);
    } catch (const data::BadSampleError&) {
      continue;
    }
  }
  std::vector<int64_t> shape = field->second.shape;
  shape.insert(shape.begin(), count);
  return npy_header(shape) + (bytes ? raw : bytes_of(values));
}

}  // namespace eval
