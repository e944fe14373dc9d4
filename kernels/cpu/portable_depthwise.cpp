// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/portable_depthwise.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/gemm_operands.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/portable_product.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/cpu/window_lines.hpp"

namespace kernels {
namespace {

View floats_of(const View& x, std::vector<float>& buffer, Queue& queue) {
  return x.type == device::DType::f32 ? x : widened(x, buffer, queue);
}

// The weights of a tap side by side: [taps, channels].
std::vector<float> weights_by_tap(const View& weight, const ConvolutionShape& s, Queue& queue) {
  const View floats = floats_of(weight, wide_buffers().c, queue);
  const int64_t taps = taps_of(s);
  std::vector<float> out(size_t(weight.count));
  for (int64_t c = 0; c < s.in; ++c)
    for (int64_t t = 0; t < taps; ++t) out[size_t(t * s.in + c)] = floats.f32()[c * taps + t];
  return out;
}

// The pixels of images, as lines of channels. Pixels outside are lines of zeros.
struct PixelLines {
  PixelLines(const View& images, int64_t the_height, int64_t the_width, int64_t the_channels)
      : data(images.f32()),
        height(the_height),
        width(the_width),
        channels(the_channels),
        zeros(size_t(the_channels)) {}
  const float* at(int64_t image, int64_t y, int64_t x) const {
    if (y < 0 || y >= height || x < 0 || x >= width) return zeros.data();
    return data + ((image * height + y) * width + x) * channels;
  }

  const float* data;
  int64_t height, width, channels;
  std::vector<float> zeros;
};

struct Place {
  int64_t image, y, x;
  Place(int64_t number, int64_t height, int64_t width)
      : image(number / width / height), y(number / width % height), x(number % width) {}
};

}  // namespace

bool is_depthwise(const ConvolutionShape& s) {
  return s.groups > 1 && s.in == s.groups && s.out == s.groups && taps_of(s) <= kChain;
}

void run_depthwise(const ConvolutionForward& a, Queue& queue) {
  const ConvolutionShape& s = a.shape;
  const Window& w = s.window;
  const VectorTable& table = vector_table();
  const std::vector<float> weights = weights_by_tap(a.weight, s, queue);
  const PixelLines x(floats_of(a.x, wide_buffers().a, queue), w.height, w.width, s.in);
  const bool narrow = a.y.type != device::DType::f32;
  for_ranges(queue, w.positions(), s.flops(), 1, [&](int64_t position, int64_t end) {
    std::vector<float> sums(size_t(narrow ? s.out : 0));
    const float *pixels[kChain], *of_taps[kChain];
    for (int64_t t = 0; t < taps_of(s); ++t) of_taps[t] = weights.data() + t * s.in;
    for (; position < end; ++position) {
      const Place p(position, w.out_height(), w.out_width());
      int64_t t = 0;
      for (int64_t row = 0; row < w.kernel_height; ++row)
        for (int64_t column = 0; column < w.kernel_width; ++column)
          pixels[t++] =
              x.at(p.image, p.y * w.stride - w.padding + row, p.x * w.stride - w.padding + column);
      float* to = narrow ? sums.data() : a.y.f32() + position * s.out;
      table.product.multiply_lines({to, pixels, of_taps, s.out, t, false});
      if (narrow) table.to_bf16(static_cast<uint16_t*>(a.y.data) + position * s.out, to, s.out);
    }
  });
}

void run_depthwise(const ConvolutionBackwardData& a, Queue& queue) {
  const ConvolutionShape& s = a.shape;
  const Window& w = s.window;
  const VectorTable& table = vector_table();
  const std::vector<float> weights = weights_by_tap(a.weight, s, queue);
  const PixelLines dy(floats_of(a.dy, wide_buffers().a, queue), w.out_height(), w.out_width(),
                      s.out);
  const bool narrow = a.dx.type != device::DType::f32, add = a.write == Write::accumulate;
  for_ranges(queue, w.pixels(), s.flops(), 1, [&](int64_t pixel, int64_t end) {
    std::vector<float> sums(size_t(narrow ? s.in : 0));
    const float *positions[kChain], *of_taps[kChain];
    for (; pixel < end; ++pixel) {
      const Place p(pixel, w.height, w.width);
      // The phase that begins with this pixel has it as its first one.
      const Phase y = phase_of(p.y, w.height, w.kernel_height, w.stride, w.padding),
                  x = phase_of(p.x, w.width, w.kernel_width, w.stride, w.padding);
      int64_t t = 0;
      for (int64_t row = 0; row < y.taps; ++row)
        for (int64_t column = 0; column < x.taps; ++column) {
          positions[t] = dy.at(p.image, y.first_position + row, x.first_position + column);
          of_taps[t++] = weights.data() + ((y.last_tap - row * w.stride) * w.kernel_width +
                                           x.last_tap - column * w.stride) *
                                              s.in;
        }
      if (t == 0 && add) continue;  // no position sees the pixel
      float* to = narrow ? sums.data() : a.dx.f32() + pixel * s.in;
      table.product.multiply_lines({to, positions, of_taps, s.in, t, add && !narrow});
      if (narrow) put_bf16(static_cast<uint16_t*>(a.dx.data) + pixel * s.in, to, s.in, add, table);
    }
  });
}

void run_depthwise(const ConvolutionBackwardWeights& a, Queue& queue) {
  const ConvolutionShape& s = a.shape;
  const Window& w = s.window;
  const VectorTable& table = vector_table();
  const PixelLines x(floats_of(a.x, wide_buffers().a, queue), w.height, w.width, s.in);
  const float* const dy = floats_of(a.dy, wide_buffers().b, queue).f32();
  const int64_t taps = taps_of(s);
  for_ranges(queue, taps, s.flops(), 1, [&](int64_t t, int64_t end) {
    std::vector<float> sums(size_t(s.out));
    const float *pixels[kChain], *gradients[kChain];
    for (; t < end; ++t) {
      const int64_t row = t / w.kernel_width, column = t % w.kernel_width;
      for (int64_t begin = 0; begin < w.positions(); begin += kChain) {
        const int64_t length = std::min(kChain, w.positions() - begin);
        for (int64_t k = 0; k < length; ++k) {
          const Place p(begin + k, w.out_height(), w.out_width());
          pixels[k] =
              x.at(p.image, p.y * w.stride - w.padding + row, p.x * w.stride - w.padding + column);
          gradients[k] = dy + (begin + k) * s.out;
        }
        table.product.multiply_lines({sums.data(), pixels, gradients, s.out, length, begin > 0});
      }
      for (int64_t c = 0; c < s.out; ++c) {
        float& to = a.dw.f32()[c * taps + t];
        to = a.write == Write::accumulate ? to + sums[size_t(c)] : sums[size_t(c)];
      }
    }
  });
}

}  // namespace kernels
