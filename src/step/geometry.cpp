// SPDX-License-Identifier: Apache-2.0
#include "step/geometry.hpp"

#include <bit>

#include "base/error.hpp"

namespace step {

void DeterminismOptions::bind(config::Table& t) {
  t.choice(
      "level", level, kLevelNames,
      "run: same mesh, same bits; mesh: same bits on every power-of-two mesh (cost is printed); "
      "anywhere: as mesh, and on every CPU");
  t.key("slices", slices,
        "levels \"mesh\" and \"anywhere\": cuts of the batch and of each unit; a power of two, a "
        "multiple of ranks x accumulation")
      .min(1);
  if (mesh() && !std::has_single_bit(uint64_t(slices)))
    t.error("slices", fmt::format("{} is not a power of two; {} is the next one", slices,
                                  std::bit_ceil(uint64_t(slices))));
}

Geometry derive_geometry(int64_t global_batch, int64_t micro_batch, comm::MeshShape mesh,
                         const DeterminismOptions& determinism) {
  using base::Exit;
  int64_t ranks = mesh.ranks();
  if (global_batch % ranks)
    base::fail(Exit::mesh,
               "train.global_batch = {} is not divisible by {} ranks (replica {} x fsdp {}); start "
               "a number of ranks that divides it, or set it to {}{}",
               global_batch, ranks, mesh.replica, mesh.fsdp,
               global_batch > ranks ? fmt::format("{} or ", global_batch / ranks * ranks) : "",
               (global_batch / ranks + 1) * ranks);
  int64_t per_rank = global_batch / ranks;
  Geometry g{.global_batch = global_batch,
             .micro_batch = per_rank,
             .accumulation = 1,
             .slices = 1,
             .total_slices = ranks};
  if (!determinism.mesh()) {
    while (per_rank % g.accumulation || per_rank / g.accumulation > micro_batch) ++g.accumulation;
    g.micro_batch = per_rank / g.accumulation;
    g.total_slices = ranks * g.accumulation;
    return g;
  }
  int64_t slices = determinism.slices;
  if (!std::has_single_bit(uint64_t(mesh.replica)) || !std::has_single_bit(uint64_t(mesh.fsdp)))
    base::fail(Exit::mesh,
               "determinism.level = \"{}\" needs powers of two, not replica {} x fsdp {}; start "
               "another number of ranks, or set determinism.level = \"run\"",
               determinism.anywhere() ? "anywhere" : "mesh", mesh.replica, mesh.fsdp);
  if (slices % ranks)
    base::fail(Exit::mesh,
               "determinism.slices = {} is not a multiple of {} ranks; raise it (and global_batch "
               "with it)",
               slices, ranks);
  if (global_batch % slices)
    base::fail(Exit::mesh, "train.global_batch = {} is not divisible by determinism.slices = {}",
               global_batch, slices);
  int64_t example_slices = global_batch / slices;
  while (per_rank / g.accumulation > micro_batch && g.accumulation < slices / ranks)
    g.accumulation *= 2;
  g.micro_batch = per_rank / g.accumulation;
  if (g.micro_batch > micro_batch)
    base::fail(Exit::mesh,
               "train.micro_batch = {} is smaller than one slice ({} examples = global_batch {} / "
               "slices {}); raise determinism.slices or train.micro_batch",
               micro_batch, example_slices, global_batch, slices);
  g.slices = slices / (ranks * g.accumulation);
  g.total_slices = slices;
  return g;
}

Geometry forward_geometry(int64_t batch, comm::MeshShape mesh) {
  const int64_t ranks = mesh.ranks();
  return {.global_batch = batch * ranks, .micro_batch = batch, .total_slices = ranks};
}

}  // namespace step
