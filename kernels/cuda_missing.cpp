// Ops that have no CUDA form yet. A line goes when its .cu comes; the file goes with the last line.
#include "kernels/adafactor.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/attention.hpp"
#include "kernels/cast.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/patchify.hpp"
#include "kernels/softmax_xent.hpp"
#include "kernels/square_sums.hpp"

namespace kernels {

#define MISSING(Args)                         \
  void run_cuda(const Args& args, Queue&) { \
    base::fail(base::Exit::mesh, "{}: not written for CUDA yet; run.device = \"cpu\" has it", name_of(args.op)); \
  }
MISSING(SquareSums)
MISSING(AddSums)
MISSING(AdafactorSums)
MISSING(AdafactorFactors)
MISSING(AdafactorRms)
MISSING(AdafactorUpdate)
MISSING(AdamwUpdate)
MISSING(MomentumUpdate)
MISSING(ApplyUpdate)
#undef MISSING

}  // namespace kernels
