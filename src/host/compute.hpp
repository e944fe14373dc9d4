// SPDX-License-Identifier: Apache-2.0
// Types of products: precision.compute.
#pragma once

#include <utility>

#include "base/names.hpp"

namespace host {

enum class Compute { f32, bf16, fp16, tf32 };
inline constexpr std::pair<const char*, Compute> kComputeNames[] = {{"f32", Compute::f32},
                                                                    {"bf16", Compute::bf16},
                                                                    {"fp16", Compute::fp16},
                                                                    {"tf32", Compute::tf32}};
inline const char* name_of(Compute compute) { return base::name_of(kComputeNames, compute); }

}  // namespace host
