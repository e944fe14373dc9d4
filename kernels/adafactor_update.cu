// CUDA forms of Adafactor's update and of the sum of squares that update clipping needs.
#include "kernels/adafactor.hpp"
#include "kernels/update_loop.cuh"

namespace kernels {
namespace {

// A = g * factor over y * factor over x, at element `at` of the tensor and its neighbours.
struct FactoredScaling {
  const float *factor_over_x, *factor_over_y;
  uint32_t x, middle, inner, group;  // group = y * inner
  uint32_t begin;

  static __host__ FactoredScaling of(const AdafactorScaling& a) {
    const Factored& s = a.shape;
    CHECK(s.count() <= UINT32_MAX, "a factored tensor of {} elements: the CUDA form has 2^32 - 1 at most", s.count());
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
      if (first == group) line += 1, first = 0, over_x = over_x_of(line);
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
  float threshold, divisor = 1;

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
struct RmsStep {
  ClippedGradient gradient;
  Scaling scaling;
  double sum;
  template <int N>
  __device__ void step(int64_t i) {
    if (gradient.apply) add_squares(sum, scaling(i, gradient.at<true, N>(i)));
  }
};

template <bool kAligned, class Scaling>
__global__ void __launch_bounds__(kUpdateThreads, 4) rms_blocks(RmsStep<Scaling> step, int64_t count, double* partial) {
  __shared__ BlockShared<double> shared;
  step.gradient.decide();
  step.sum = 0;
  for_update_packs<kAligned>(count, step);
  const double sum = block_sum(step.sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// f(scaling) with the scaling that the tensor has.
template <class F>
void with_scaling(const AdafactorScaling& a, const F& f) {
  if (a.v.none())
    f(FactoredScaling::of(a));
  else
    f(ElementScaling{a.v.f32(), a.beta2, a.eps});
}

}  // namespace

void run_cuda(const AdafactorUpdate& a, Queue& queue) {
  with_scaling(a.scaling, [&](auto scaling) {
    auto update = [&](auto* momentum) {
      using T = std::remove_pointer_t<decltype(momentum)>;
      const AdafactorDirection<decltype(scaling), T> direction{
          scaling,
          momentum,
          a.keep,
          a.add,
          a.rms.square.none() ? nullptr : a.rms.square.f64(),
          double(a.rms.elements),
          a.rms.threshold};
      update_elements(a.update, {a.scaling.v, a.momentum}, direction, queue);
    };
    if (a.momentum.type == DType::bf16)
      update(static_cast<uint16_t*>(a.momentum.data));
    else
      update(static_cast<float*>(a.momentum.data));
  });
}

void run_cuda(const AdafactorRms& a, Queue& queue) {
  const int64_t count = a.gradient.count, blocks = base::ceil_div(count, kUpdateCudaBlock);
  const DoublePartials partial(a.sum, blocks, 1, queue);
  with_scaling(a.scaling, [&](auto scaling) {
    using Scaling = decltype(scaling);
    const RmsStep<Scaling> step{{a.gradient, a.clip}, scaling, 0};
    auto* kernel =
        packs_fit(kUpdatePack, 0, {a.gradient, a.scaling.v}) ? rms_blocks<true, Scaling> : rms_blocks<false, Scaling>;
    launch(kernel, blocks_for(blocks, 1), dim3(kUpdateThreads), 0, queue, step, count, partial.data());
  });
  partial.add(queue);
}

}  // namespace kernels
