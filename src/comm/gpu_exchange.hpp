// SPDX-License-Identifier: Apache-2.0
// How ranks on GPUs exchange what lies in the GPUs' memory: by NCCL from GPU to GPU, or by MPI
// through host memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/comm.hpp"

namespace comm {

struct RankDevice {
  std::string host, gpu;  // gpu: device::gpu_uuid()
};
struct ExchangeChoice {
  bool nccl = false;
  std::string because;
};
// `ranks`: of the whole job, by rank. NCCL takes one rank per GPU, and adds in an order of its own.
ExchangeChoice choose_exchange(const std::vector<RankDevice>& ranks, SumOrder order);

// One stream for the operations of all NCCL communicators of this process, which so run in one
// order; it also watches over them: while the host waits for a GPU (device::while_waiting), an
// error of a communicator, or no operation ending for `timeout_s` seconds (0: never), ends the wait
// with Error(Exit::mesh), which names rank, communicator and operation. One at a time; main thread
// only. The communicators share it.
class NcclLane;
std::shared_ptr<NcclLane> make_nccl_lane(double timeout_s);

// "2.28.9". Error(Exit::mesh) where the library or (in builds without NCCL) the support of it is
// missing.
std::string nccl_version();

// The ranks of `group` as a communicator of their GPUs, called `name` in messages; all of them
// call. What lies in host memory, and the agreements, stay with `group`. A group of one rank needs
// no NCCL.
std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Comm> group, const std::string& name,
                                     std::shared_ptr<NcclLane> lane);

}  // namespace comm
