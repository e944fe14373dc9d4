// SPDX-License-Identifier: Apache-2.0
// Chooses the device that the ranks of a job compute on.
#pragma once

#include <string>

#include "comm/mesh.hpp"
#include "device/gpu.hpp"
#include "host/compute.hpp"

namespace host {

// run.device.
enum class DeviceWish { automatic, cpu, cuda };
inline constexpr std::pair<const char*, DeviceWish> kDeviceWishNames[] = {
    {"auto", DeviceWish::automatic}, {"cpu", DeviceWish::cpu}, {"cuda", DeviceWish::cuda}};

struct DeviceChoice {
  device::Kind kind = device::Kind::cpu;
  std::string text;              // for the log: the device, and what "auto" found
  std::string name = "cpu";      // name of this rank's device
  std::string exchange = "mpi";  // how ranks exchange buffers of the device
};

// Returns why CPUs cannot compute in this precision.compute, and the way out; "" if they can.
std::string problem_on_cpus(Compute compute);

// Returns the device that a job of one rank would get on this machine. `asked` is run.device.
// Error(Exit::mesh) if the device is absent, Error(Exit::config) if it is a CPU that cannot compute
// in this precision.
DeviceChoice device_here(DeviceWish asked, Compute compute);

// Returns the device of a planned job. A plan needs no device, so it can be made for either kind.
DeviceChoice planned_device(DeviceWish asked, Compute compute);

// Chooses the devices of all ranks: all use GPUs or all use CPUs. All ranks call. Rank n of a node
// uses GPU n of the node; ranks share GPUs if there are more ranks than GPUs. The error on all
// ranks names a rank that has no device, or whose device cannot compute in this precision. `key` is
// the deck's key for the precision.
DeviceChoice choose_device(comm::Session& session, DeviceWish asked, Compute compute,
                           const std::string& key = "precision.compute");

// Returns the job's mesh, whose groups exchange buffers of `device`, and stores the way of exchange
// in `device`. All ranks call.
comm::Mesh connect_ranks(comm::Session& session, const comm::MeshOptions& options,
                         comm::MeshShape shape, comm::SumOrder order, DeviceChoice& device);

}  // namespace host
