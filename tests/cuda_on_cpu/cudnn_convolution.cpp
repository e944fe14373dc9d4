// SPDX-License-Identifier: Apache-2.0
// Computes convolutions of the emulated cuDNN with the plainest loops, in double precision.
#include "cudnn_convolution.hpp"

#include <vector>

#include "watch.hpp"

namespace cuda_on_cpu {
namespace {

int64_t count_of(const DnnTensor& t) { return t.sizes[0] * t.sizes[1] * t.sizes[2] * t.sizes[3]; }

// True if the channels of a pixel are adjacent and there are no gaps.
bool is_channels_last(const DnnTensor& t) {
  const int64_t c = t.sizes[1], h = t.sizes[2], w = t.sizes[3];
  return t.strides == std::array<int64_t, 4>{c * h * w, 1, c * w, c} && count_of(t) > 0;
}

float round_to_tf32(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::isfinite(x) ? std::bit_cast<float>((u + 0xFFF + (u >> 13 & 1)) & ~0x1FFFu) : x;
}

std::vector<float> operand(const DnnTensor& t, DnnEngine engine) {
  std::vector<float> out(size_t(count_of(t)));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = t.read(int64_t(i));
    if (engine == DnnEngine::tensor_core && t.type == CUDNN_DATA_FLOAT)
      out[i] = round_to_tf32(out[i]);
  }
  return out;
}

// Calls f(x, w, y) with the offsets of the operands and the result, for every product of a pixel
// with a weight. x and w are offsets of a group's first channel.
template <class F>
void for_each_product(const DnnConvolution& a, const F& f) {
  const auto &x = a.x.sizes, &w = a.w.sizes, &y = a.y.sizes;
  const int64_t groups = x[1] / w[1];
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t row = 0; row < y[2]; ++row)
      for (int64_t column = 0; column < y[3]; ++column)
        for (int64_t i = 0; i < w[2]; ++i)
          for (int64_t j = 0; j < w[3]; ++j) {
            const int64_t h = row * a.strides[0] - a.padding[0] + i,
                          v = column * a.strides[1] - a.padding[1] + j;
            if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) continue;
            for (int64_t o = 0; o < w[0]; ++o)
              f(((n * x[2] + h) * x[3] + v) * x[1] + o / (w[0] / groups) * w[1],
                ((o * w[2] + i) * w[3] + j) * w[1], ((n * y[2] + row) * y[3] + column) * y[1] + o);
          }
}

}  // namespace

bool DnnConvolution::is_valid() const {
  if (!is_channels_last(x) || !is_channels_last(w) || !is_channels_last(y)) return false;
  if (x.sizes[1] % w.sizes[1] || w.sizes[0] % (x.sizes[1] / w.sizes[1])) return false;
  if (x.sizes[0] != y.sizes[0] || y.sizes[1] != w.sizes[0]) return false;
  for (size_t d : {0u, 1u})
    if (y.sizes[2 + d] != (x.sizes[2 + d] + 2 * padding[d] - w.sizes[2 + d]) / strides[d] + 1)
      return false;
  return true;
}

DnnTensor& DnnConvolution::result() {
  return operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? y
         : operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? x
                                                                                     : w;
}

bool DnnConvolution::has_plans() {
  const DnnTensor &to = result(), &a = &to == &x ? y : x, &b = &to == &w ? y : w;
  if (a.type != b.type) return false;
  if (!keeps_floats) return to.type == a.type;
  if (dnn_refuses("floats")) return false;
  return to.type == CUDNN_DATA_FLOAT && x.sizes[1] % 8 == 0 && y.sizes[1] % 8 == 0 && beta == 0;
}

bool DnnConvolution::has_data() const { return x.has_data() && w.has_data() && y.has_data(); }

void DnnConvolution::run() {
  const bool forward = operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
             data = operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  const DnnTensor& to = result();
  for (const DnnTensor* t : {&x, &w, &y}) {
    const size_t bytes = size_t(count_of(*t)) * t->element_bytes();
    if (t == &to)
      writes(t->data, bytes);
    else
      reads(t->data, bytes);
  }
  std::vector<double> sums(size_t(count_of(to)));
  const int64_t channels = w.sizes[1];
  std::vector<float> xs, ws, ys;
  if (&to != &x) xs = operand(x, engine);
  if (&to != &w) ws = operand(w, engine);
  if (&to != &y) ys = operand(y, engine);
  for_each_product(*this, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
    if (forward) {
      double sum = 0;
      for (int64_t c = 0; c < channels; ++c)
        sum += double(xs[size_t(at_x + c)]) * double(ws[size_t(at_w + c)]);
      sums[size_t(at_y)] += sum;
    } else {
      const double dy = double(ys[size_t(at_y)]);
      const float* from = data ? &ws[size_t(at_w)] : &xs[size_t(at_x)];
      double* sum = &sums[size_t(data ? at_x : at_w)];
      for (int64_t c = 0; c < channels; ++c) sum[c] += dy * double(from[c]);
    }
  });
  static int calls = 0;
  const double error = engine == DnnEngine::unordered ? 1 + 0.001 * (++calls % 5) : 1;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double before = beta != 0 ? double(beta) * double(to.read(int64_t(i))) : 0;
    to.write(int64_t(i), float(double(alpha) * error * sums[i] + before));
  }
}

}  // namespace cuda_on_cpu
