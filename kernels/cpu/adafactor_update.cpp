// SPDX-License-Identifier: Apache-2.0
// CPU implementation of Adafactor's update, and of the sum of squares that update clipping needs.
#include <cmath>

#include "base/fused.hpp"
#include "kernels/adafactor.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/update_loop.hpp"

namespace kernels {
namespace {

// out = g * factor over y * factor over x, for elements [at, at + n) of the tensor.
void scale_factored(const AdafactorScaling& a, int64_t at, int64_t n, const float* g, float* out) {
  const Factored& s = a.shape;
  const float *fx = a.factor_over_x.f32(), *fy = a.factor_over_y.f32();
  const int64_t group = s.y * s.inner;
  for (int64_t done = 0; done < n;) {
    const int64_t e = at + done, line = e / group, first = e % group;  // line = (outer, x, middle)
    const int64_t m = std::min(n - done, group - first);
    const float* over_x =
        fx + (line / (s.x * s.middle) * s.middle + line % s.middle) * group + first;
    const float* over_y = fy + line * s.inner;
    const float* from = g + done;
    float* to = out + done;
    if (s.inner == 1) {
      const float row = *over_y;
#pragma omp simd
      for (int64_t i = 0; i < m; ++i) to[i] = from[i] * row * over_x[i];
    } else {
      for (int64_t i = 0; i < m; ++i) to[i] = from[i] * over_y[(first + i) % s.inner] * over_x[i];
    }
    done += m;
  }
}

void scale_elements(float* v, float beta2, float eps, int64_t n, const float* g, float* out) {
  const float add = 1.0f - beta2;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    v[i] = base::fused(beta2, v[i], add * base::fused(g[i], g[i], eps));
    out[i] = g[i] * (1.0f / std::sqrt(v[i]));
  }
}

void scale(const AdafactorScaling& a, int64_t begin, int64_t n, const float* g, float* out) {
  if (a.v.none())
    scale_factored(a, a.begin + begin, n, g, out);
  else
    scale_elements(a.v.f32() + begin, a.beta2, a.eps, n, g, out);
}

template <class T>
void add_momentum(T* momentum, float keep, float add, int64_t n, float* d) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    d[i] = base::fused(keep, loops::to_float(momentum[i]), add * d[i]);
    momentum[i] = loops::store_as<T>(d[i]);
  }
}

float rms_divisor(const RmsClip& a) {
  if (a.square.none()) return 1;
  return std::max(1.0f, float(std::sqrt(*a.square.f64() / double(a.elements))) / a.threshold);
}

template <class T>
void run_typed(const AdafactorUpdate& a, Queue& queue) {
  T* momentum = static_cast<T*>(a.momentum.data);
  const float divisor = rms_divisor(a.rms);
  loops::update_elements(
      a.update, queue,
      [&a, momentum, divisor](int64_t begin, int64_t n, const float* g, float* out) {
        scale(a.scaling, begin, n, g, out);
        if (divisor != 1)
          for (int64_t i = 0; i < n; ++i) out[i] /= divisor;
        if (momentum) add_momentum(momentum + begin, a.keep, a.add, n, out);
      });
}

}  // namespace

void run_cpu(const AdafactorUpdate& a, Queue& queue) {
  if (!a.momentum.none() && a.momentum.type == DType::bf16)
    run_typed<loops::Bf16>(a, queue);
  else
    run_typed<float>(a, queue);
}

void run_cpu(const AdafactorRms& a, Queue& queue) {
  const int64_t count = a.gradient.count, blocks = base::ceil_div(count, loops::kUpdateBlock);
  const float* gradient = a.gradient.f32();
  const Clip::Numbers clip = a.clip.numbers();
  if (!clip.apply) {
    *a.sum.f64() = 0;
    return;
  }
  auto* partial = static_cast<double*>(queue.scratch(size_t(blocks) * sizeof(double)));
#pragma omp parallel for schedule(static) num_threads(queue.threads()) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    alignas(64) float scaled[loops::kUpdateChunk], out[loops::kUpdateChunk];
    double sum = 0;
    const int64_t end = std::min(count, (b + 1) * loops::kUpdateBlock);
    for (int64_t at = b * loops::kUpdateBlock; at < end; at += loops::kUpdateChunk) {
      const int64_t n = std::min(loops::kUpdateChunk, end - at);
      scale(a.scaling, at, n, loops::clipped(gradient + at, clip.divisor, clip.factor, n, scaled),
            out);
      sum += loops::square_sum(out, n);
    }
    partial[b] = sum;
  }
  *a.sum.f64() = loops::plain_sum(partial, blocks);
}

}  // namespace kernels
