// SPDX-License-Identifier: Apache-2.0
// The fused multiply-add. The build forbids compilers to fuse products with sums (CMakeLists.txt),
// so a sum is fused only where this function says so, and bits do not depend on the compiler.
#pragma once

namespace base {

// Returns a b + c, rounded once.
constexpr float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
constexpr double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

}  // namespace base
