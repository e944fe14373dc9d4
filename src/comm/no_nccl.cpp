// SPDX-License-Identifier: Apache-2.0
// Replaces nccl_comm.cpp in programs without CUDA or without NCCL's header.
#include "base/error.hpp"
#include "comm/gpu_exchange.hpp"

namespace comm {
namespace {
[[noreturn]] void none() {
  base::fail(base::Exit::mesh,
             "this build has no NCCL: build it with CUDA and nccl.h (CMAKE_PREFIX_PATH names the "
             "folder of NCCL), or set mesh.gpu_exchange = \"mpi\"");
}
}  // namespace

bool built_with_nccl() { return false; }
std::string nccl_version() { none(); }
std::shared_ptr<NcclLane> make_nccl_lane(double) { none(); }
std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Comm>, const std::string&,
                                     std::shared_ptr<NcclLane>) {
  none();
}

}  // namespace comm
