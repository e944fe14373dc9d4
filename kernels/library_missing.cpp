// Attention has no CUDA form yet; the file goes when attention_cudnn.cpp has come.
#include "kernels/attention.hpp"

namespace kernels {

#define MISSING(Args)                                                                                            \
  void run_cuda(const Args& args, Queue&) {                                                                      \
    base::fail(base::Exit::mesh, "{}: not written for CUDA yet; run.device = \"cpu\" has it", name_of(args.op)); \
  }
MISSING(AttentionForward)
MISSING(AttentionBackward)
#undef MISSING

}  // namespace kernels
