// SPDX-License-Identifier: Apache-2.0
// How functions of the vector loops are declared (vector_math.hpp).
#pragma once

#define KERNELS_INLINE static inline __attribute__((always_inline))
