// Products that cuBLASLt has described, found algorithms for, and runs.
#pragma once

#include <map>
#include <vector>

#include "kernels/cuda/call_cublaslt.hpp"

namespace kernels::cublaslt {

constexpr int kProposals = 8;

// A product as cuBLASLt knows it: its description, the layouts of its matrices, and an algorithm if
// one was found.
struct Matmul {
  bool found = false;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Matmul describe(const Call& call);

// The library's, best first, by its own judgement, which is the same in every run. What an epilogue
// lacks comes as a status or as no proposal; of a plain product it is an error, which the caller
// tells.
std::vector<cublasLtMatmulAlgo_t> proposals(const Matmul& matmul, const Call& call, int most);

// By shape; kept to the end, because shapes are fixed for a run. Chosen: in the place of the first
// proposal. Prepared: on paper.
struct Shapes {
  std::map<Key, Matmul> matmuls;
  std::map<Key, cublasLtMatmulAlgo_t> chosen;
  std::map<Key, Call> prepared;
};
Shapes& shapes();

const Matmul& matmul_for(const Call& call);
void execute(const Call& call, const Matmul& matmul, const cublasLtMatmulAlgo_t& algorithm,
             void* workspace, Queue& queue);

}  // namespace kernels::cublaslt
