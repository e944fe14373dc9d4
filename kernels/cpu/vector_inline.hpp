// SPDX-License-Identifier: Apache-2.0
#pragma once

#define KERNELS_INLINE static inline __attribute__((always_inline))
