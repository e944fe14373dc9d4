// SPDX-License-Identifier: Apache-2.0
// Elementary functions whose results decide numbers of a run. Those of the C library differ in the
// last bit between versions and processors. A process may choose own code instead, which consists
// of + - * /, fused, sqrt and integer operations in a fixed order, so its bits are the same
// everywhere. Its errors stay below 2 units in the last place.
#pragma once

#include <atomic>
#include <cstdint>

namespace base::math {

// A call by pointer costs as much as a call of a shared library; a branch would cost more.
struct Functions {
  double (*exp)(double);
  double (*log)(double);
  double (*log1p)(double);
  double (*pow)(double, double);
  double (*sin)(double);
  double (*cos)(double);
  double (*erf)(double);
  double (*erfc)(double);
  float (*float_exp)(float);
  float (*float_log)(float);
  float (*float_sin)(float);
  float (*float_erf)(float);
  // of `count` floats; x and y may not overlap
  void (*exp_of_floats)(float* y, const float* x, int64_t count);
  void (*erf_of_floats)(float* y, const float* x, int64_t count);
};
// Own code computes functions of floats in double and rounds once.
extern const Functions kLibrary, kOwn;

inline std::atomic<const Functions*> chosen{&kLibrary};

// Chooses own code for the whole process, before anything is computed.
inline void use_own(bool own) { chosen = own ? &kOwn : &kLibrary; }
inline const Functions& functions() { return *chosen.load(std::memory_order_relaxed); }

inline double exp(double x) { return functions().exp(x); }
inline double log(double x) { return functions().log(x); }
inline double log1p(double x) { return functions().log1p(x); }
inline double pow(double x, double y) { return functions().pow(x, y); }
inline double sin(double x) { return functions().sin(x); }
inline double cos(double x) { return functions().cos(x); }
inline double erf(double x) { return functions().erf(x); }
inline double erfc(double x) { return functions().erfc(x); }
inline float exp(float x) { return functions().float_exp(x); }
inline float log(float x) { return functions().float_log(x); }
inline float sin(float x) { return functions().float_sin(x); }
inline float erf(float x) { return functions().float_erf(x); }
// Write the values of exp and erf at many floats. The bits are those of single calls. Own code
// takes a quarter of their time.
inline void exp_of(float* y, const float* x, int64_t count) {
  functions().exp_of_floats(y, x, count);
}
inline void erf_of(float* y, const float* x, int64_t count) {
  functions().erf_of_floats(y, x, count);
}

}  // namespace base::math
