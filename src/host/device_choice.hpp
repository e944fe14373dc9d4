// SPDX-License-Identifier: Apache-2.0
// Which device the ranks of a job compute on.
#pragma once

#include <string>

#include "comm/mesh.hpp"
#include "device/gpu.hpp"

namespace host {

struct DeviceChoice {
  device::Kind kind = device::Kind::cpu;
  std::string text;              // for the log: which, and what "auto" found
  std::string name = "cpu";      // of this rank's
  std::string exchange = "mpi";  // how ranks exchange what lies there
};

// Why CPUs cannot compute so (precision.compute), and the way out; empty where they can.
std::string problem_on_cpus(const std::string& compute);

// `asked`: run.device. What would be chosen here, by a job of one rank; Error(Exit::mesh) for a
// device that is not here, Error(Exit::config) where it is a CPU, which cannot compute so.
DeviceChoice device_here(const std::string& asked, const std::string& compute);

// Returns the device of a job on paper: a plan is made anywhere, for either device.
DeviceChoice planned_device(const std::string& asked, const std::string& compute);

// The same for all ranks, which call together: all on GPUs or all on CPUs. Each rank takes a GPU of
// its node by its number there; ranks share them where there are more ranks. The error, on all,
// names a rank that has none, or one that cannot compute so.
DeviceChoice choose_device(comm::Session& session, const std::string& asked,
                           const std::string& compute);

// The job's mesh, whose groups exchange what lies on `device`; says in it how they do. All ranks
// call.
comm::Mesh connect_ranks(comm::Session& session, const comm::MeshOptions& options,
                         comm::MeshShape shape, comm::SumOrder order, DeviceChoice& device);

}  // namespace host
