#include "train/device_choice.hpp"

namespace train {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw base::Error(base::Exit::mesh,
                    fmt::format("run.device = \"cuda\": CUDA cannot be used here: {}; use \"cpu\" or \"auto\"", why), true);
}

}  // namespace

DeviceChoice device_here(const std::string& asked) {
  if (asked == "cpu") return {device::Kind::cpu, "cpu"};
  const device::Gpus gpus = device::find_gpus();
  if (gpus.count > 0) return {device::Kind::cuda, asked == "auto" ? "cuda (auto: there is a GPU)" : "cuda", device::gpu_name()};
  if (asked == "cuda") refuse(gpus.none_because);
  return {device::Kind::cpu, fmt::format("cpu (auto: {})", gpus.none_because)};
}

DeviceChoice choose_device(comm::Session& session, const std::string& asked) {
  if (asked == "cpu") return device_here(asked);
  comm::Comm& world = session.world();
  const device::Gpus gpus = device::find_gpus();
  const std::vector<std::string> all = world.gather_text(gpus.count > 0 ? "" : gpus.none_because);
  const std::vector<std::string> hosts = world.gather_text(session.host());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::string why = all.size() == 1 ? all[rank] : fmt::format("{} (rank {} on {})", all[rank], rank, hosts[rank]);
    if (asked == "cuda") refuse(why);
    return {device::Kind::cpu, fmt::format("cpu (auto: {})", why)};
  }
  const int64_t most = world.max(int64_t((session.local_size() + gpus.count - 1) / gpus.count));
  const int index = session.local_rank() % gpus.count;
  device::use_gpu(index);
  return {device::Kind::cuda,
          fmt::format("cuda{}{}", asked == "auto" ? " (auto: every rank has a GPU)" : "",
                      most > 1 ? fmt::format(", up to {} ranks share a GPU", most) : ""),
          fmt::format("{} {}", index, device::gpu_name())};
}

comm::Mesh connect_ranks(comm::Session& session, const comm::MeshOptions& options, comm::MeshShape shape, comm::SumOrder order,
                         DeviceChoice& device) {
  comm::Mesh mesh = comm::make_mesh(session, shape, order);
  if (device.kind == device::Kind::cuda) device.exchange = comm::connect_gpus(mesh, options, order, session.host());
  return mesh;
}

}  // namespace train
