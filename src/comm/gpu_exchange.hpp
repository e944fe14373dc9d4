// SPDX-License-Identifier: Apache-2.0
// Exchange of GPU memory between ranks: by NCCL from GPU to GPU, or by MPI through host memory.
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
// Chooses the exchange for all ranks of the job; `ranks` is ordered by rank. NCCL supports one rank
// per GPU, and sums in its own order.
ExchangeChoice choose_exchange(const std::vector<RankDevice>& ranks, SumOrder order);

// One stream for the operations of all NCCL communicators of this process, so that they run in one
// order. It also watches them while the host waits for a GPU (device::while_waiting). The wait ends
// with Error(Exit::mesh) after an error of a communicator, or if no operation ends for `timeout_s`
// seconds (0 = no limit). The error names rank, communicator and operation. There is one lane per
// process, on the main thread; the communicators share it.
class NcclLane;
std::shared_ptr<NcclLane> make_nccl_lane(double timeout_s);

bool built_with_nccl();

// Returns "2.28.9", for example. Throws Error(Exit::mesh) if the library is missing or the build
// has no NCCL.
std::string nccl_version();

// Makes a communicator of the GPUs of the ranks of `group`, called `name` in messages. All ranks of
// the group call. Host memory and agreements still use `group`. A group of one rank needs no NCCL.
std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Comm> group, const std::string& name,
                                     std::shared_ptr<NcclLane> lane);

}  // namespace comm
