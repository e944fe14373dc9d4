// SPDX-License-Identifier: Apache-2.0
#include "host/device_choice.hpp"

#include <cstdlib>

namespace host {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw base::Error(
      base::Exit::mesh,
      fmt::format("run.device = \"cuda\": CUDA cannot be used here: {}; use \"cpu\" or \"auto\"",
                  why),
      true);
}

DeviceChoice on_cpus(Compute compute, const std::string& none_because) {
  if (std::string problem = problem_on_cpus(compute); !problem.empty())
    throw base::Error(base::Exit::config,
                      fmt::format("precision.compute: {} ({})", problem, none_because), true);
  return {device::Kind::cpu, fmt::format("cpu (auto: {})", none_because)};
}

// Returns why the GPU with this number cannot compute in this precision; "" if it can. Tensor cores
// support bf16 and tf32 from compute capability 8.0 on.
std::string problem_on_gpu(int index, Compute compute) {
  if (compute != Compute::bf16 && compute != Compute::tf32) return "";
  const int capability = device::gpu_capability(index);
  if (capability < 80)
    return fmt::format("{} is of compute capability {}.{}, which has no {} products",
                       device::gpu_name(), capability / 10, capability % 10, name_of(compute));
  const char* forced = std::getenv("NVIDIA_TF32_OVERRIDE");
  if (compute == Compute::tf32 && forced && std::string(forced) == "0")
    return "NVIDIA_TF32_OVERRIDE=0 in the environment forbids it";
  return "";
}

}  // namespace

std::string problem_on_cpus(Compute compute) {
  if (compute != Compute::tf32 && compute != Compute::fp16) return "";
  return fmt::format("\"{}\" is computed on GPUs only; use {} on CPUs, or run.device = \"cuda\"",
                     name_of(compute),
                     compute == Compute::tf32 ? "\"f32\" (more exact)" : "\"bf16\" or \"f32\"");
}

DeviceChoice device_here(DeviceWish asked, Compute compute) {
  if (asked == DeviceWish::cpu) return {device::Kind::cpu, "cpu"};
  const device::Gpus gpus = device::find_gpus();
  if (gpus.count > 0)
    return {device::Kind::cuda,
            asked == DeviceWish::automatic ? "cuda (auto: there is a GPU)" : "cuda",
            device::gpu_name()};
  if (asked == DeviceWish::cuda) refuse(gpus.none_because);
  return on_cpus(compute, gpus.none_because);
}

DeviceChoice planned_device(DeviceWish asked, Compute compute) {
  if (asked == DeviceWish::cuda) return {device::Kind::cuda, "cuda (one rank per GPU)"};
  if (asked == DeviceWish::automatic && !problem_on_cpus(compute).empty())
    return {device::Kind::cuda, fmt::format("cuda (auto: CPUs have no {})", name_of(compute))};
  return device_here(asked, compute);
}

DeviceChoice choose_device(comm::Session& session, DeviceWish asked, Compute compute,
                           const std::string& key) {
  if (asked == DeviceWish::cpu) return device_here(asked, compute);
  comm::Comm& world = session.world();
  const device::Gpus gpus = device::find_gpus();
  const std::vector<std::string> all = world.gather_text(gpus.count > 0 ? "" : gpus.none_because);
  const std::vector<std::string> hosts = world.gather_text(session.host());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::string why = all.size() == 1
                                ? all[rank]
                                : fmt::format("{} (rank {} on {})", all[rank], rank, hosts[rank]);
    if (asked == DeviceWish::cuda) refuse(why);
    return on_cpus(compute, why);
  }
  const int64_t most = world.max(int64_t((session.local_size() + gpus.count - 1) / gpus.count));
  const int index = session.local_rank() % gpus.count;
  device::use_gpu(index);
  const std::vector<std::string> problems = world.gather_text(problem_on_gpu(index, compute));
  for (size_t rank = 0; rank < problems.size(); ++rank)
    if (!problems[rank].empty())
      throw base::Error(base::Exit::mesh,
                        fmt::format("{} = \"{}\": rank {} on {}: {}; use another GPU or \"f32\"",
                                    key, name_of(compute), rank, hosts[rank], problems[rank]),
                        true);
  return {
      device::Kind::cuda,
      fmt::format("cuda{}{}", asked == DeviceWish::automatic ? " (auto: every rank has a GPU)" : "",
                  most > 1 ? fmt::format(", up to {} ranks share a GPU", most) : ""),
      fmt::format("{} {}", index, device::gpu_name())};
}

comm::Mesh connect_ranks(comm::Session& session, const comm::MeshOptions& options,
                         comm::MeshShape shape, comm::SumOrder order, DeviceChoice& device) {
  comm::Mesh mesh = comm::make_mesh(session, shape, order);
  if (device.kind == device::Kind::cuda)
    device.exchange = comm::connect_gpus(mesh, options, order, session.host());
  else
    device.exchange = session.exchange_text();
  return mesh;
}

}  // namespace host
