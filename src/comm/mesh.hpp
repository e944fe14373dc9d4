// SPDX-License-Identifier: Apache-2.0
// The mesh replica x fsdp (design 3.2): replica is the outer, fsdp the inner axis; rank =
// replica_index * fsdp + fsdp_index.
#pragma once

#include "comm/comm.hpp"
#include "config/table.hpp"

namespace comm {

struct MeshRule {
  std::string match;  // full match on --mesh-selector or $TRAINER_MESH_SELECTOR
  int64_t replica = -1;
  int64_t fsdp = -1;
  void bind(config::Table& t);
};

// How GPUs exchange: automatic (NCCL if every rank has a GPU of its own), NCCL, or by host memory.
enum class GpuExchange { automatic, nccl, mpi };
inline constexpr std::pair<const char*, GpuExchange> kGpuExchangeNames[] = {
    {"auto", GpuExchange::automatic}, {"nccl", GpuExchange::nccl}, {"mpi", GpuExchange::mpi}};

struct MeshOptions {
  int64_t replica = -1;  // -1 = inferred, for one of the two axes
  int64_t fsdp = 1;
  std::vector<MeshRule> rules;
  GpuExchange gpu_exchange = GpuExchange::automatic;
  double gpu_timeout_s = 600;
  double bucket_mb = 1;
  void bind(config::Table& t);
};

struct MeshShape {
  int replica = 1, fsdp = 1;
  int ranks() const { return replica * fsdp; }
};
constexpr int kMostRanks = 1 << 20;
// Returns the number of ranks that the deck sets; an inferred axis counts as 1. A plan assumes this
// number. Throws Error(Exit::mesh) if no rule matches the selector.
int64_t wanted_ranks(const MeshOptions& options, const std::string& selector);
// Applies rules and infers -1. Error(Exit::mesh) names the keys if the ranks do not fit, or the
// rules if the selector matches none.
MeshShape resolve_mesh(const MeshOptions& options, int ranks, const std::string& selector);

struct Mesh {
  MeshShape shape;
  int replica_index = 0, fsdp_index = 0;
  Comm* world = nullptr;          // all ranks, for agreements
  std::unique_ptr<Comm> fsdp;     // ranks of one replica
  std::unique_ptr<Comm> replica;  // ranks with the same fsdp index
  int rank() const { return replica_index * shape.fsdp + fsdp_index; }
  // Makes memory in which both axes exchange fast (Comm::shared_buffer). All ranks call.
  device::Buffer shared_buffer(device::Kind kind, device::Ledger& ledger, std::string category,
                               int64_t bytes) const;
};
Mesh make_mesh(Session& session, MeshShape shape, SumOrder order);
// Sets up the exchange of GPU memory by options.gpu_exchange. All ranks call it, after
// device::use_gpu. Returns the choice and its reason, for the log. Throws Error(Exit::mesh) on all
// ranks if the deck requires NCCL and it is not available.
std::string connect_gpus(Mesh& mesh, const MeshOptions& options, SumOrder order,
                         const std::string& host);
// Makes the mesh of a planned run, as rank 0 has it; `world` must outlive it.
Mesh make_plan_mesh(MeshShape shape, Comm& world);

}  // namespace comm
