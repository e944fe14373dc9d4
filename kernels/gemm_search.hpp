// SPDX-License-Identifier: Apache-2.0
// The choice of cuBLASLt's algorithm for each product: the library's first proposal, or the fastest
// of several that were timed. The first proposal is the same in every run; other algorithms add in
// other orders. Choices are text, so that all ranks and later jobs can use the same ones. Sums go
// into a product's kernel (run_with_sums) where that is faster than two ops.
#pragma once

#include <cstdint>
#include <string>

#include "device/queue.hpp"

namespace kernels {

// Returns the GPU and the version of the library, for which choices are valid.
std::string gemm_platform();

struct GemmSearch {
  // The known choices, and one for each prepared shape (prepare_cuda), a line each.
  std::string choices;
  int64_t shapes = 0, timed = 0;  // timed: shapes without a known choice
  int64_t kept = 0;               // known choices for shapes of other meshes or batches
  int64_t changed = 0;            // timed shapes whose choice is not the first proposal
  // Seconds of one call of each timed shape without sums, by first proposal and by choice.
  double first_s = 0, chosen_s = 0;
  // timed shapes with sums; those that compute them in the product's kernel
  int64_t sums = 0, together = 0;
};
// Times up to eight proposals for every prepared shape without a choice in `known`, the earlier
// choices. Needs the memory of one product meanwhile.
GemmSearch search_gemms(const std::string& known, device::Queue& queue);

// Makes products run with these choices. Throws Error(Exit::mesh) if one is not for this GPU.
void use_gemm_choices(const std::string& choices);

}  // namespace kernels
