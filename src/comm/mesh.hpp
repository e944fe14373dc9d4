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

// What GPUs exchange through: NCCL where every rank has a GPU of its own, NCCL, or host memory.
enum class GpuExchange { automatic, nccl, mpi };
inline constexpr std::pair<const char*, GpuExchange> kGpuExchangeNames[] = {
    {"auto", GpuExchange::automatic}, {"nccl", GpuExchange::nccl}, {"mpi", GpuExchange::mpi}};

struct MeshOptions {
  int64_t replica = -1;  // -1: inferred; not both
  int64_t fsdp = 1;
  std::vector<MeshRule> rules;
  GpuExchange gpu_exchange = GpuExchange::automatic;
  double gpu_timeout_s = 600;
  void bind(config::Table& t);
};

struct MeshShape {
  int replica = 1, fsdp = 1;
  int ranks() const { return replica * fsdp; }
};
constexpr int kMostRanks = 1 << 20;
// Ranks that the deck asks for, where it does not infer them: what a plan assumes.
// Error(Exit::mesh) as below.
int64_t wanted_ranks(const MeshOptions& options, const std::string& selector);
// Applies rules and infers -1; Error(Exit::mesh) names the keys when the ranks do not fit, or the
// rules when the selector matches none.
MeshShape resolve_mesh(const MeshOptions& options, int ranks, const std::string& selector);

struct Mesh {
  MeshShape shape;
  int replica_index = 0, fsdp_index = 0;
  Comm* world = nullptr;          // all ranks: agreements
  std::unique_ptr<Comm> fsdp;     // ranks of one replica
  std::unique_ptr<Comm> replica;  // ranks with the same fsdp index
  int rank() const { return replica_index * shape.fsdp + fsdp_index; }
};
Mesh make_mesh(Session& session, MeshShape shape, SumOrder order);
// The groups exchange GPU memory as options.gpu_exchange says; all ranks call it, after
// device::use_gpu. Returns what was chosen and why, for the log. Error(Exit::mesh), on all ranks,
// where NCCL is asked for and cannot be had.
std::string connect_gpus(Mesh& mesh, const MeshOptions& options, SumOrder order,
                         const std::string& host);
// The mesh of a run that exists only on paper, seen from rank 0; `world` must outlive it.
Mesh make_plan_mesh(MeshShape shape, Comm& world);

}  // namespace comm
