// SPDX-License-Identifier: Apache-2.0
// Counts of how ops ran on a GPU: by which library, by our own kernels, and how often a library had
// no kernel for a request. Graphs that repeat ops count them again.
#pragma once

#include <array>
#include <string>

#include "kernels/dispatch.hpp"

namespace kernels {

enum class Path : int {
  attention_cudnn,     // a fused kernel of cuDNN
  attention_products,  // products of cuBLASLt with a softmax between them
  attention_own,       // our own kernels, which are slower
  fallback,            // a library refused a request, so a slower path ran
  count
};
const char* name_of(Path path);

// In Queue::costs these counts follow the counts of the ops.
static_assert(int(Op::count) + int(Path::count) <= Queue::kMaxOps);

using PathCounts = std::array<int64_t, size_t(Path::count)>;
PathCounts path_counts(const Queue& queue);
PathCounts since(const PathCounts& now, const PathCounts& before);

void count_path(Path path, Queue& queue);
// Counts a fallback, and logs the first one of each `what`.
void count_fallback(const std::string& what, Queue& queue);

}  // namespace kernels
