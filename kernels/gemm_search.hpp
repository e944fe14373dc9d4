// Which algorithm of cuBLASLt a product on the GPU runs with: the library's first proposal, the same in every run, or the one that
// was the fastest when several were timed. Choices are text, so that all ranks and later jobs take the same ones: other algorithms
// add in other orders. Sums that may go into a product's kernel (run_with_sums) do where that is faster than two ops.
#pragma once

#include <cstdint>
#include <string>

#include "device/queue.hpp"

namespace kernels {

// What choices are good for: GPU and version of the library.
std::string gemm_platform();

struct GemmSearch {
  std::string choices;                // the known ones and those of all shapes that were prepared (prepare_cuda), a line each
  int64_t shapes = 0, timed = 0;      // timed: those that `known` had no choice for
  int64_t kept = 0;                   // known choices for shapes that were not prepared: of jobs with another mesh or batch
  int64_t changed = 0;                // of the timed ones: another than the first proposal
  double first_s = 0, chosen_s = 0;   // one call of each timed shape without sums
  int64_t sums = 0, together = 0;     // of the timed ones: with sums; those whose sums go into the product's kernel
};
// Times up to eight proposals of every prepared shape that `known` (choices of before) lacks. Takes the memory of one product
// meanwhile.
GemmSearch search_gemms(const std::string& known, device::Queue& queue);

// From now on products run with these; Error(Exit::mesh) where one is not for this GPU.
void use_gemm_choices(const std::string& choices);

}  // namespace kernels
