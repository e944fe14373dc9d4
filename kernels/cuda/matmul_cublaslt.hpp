// SPDX-License-Identifier: Apache-2.0
// Products in cuBLASLt's terms: their descriptions, the choice of an algorithm, and their runs.
#pragma once

#include <map>
#include <vector>

#include "kernels/cuda/call_cublaslt.hpp"

namespace kernels::cublaslt {

constexpr int kProposals = 8;  // of the search for each product, at most

// A product as cuBLASLt sees it: its description, the layouts of its matrices, and an algorithm if
// one was found.
struct Matmul {
  bool found = false;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Matmul describe(const Call& call);

// Returns at most `most` algorithms, the library's best estimate first. The list is the same in
// every run. It is empty if the library has no kernel with the epilogue. For a plain product that
// is an error, which the caller reports.
std::vector<cublasLtMatmulAlgo_t> proposals(const Matmul& matmul, const Call& call, int most);

// Products by shape. They are kept to the end, because the shapes of a run are fixed.
struct Shapes {
  std::map<Key, Matmul> matmuls;
  std::map<Key, cublasLtMatmulAlgo_t> chosen;  // replaces the first proposal
  std::map<Key, Call> prepared;                // by a plan
};
Shapes& shapes();

// Returns the product of this call. The first use describes it and finds an algorithm.
const Matmul& matmul_for(const Call& call);
void execute(const Call& call, const Matmul& matmul, const cublasLtMatmulAlgo_t& algorithm,
             void* workspace, Queue& queue);

}  // namespace kernels::cublaslt
