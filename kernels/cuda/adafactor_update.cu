// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of Adafactor's update, and of the sum of squares that update clipping needs.
#include "kernels/adafactor.hpp"
#include "kernels/cuda/update_loop.cuh"

namespace kernels {
namespace {

// A = g * factor over y * factor over x, for N neighbours from element i of the view on.
struct FactoredScaling {
  const float *factor_over_x, *factor_over_y;
  uint32_t x, middle, inner, group;  // group = y * inner
  uint32_t begin;

  static bool is_for(const AdafactorScaling& a) { return a.v.none(); }
  static FactoredScaling of(const AdafactorScaling& a) {
    const Factored& s = a.shape;
    CHECK(s.count() <= UINT32_MAX,
          "a factored tensor has {} elements; on GPUs at most 2^32 - 1 are allowed", s.count());
    return {a.factor_over_x.f32(), a.factor_over_y.f32(),   uint32_t(s.x),    uint32_t(s.middle),
            uint32_t(s.inner),     uint32_t(s.y * s.inner), uint32_t(a.begin)};
  }
  template <int N>
  __device__ Floats<N> operator()(int64_t i, const Floats<N>& g) const {
    Floats<N> out;
    const uint32_t at = begin + uint32_t(i);
    uint32_t line = at / group, first = at - line * group;  // line = (outer, x, middle)
    uint32_t over_x = over_x_of(line);
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
      if (first == group) {
        line += 1;
        first = 0;
        over_x = over_x_of(line);
      }
      const float over_y = factor_over_y[inner == 1 ? line : line * inner + first % inner];
      out[int(k)] = g[int(k)] * over_y * factor_over_x[over_x + first];
      ++first;
    }
    return out;
  }
  __device__ uint32_t over_x_of(uint32_t line) const {
    return middle == 1 ? line / x * group : (line / (x * middle) * middle + line % middle) * group;
  }
};

// A = g * v^-1/2 after v = beta2 v + (1 - beta2) (g^2 + eps).
struct ElementScaling {
  float *v, beta2, eps;

  static bool is_for(const AdafactorScaling& a) { return !a.v.none(); }
  static ElementScaling of(const AdafactorScaling& a) { return {a.v.f32(), a.beta2, a.eps}; }
  template <int N>
  __device__ Floats<N> operator()(int64_t i, const Floats<N>& g) const {
    Floats<N> all = load<true, N>(v + i, N), out;
    const float add = 1.0f - beta2;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      all[k] = fmaf(beta2, all[k], add * fmaf(g[k], g[k], eps));
      out[k] = g[k] * (1.0f / sqrtf(all[k]));
    }
    store<true>(v + i, all, N);
    return out;
  }
};

template <class Scaling, class T>
struct AdafactorDirection {
  Scaling scaling;
  T* momentum;  // may be null
  float keep, add;
  const double* square;  // may be null
  double elements;
  float threshold, divisor;

  static AdafactorDirection of(const AdafactorUpdate& a) {
    return {Scaling::of(a.scaling),
            static_cast<T*>(a.momentum.data),
            a.keep,
            a.add,
            a.rms.square.none() ? nullptr : a.rms.square.f64(),
            double(a.rms.elements),
            a.rms.threshold,
            1};
  }
  static bool is_for(const AdafactorUpdate& a) {
    return Scaling::is_for(a.scaling) && size_of(a.momentum.type) == sizeof(T);
  }
  static bool packs_fit_state(const AdafactorUpdate& a) {
    return packs_fit(kUpdatePack, 0, {a.scaling.v, a.momentum});
  }
  __device__ void decide() {
    if (square) divisor = max(1.0f, float(sqrt(*square / elements)) / threshold);
  }
  template <int N>
  __device__ Floats<N> of(int64_t i, const Floats<N>& g) const {
    Floats<N> d = scaling(i, g);
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (divisor != 1) d[k] /= divisor;
    if (!momentum) return d;
    const Floats<N> before = load<true, N>(momentum + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) d[k] = fmaf(keep, before[k], add * d[k]);
    store<true>(momentum + i, d, N);
    return d;
  }
};

template <class Scaling>
struct RmsItem {
  ClippedGradient gradient;
  Scaling scaling;
  int64_t count;
  double* partial;
};

template <class Scaling>
struct RmsStep {
  RmsItem<Scaling> a;
  double sum;
  template <int N>
  __device__ void step(int64_t i) {
    if (a.gradient.apply) add_squares(sum, a.scaling(i, a.gradient.template at<true, N>(i)));
  }
};

template <bool kAligned, class Scaling>
__global__ void __launch_bounds__(kUpdateThreads, 4)
    rms_blocks(const ManyItems<RmsItem<Scaling>> __grid_constant__ all) {
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  RmsStep<Scaling> step{all.items[share.item], 0};
  step.a.gradient.decide();
  for_update_packs<kAligned>(share.block, step.a.count, step);
  const double sum = block_sum(step.sum, shared);
  if (threadIdx.x == 0) step.a.partial[share.block] = sum;
}

DoublePartials partials_of_rms(const AdafactorRms& a, double*& scratch) {
  return DoublePartials::of(a.sum, base::ceil_div(a.gradient.count, kUpdateCudaBlock), scratch);
}

template <class Scaling>
void measure_with(std::span<const AdafactorRms> some, double* scratch, Queue& queue) {
  ManyLaunch aligned(rms_blocks<true, Scaling>, kUpdateThreads, queue);
  ManyLaunch other(rms_blocks<false, Scaling>, kUpdateThreads, queue);
  for (const AdafactorRms& a : some) {
    const DoublePartials p = partials_of_rms(a, scratch);
    if (!Scaling::is_for(a.scaling)) continue;
    (packs_fit(kUpdatePack, 0, {a.gradient, a.scaling.v}) ? aligned : other)
        .add({ClippedGradient::of(a.gradient, a.clip), Scaling::of(a.scaling), a.gradient.count,
              p.data},
             p.blocks);
  }
  aligned.start();
  other.start();
}

}  // namespace

void run_cuda(std::span<const AdafactorUpdate> all, Queue& queue) {
  update_all<
      AdafactorDirection<FactoredScaling, uint16_t>, AdafactorDirection<FactoredScaling, float>,
      AdafactorDirection<ElementScaling, uint16_t>, AdafactorDirection<ElementScaling, float>>(
      all, queue);
}

void run_cuda(std::span<const AdafactorRms> all, Queue& queue) {
  for_shared_scratch(all, [&](std::span<const AdafactorRms> some, size_t bytes) {
    auto* scratch = static_cast<double*>(queue.scratch(bytes));
    measure_with<FactoredScaling>(some, scratch, queue);
    measure_with<ElementScaling>(some, scratch, queue);
    add_partials_of(some, scratch, queue, partials_of_rms);
  });
}

}  // namespace kernels
