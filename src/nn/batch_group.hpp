// SPDX-License-Identifier: Apache-2.0
// The examples of a global micro-batch, which all ranks compute in one pass. A pass exchanges sums
// over these examples (statistics of a norm) and small tensors (embeddings) here. Both are defined
// over examples, never over ranks.
//
// Examples are ordered by replica, then by fsdp rank, then within the rank. Sums follow the tree of
// level "mesh" (design 3.4): slices of a rank at the bottom, then fsdp, then replicas. Their bits
// are the same on every mesh with the same number of slices in a micro-batch.
//
// All ranks must call in the same order. On the plan back end the group counts the bytes that it
// would exchange. No CUDA graph can repeat a pass that exchanges. Its model gives this as a reason
// (models::Model::changing_arguments).
#pragma once

#include "comm/mesh.hpp"

namespace nn {

class BatchGroup {
 public:
  // `slices`: number of slices of this rank's micro-batch.
  BatchGroup(comm::Mesh& mesh, int64_t slices) : mesh_(mesh), slices_(slices) {}

  int64_t ranks() const { return mesh_.shape.ranks(); }
  // Number of consecutive ranks whose examples of a pass are consecutive in the global batch, even
  // if a step has several passes. Their examples of the next pass follow.
  int64_t ranks_of_replica() const { return mesh_.shape.fsdp; }
  // The position of this rank's examples among the examples of all ranks.
  int64_t rank() const { return mesh_.rank(); }
  int64_t slices() const { return slices_; }

  // sums: f64 [slices, width], this rank's slices; overwritten. Returns the sums over the whole
  // group, f64 [width], in the first row. All ranks get the same bits.
  device::View sum(device::View sums, device::Queue& queue);
  // The two stages of `sum`, over the ranks of this rank's replica and over the replicas. A step of
  // several passes adds the sums of its passes between the stages. sums: f32 or f64, in place.
  void add_in_replica(device::View sums, device::Queue& queue) {
    mesh_.fsdp->all_reduce(sums, queue).wait();
  }
  void add_replicas(device::View sums, device::Queue& queue) {
    mesh_.replica->all_reduce(sums, queue).wait();
  }
  int64_t replicas() const { return mesh_.shape.replica; }
  // Returns the sums over `ranks` consecutive ranks, including this one. The number of the first
  // rank is a multiple of `ranks`. sums: f64 [rows, width], this rank's, overwritten; room: f64
  // [ranks(), width], unless ranks = 1 or ranks(), which need none.
  device::View sum_over(int64_t ranks, device::View sums, int64_t rows, device::View room,
                        device::Queue& queue);
  // mine: [n], of any type; all: [ranks, n] in the order of examples, on every rank.
  void gather(device::View mine, device::View all, device::Queue& queue);

 private:
  comm::Mesh& mesh_;
  int64_t slices_;
};

// Adds rows of f64 [rows, width] along the tree, neighbours first. Returns the sum, which is in the
// first row; the others are overwritten.
device::View add_along_tree(device::View values, int64_t rows, device::Queue& queue);

}  // namespace nn
