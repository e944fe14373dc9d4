// Products and attention have no CUDA form yet; the file goes when gemm_cublaslt.cpp and attention_cudnn.cpp have come.
#include "kernels/attention.hpp"
#include "kernels/gemm.hpp"

namespace kernels {

#define MISSING(Args)                                                                                            \
  void run_cuda(const Args& args, Queue&) {                                                                      \
    base::fail(base::Exit::mesh, "{}: not written for CUDA yet; run.device = \"cpu\" has it", name_of(args.op)); \
  }
MISSING(Gemm)
MISSING(AttentionForward)
MISSING(AttentionBackward)
#undef MISSING

}  // namespace kernels
