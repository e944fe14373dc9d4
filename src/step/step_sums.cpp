// SPDX-License-Identifier: Apache-2.0
#include "step/step_sums.hpp"

#include "base/tree_sum.hpp"
#include "kernels/square_sums.hpp"

namespace step {
using device::DType;

StepSums::StepSums(const models::Model& model, const Geometry& geometry, comm::Mesh& mesh,
                   device::Queue& queue, device::Ledger& ledger, bool one_place)
    : measures_(model.measures()),
      columns_(model.sum_columns()),
      geometry_(geometry),
      mesh_(mesh),
      queue_(queue) {
  const device::Kind kind = queue.kind();
  const int64_t row = columns_ * device::size_of(DType::f64);
  sums_ = mesh.shared_buffer(kind, ledger, "workspace", geometry.accumulation * row);
  if (geometry.slices > 1 || one_place)
    slice_sums_ = device::Buffer(kind, ledger, "workspace", geometry.slices * row);
  host_sums_ = device::Fetched(kind, row);
}

StepSums::~StepSums() {
  // The exchange uses this memory. Its errors end the job elsewhere.
  try {
    exchange_.wait();
  } catch (const std::exception&) {
  }
}

device::View StepSums::of_pass(int64_t m) const {
  return sums_.view(DType::f64).slice(m * columns_, columns_);
}

device::View StepSums::place_of(int64_t m) const {
  if (slice_sums_.bytes() == 0) return of_pass(m);
  return slice_sums_.view(DType::f64).slice(0, geometry_.slices * columns_);
}

void StepSums::finish_pass(int64_t m) {
  if (slice_sums_.bytes() == 0) return;
  auto slot = [&](int64_t j) { return slice_sums_.view(DType::f64).slice(j * columns_, columns_); };
  auto add = [&](int into, int from) {
    kernels::run(kernels::AddSums{slot(into), slot(into), slot(from)}, queue_);
  };
  base::TreeSum tree;
  // The slot is never after j, so finished slices are added in place at the front.
  for (int64_t j = 0; j < geometry_.slices; ++j) {
    device::copy(slot(tree.next_slot()), slot(j), queue_);
    tree.push(add);
  }
  tree.finish(add);
  device::copy(of_pass(m), slot(0), queue_);
}

void StepSums::begin_exchange() {
  exchange_ = mesh_.fsdp->all_reduce(
      sums_.view(DType::f64).slice(0, geometry_.accumulation * columns_), queue_);
  if (mesh_.shape.fsdp == 1) sum_over_replicas();
}

void StepSums::sum_over_replicas() {
  exchange_.wait();
  auto add = [&](int into, int from) {
    kernels::run(kernels::AddSums{of_pass(into), of_pass(into), of_pass(from)}, queue_);
  };
  base::TreeSum tree;
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    device::copy(of_pass(tree.next_slot()), of_pass(m), queue_);
    tree.push(add);
  }
  tree.finish(add);
  exchange_ = mesh_.replica->all_reduce(of_pass(0), queue_);
}

void StepSums::finish_step(int64_t step) {
  if (mesh_.shape.fsdp > 1) sum_over_replicas();
  exchange_.wait();
  host_sums_.fetch(step, of_pass(0), queue_);
}

void StepSums::read(int64_t step, StepReport& report) {
  const double* v = host_sums_.read(step).f64();
  report.sums.assign(v, v + columns_);
  report.measures.clear();
  for (const models::Measure& m : measures_)
    report.measures.push_back(m.value(v, geometry_.global_batch));
}

}  // namespace step
