// SPDX-License-Identifier: Apache-2.0
// Convolutions with the same bits on every CPU, as products of images under a window. k runs over
// the rows of the window, the pixels of a row and the channels of a pixel; for gradients of images
// the window is mirrored, and for gradients of weights k runs over positions.
#include <cstring>

#include "base/narrow.hpp"
#include "kernels/cpu/gemm_operands.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/portable.hpp"
#include "kernels/cpu/portable_depthwise.hpp"
#include "kernels/cpu/portable_product.hpp"
#include "kernels/cpu/window_lines.hpp"

namespace kernels {
namespace {

void need_type_of_cpus(const View& operand) {
  CHECK(operand.type != DType::f16, "convolutions of f16 are for GPUs");
}

// Returns the weights as floats [out, kernel_height, kernel_width, in / groups].
const float* weights_by_tap(const View& weight, const ConvolutionShape& s, const VectorTable& table,
                            Queue& queue) {
  WideBuffers& wide = wide_buffers();
  const View floats = weight.type == DType::f32 ? weight : widened(weight, wide.a, queue);
  const int64_t taps = taps_of(s), in = s.in / s.groups;
  if (taps == 1) return floats.f32();
  const float* from = floats.f32();
  float* const to = float_view(wide.b, weight.count).f32();
  for_ranges(queue, s.out, weight.count, 1, [&](int64_t o, int64_t end) {
    constexpr int64_t kInputs = 64;
    const float* lines[kInputs];
    for (; o < end; ++o)
      for (int64_t first = 0; first < in; first += kInputs) {
        const float* const inputs = from + (o * in + first) * taps;
        float* const out = to + o * taps * in + first;
        const int64_t count = std::min(kInputs, in - first), whole = count / 8 * 8;
        for (int64_t i = 0; i < whole; ++i) lines[i] = inputs + i * taps;
        table.f32.pack_lines({out, lines, whole, taps, in});
        for (int64_t t = 0; t < taps; ++t)
          for (int64_t i = whole; i < count; ++i) out[t * in + i] = inputs[i * taps + t];
      }
  });
  return to;
}

// Fills `length` elements of a line.
template <class Segment>
void copy_segment(float* to, const Segment& s, int64_t length, const VectorTable& table) {
  if (s.count < length) {
    std::fill(to, to + s.before, 0.0f);
    std::fill(to + s.before + s.count, to + length, 0.0f);
  }
  copy_floats(to + s.before, s.from, s.count, table);
}

// Copies the lines of some places for part of k, which runs over the lines of the window.
template <class T>
OperandRows copy_places(const WindowLines<T>& w, const VectorTable& table, const OperandPart& part,
                        float* copy) {
  const int64_t size = w.line_size();
  for (int64_t k = part.begin, end = part.begin + part.length; k < end;) {
    const int64_t line = k / size, begin = k % size, length = std::min(size - begin, end - k);
    Places<T> place(w, part.first);
    float* to = copy + (k - part.begin);
    for (int64_t i = 0; i < part.count; ++i, place.next(), to += kChain)
      copy_segment(to, place.at(line, begin, length), length, table);
    k += length;
  }
  return {copy, kChain, 1};
}

// y = images under the window . weights
template <class T>
class OutputPanels : public PortableOperands {
 public:
  OutputPanels(const WindowLines<T>& lines, const float* weights, int64_t k,
               const VectorTable& table, View y, int64_t stride)
      : lines_(lines), weights_(weights), k_(k), table_(table), y_(y), stride_(stride) {}

  OperandRows rows(const OperandPart& part, float* copy) const override {
    return copy_places(lines_, table_, part, copy);
  }
  void pack_columns(float* panels, int64_t width, const OperandPart& part) const override {
    static const float zeros[kChain] = {};
    const float* at[kMostColumns];
    for (int64_t first = 0; first < part.count; first += width) {
      for (int64_t i = 0; i < width; ++i)
        at[i] =
            first + i < part.count ? weights_ + (part.first + first + i) * k_ + part.begin : zeros;
      table_.f32.pack_lines({panels + first * part.length, at, width, part.length, width});
    }
  }
  void finish(const ProductBlock& b, float* sums, int64_t stride) const override {
    if (y_.type == DType::f32) return;
    uint16_t* y = static_cast<uint16_t*>(y_.data) + b.row * stride_ + b.column;
    for (int64_t r = 0; r < b.rows; ++r)
      table_.to_bf16(y + r * stride_, sums + r * stride, b.columns);
  }

 private:
  const WindowLines<T>& lines_;
  const float* weights_;
  int64_t k_;
  const VectorTable& table_;
  View y_;
  int64_t stride_;
};

// dx = positions that see a pixel . weights
template <class T>
class InputPanels : public PortableOperands {
 public:
  InputPanels(const WindowLines<T>& lines, const float* weights, const ConvolutionShape& shape,
              const Phase& y, const Phase& x, View dx, Write write, const VectorTable& table)
      : lines_(lines),
        weights_(weights),
        shape_(shape),
        y_(y),
        x_(x),
        dx_(dx),
        write_(write),
        table_(table) {}

  OperandRows rows(const OperandPart& part, float* copy) const override {
    return copy_places(lines_, table_, part, copy);
  }
  void pack_columns(float* panels, int64_t width, const OperandPart& part) const override {
    const float* at[kChain];
    const int64_t out = lines_.channels, in = shape_.in / shape_.groups, taps = taps_of(shape_);
    for (int64_t k = 0; k < part.length; ++k) {
      const int64_t pixel = (part.begin + k) / out, o = (part.begin + k) % out;
      const int64_t row = y_.last_tap - pixel / x_.taps * shape_.window.stride,
                    column = x_.last_tap - pixel % x_.taps * shape_.window.stride;
      at[k] = weights_ + (o * taps + row * shape_.window.kernel_width + column) * in + part.first;
    }
    table_.f32.pack_columns({panels, at, width, part.count, part.length});
  }
  void finish(const ProductBlock& b, float* sums, int64_t stride) const override {
    if (is_direct()) return;
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t place = b.row + r, x = place % x_.pixels, y = place / x_.pixels % y_.pixels,
                    image = place / x_.pixels / y_.pixels, step = shape_.window.stride;
      const int64_t pixel =
          (image * shape_.window.height + y_.first + y * step) * shape_.window.width + x_.first +
          x * step;
      put(pixel * shape_.in + b.column, sums + r * stride, b.columns);
    }
  }
  // Sums go straight into dx.
  bool is_direct() const { return dx_.type == DType::f32 && shape_.window.stride == 1; }

 private:
  void put(int64_t at, float* sums, int64_t count) const {
    if (dx_.type == DType::f32) {
      float* dx = dx_.f32() + at;
      for (int64_t i = 0; i < count; ++i)
        dx[i] = write_ == Write::accumulate ? dx[i] + sums[i] : sums[i];
      return;
    }
    put_bf16(static_cast<uint16_t*>(dx_.data) + at, sums, count, write_ == Write::accumulate,
             table_);
  }

  const WindowLines<T>& lines_;
  const float* weights_;
  const ConvolutionShape& shape_;
  const Phase &y_, &x_;
  View dx_;
  Write write_;
  const VectorTable& table_;
};

// dw transposed = images under the window, transposed . dy. The rows are the lines of the window.
template <class T>
class WeightPanels : public PortableOperands {
 public:
  WeightPanels(const WindowLines<T>& lines, const T* dy, int64_t out, const VectorTable& table,
               const ActivationLoops<T>& loops)
      : lines_(lines), dy_(dy), out_(out), table_(table), loops_(loops) {}

  OperandRows rows(const OperandPart& part, float* copy) const override {
    const int64_t size = lines_.line_size();
    for (int64_t row = part.first, end = part.first + part.count; row < end;) {
      const int64_t line = row / size, begin = row % size,
                    count = std::min(size - begin, end - row);
      Places<T> place(lines_, part.begin);
      float* to = copy + (row - part.first);
      for (int64_t k = 0; k < part.length; ++k, place.next(), to += part.count)
        copy_segment(to, place.at(line, begin, count), count, table_);
      row += count;
    }
    return {copy, 1, part.count};
  }
  void pack_columns(float* panels, int64_t width, const OperandPart& part) const override {
    const T* at[kChain];
    for (int64_t k = 0; k < part.length; ++k) at[k] = dy_ + (part.begin + k) * out_ + part.first;
    loops_.pack_columns({panels, at, width, part.count, part.length});
  }
  void finish(const ProductBlock&, float*, int64_t) const override {}

 private:
  const WindowLines<T>& lines_;
  const T* dy_;
  int64_t out_;
  const VectorTable& table_;
  const ActivationLoops<T>& loops_;
};

// dw[out][in][taps] = (+=) sums[taps][in][out]. A line of a cache holds kLine outputs of sums, so
// that many rows of dw are written side by side. Lines of sums are far apart, so they are asked for
// in advance.
void put_weights(const float* sums, float* dw, int64_t out, int64_t in, int64_t taps, Write write,
                 Queue& queue) {
  constexpr int64_t kLine = 16, kAhead = 8;
  for_ranges(queue, out, out * in * taps, kLine, [&](int64_t first, int64_t end) {
    for (; first < end; first += kLine)
      for (int64_t i = 0; i < in; ++i)
        for (int64_t t = 0; t < taps; ++t) {
          const float* const from = sums + (t * in + i) * out;
          if (i + kAhead < in) __builtin_prefetch(from + kAhead * out + first);
          for (int64_t o = first; o < std::min(first + kLine, end); ++o) {
            float& to = dw[(o * in + i) * taps + t];
            to = write == Write::accumulate ? to + from[o] : from[o];
          }
        }
  });
}

// The lines of x that the window of group g covers.
template <class T>
WindowLines<T> lines_of_input(const View& x, const ConvolutionShape& s, int64_t group) {
  const Window& w = s.window;
  return {.images = static_cast<const T*>(x.data) + group * (s.in / s.groups),
          .height = w.height,
          .width = w.width,
          .pixel = s.in,
          .places_y = w.out_height(),
          .places_x = w.out_width(),
          .step = w.stride,
          .first_y = -w.padding,
          .first_x = -w.padding,
          .rows = w.kernel_height,
          .columns = w.kernel_width,
          .channels = s.in / s.groups};
}

template <class T>
void run_phase(const ConvolutionBackwardData& a, const float* weights, int64_t group,
               const Phase& y, const Phase& x, const VectorTable& table, Queue& queue) {
  const ConvolutionShape& s = a.shape;
  const Window& w = s.window;
  const int64_t out = s.out / s.groups, in = s.in / s.groups;
  const WindowLines<T> lines{.images = static_cast<const T*>(a.dy.data) + group * out,
                             .height = w.out_height(),
                             .width = w.out_width(),
                             .pixel = s.out,
                             .places_y = y.pixels,
                             .places_x = x.pixels,
                             .step = 1,
                             .first_y = y.first_position,
                             .first_x = x.first_position,
                             .rows = y.taps,
                             .columns = x.taps,
                             .channels = out};
  View dx = a.dx;
  dx.data = static_cast<char*>(dx.data) + group * in * device::size_of(dx.type);
  const InputPanels<T> panels(lines, weights + group * out * taps_of(s) * in, s, y, x, dx, a.write,
                              table);
  run_portable({.m = w.batch * y.pixels * x.pixels,
                .n = in,
                .k = y.taps * x.taps * out,
                .c = panels.is_direct() ? dx.f32() : nullptr,
                .ldc = s.in,
                .add = a.write == Write::accumulate},
               panels, table, queue);
}

}  // namespace

void run_portable(const ConvolutionForward& a, Queue& queue) {
  need_type_of_cpus(a.x);
  const ConvolutionShape& s = a.shape;
  if (is_depthwise(s)) return run_depthwise(a, queue);
  if (s.is_product()) return run_portable(product_of(a), queue);
  const VectorTable& table = vector_table();
  const float* weights = weights_by_tap(a.weight, s, table, queue);
  const int64_t out = s.out / s.groups, k = taps_of(s) * (s.in / s.groups);
  table.with(a.x.type, [&](const auto&, auto element) {
    using T = decltype(element);
    for (int64_t g = 0; g < s.groups; ++g) {
      const WindowLines<T> lines = lines_of_input<T>(a.x, s, g);
      View y = a.y;
      y.data = static_cast<char*>(y.data) + g * out * device::size_of(y.type);
      const OutputPanels<T> panels(lines, weights + g * out * k, k, table, y, s.out);
      run_portable({.m = s.window.positions(),
                    .n = out,
                    .k = k,
                    .c = y.type == DType::f32 ? y.f32() : nullptr,
                    .ldc = s.out},
                   panels, table, queue);
    }
  });
}

void run_portable(const ConvolutionBackwardData& a, Queue& queue) {
  need_type_of_cpus(a.dy);
  const ConvolutionShape& s = a.shape;
  if (is_depthwise(s)) return run_depthwise(a, queue);
  const Window& w = s.window;
  if (s.is_product()) return run_portable(product_of(a), queue);
  const VectorTable& table = vector_table();
  const float* weights = weights_by_tap(a.weight, s, table, queue);
  auto phase_y = [&](int64_t first) {
    return phase_of(first, w.height, w.kernel_height, w.stride, w.padding);
  };
  auto phase_x = [&](int64_t first) {
    return phase_of(first, w.width, w.kernel_width, w.stride, w.padding);
  };
  // Pixels that no position sees have a gradient of 0.
  if (a.write == Write::overwrite && w.stride > std::min(w.kernel_height, w.kernel_width))
    for_ranges(queue, a.dx.bytes(), a.dx.count, 64, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(a.dx.data) + begin, 0, size_t(end - begin));
    });
  table.with(a.dy.type, [&](const auto&, auto element) {
    for (int64_t g = 0; g < s.groups; ++g)
      for (int64_t y = 0; y < std::min(w.stride, w.height); ++y)
        for (int64_t x = 0; x < std::min(w.stride, w.width); ++x)
          if (const Phase py = phase_y(y), px = phase_x(x); py.taps && px.taps)
            run_phase<decltype(element)>(a, weights, g, py, px, table, queue);
  });
}

void run_portable(const ConvolutionBackwardWeights& a, Queue& queue) {
  need_type_of_cpus(a.x);
  const ConvolutionShape& s = a.shape;
  if (is_depthwise(s)) return run_depthwise(a, queue);
  // Outputs are the rows of the product. Fewer of them would not fill the tiles.
  constexpr int64_t kManyOutputs = 64;
  if (s.is_product() && s.out >= kManyOutputs) return run_portable(product_of(a), queue);
  const VectorTable& table = vector_table();
  const int64_t out = s.out / s.groups, in = s.in / s.groups, taps = taps_of(s);
  table.with(a.x.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    for (int64_t g = 0; g < s.groups; ++g) {
      const WindowLines<T> lines = lines_of_input<T>(a.x, s, g);
      float* const sums = float_view(wide_buffers().c, out * in * taps).f32();
      const WeightPanels<T> panels(lines, static_cast<const T*>(a.dy.data) + g * out, s.out, table,
                                   loops);
      run_portable({.m = in * taps, .n = out, .k = s.window.positions(), .c = sums, .ldc = out},
                   panels, table, queue);
      put_weights(sums, a.dw.f32() + g * out * in * taps, out, in, taps, a.write, queue);
    }
  });
}

}  // namespace kernels
