// SPDX-License-Identifier: Apache-2.0
// Cuts the global batch by position (design 3.2, 3.4) into replicas x accumulation x fsdp x slices.
#pragma once

#include <cstdint>
#include <utility>

#include "comm/mesh.hpp"
#include "config/table.hpp"

namespace step {

// Levels of determinism.level. Bits depend on the mesh and the CPU at the first one, on the CPU
// alone at the second one, and on neither at the last one.
enum class Level { run, mesh, anywhere };
inline constexpr std::pair<const char*, Level> kLevelNames[] = {
    {"run", Level::run}, {"mesh", Level::mesh}, {"anywhere", Level::anywhere}};

struct DeterminismOptions {
  Level level = Level::run;
  int64_t slices = 64;
  void bind(config::Table& t);
  bool mesh() const { return level != Level::run; }  // the same bits on every mesh
  bool anywhere() const { return level == Level::anywhere; }
};

inline constexpr const char* kAnywhereIsForCpus =
    "level \"anywhere\" gives the same bits on every CPU, and GPUs compute others: set run.device "
    "= "
    "\"cpu\", or use level \"mesh\"";

struct Geometry {
  int64_t global_batch = 0;
  int64_t micro_batch = 0;   // examples per rank and pass
  int64_t accumulation = 1;  // passes per step
  int64_t slices = 1;        // slices per pass (k)
  int64_t total_slices = 1;  // slices of the global batch

  // Returns the position within the global batch of the first example of this rank's pass m. Slices
  // ((r A + m) F + f) k + j are contiguous.
  int64_t first_example(const comm::Mesh& mesh, int64_t m) const {
    return ((mesh.replica_index * accumulation + m) * mesh.shape.fsdp + mesh.fsdp_index) *
           micro_batch;
  }
};

// Derives accumulation: the smallest divisor of global_batch / ranks that respects micro_batch; at
// level "mesh" a power of two. Error(Exit::mesh) names the keys and the numbers that would fit.
Geometry derive_geometry(int64_t global_batch, int64_t micro_batch, comm::MeshShape mesh,
                         const DeterminismOptions& determinism);

// Returns the geometry of an engine that only evaluates: every rank runs passes of `batch`
// examples. Any number of ranks fits.
Geometry forward_geometry(int64_t batch, comm::MeshShape mesh);

}  // namespace step
