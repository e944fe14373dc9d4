// SPDX-License-Identifier: Apache-2.0
// Functions that GPUs compute less exactly than the C library. With CUDA_ON_CPU_PERTURB=SEED they
// are off by up to the errors that NVIDIA documents. The error depends on the argument and the seed
// alone. So a test fails if its tolerance holds only for exact functions. Roots, divisions and
// double precision stay exact.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace cuda_on_cpu {

// The seed, or 0 if functions are exact.
inline uint32_t perturbation = [] {
  const char* seed = std::getenv("CUDA_ON_CPU_PERTURB");
  return seed ? uint32_t(std::atoi(seed)) : 0;
}();

// Returns a number in [-1, 1] that follows from the argument and the seed.
inline float whim(float argument) {
  uint32_t h = (std::bit_cast<uint32_t>(argument) ^ perturbation) * 0x9e3779b1u;
  h = (h ^ h >> 15) * 0x85ebca77u;
  return float(int32_t(h ^ h >> 13)) * 0x1p-31f;
}

// Returns the result with an error of at most `ulps` units in the last place.
inline float near(float result, float argument, float ulps) {
  if (perturbation == 0 || !std::isnormal(result)) return result;
  const auto off = int32_t(std::lrint(whim(argument) * ulps));
  const float moved = std::bit_cast<float>(std::bit_cast<int32_t>(result) + off);
  return std::isnormal(moved) ? moved : result;
}

inline float near_exp(float x) { return near(std::exp(x), x, 1); }
inline float near_log(float x) { return near(std::log(x), x, 1); }
inline float near_log1p(float x) { return near(std::log1p(x), x, 1); }
inline float near_erf(float x) { return near(std::erf(x), x, 2); }

// The tanh of fused GELU: one instruction with an error of 2^-11.
inline double fast_tanh(double x) {
  return std::tanh(x) * (perturbation ? 1 + 0x1p-11 * double(whim(float(x))) : 1);
}

}  // namespace cuda_on_cpu

#define expf(x) ::cuda_on_cpu::near_exp(x)
#define logf(x) ::cuda_on_cpu::near_log(x)
#define log1pf(x) ::cuda_on_cpu::near_log1p(x)
#define erff(x) ::cuda_on_cpu::near_erf(x)
inline float __expf(float x) {
  return cuda_on_cpu::near(std::exp(x), x, 2 + std::floor(std::fabs(1.173f * x)));
}
inline float __fdividef(float x, float y) { return cuda_on_cpu::near(x / y, x * y, 2); }
inline float rsqrtf(float x) { return cuda_on_cpu::near(1 / std::sqrt(x), x, 2); }
