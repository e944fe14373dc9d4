// SPDX-License-Identifier: Apache-2.0
// Parameters, gradients, states and memory of parts of a model on this rank, for recorded results
// of heads and losses: what the engine holds for a whole model.
#pragma once

#include <deque>
#include <memory>

#include "models/parameter_list.hpp"
#include "nn/context.hpp"
#include "run_case.hpp"

namespace golden {

class Workbench {
 public:
  using Floats = std::vector<float>;

  // `passes`: of a step.
  Workbench(const models::ParameterList& list, const step::Geometry& geometry,
            const Settings& settings, comm::Mesh& mesh);

  device::Queue& queue() { return queue_; }
  const step::Geometry& geometry() const { return geometry_; }
  nn::Context context(int64_t step, bool train);
  // Sets a parameter or state to these values, on every rank. Call publish() afterwards.
  void set(const std::string& path, const Floats& values);
  void publish() { weights_.publish(); }
  void begin_step();
  // Sums the gradients over the ranks, and takes over the states.
  void finish_step();
  // Returns a copy of the values in the queue's memory, which lasts until the next step begins.
  device::View copy(const Floats& values);
  device::View copy(const std::vector<int32_t>& values);
  device::View make(int64_t count) { return copy(Floats(size_t(count), 0.0f)); }
  Floats read(const device::View& view);
  // Returns the present value of a state.
  Floats state(const std::string& path);
  // Calls f(parameter, first element, values) with the parts of the gradients that this rank owns.
  void for_gradients(const std::function<void(const shard::Parameter&, int64_t, const Floats&)>& f);

 private:
  int find(const std::string& path) const;
  template <class T>
  device::View upload(const std::vector<T>& values, device::DType type);

  step::Geometry geometry_;
  comm::Mesh& mesh_;
  device::Queue queue_;
  device::Ledger ledger_;
  shard::Layout layout_;
  shard::Fabric fabric_;
  shard::WeightStore weights_;
  shard::GradientStore gradients_;
  shard::StateStore states_;
  device::Arena arena_;
  nn::BatchGroup group_;
  std::deque<device::Buffer> buffers_;
};

// Returns the tolerance of a set: the file's own in f32, `part` of the largest value in bf16, and
// an eighth of that with 11 bits (tf32, fp16).
double tolerance_of(const CaseFile& file, const std::string& set, const Settings& settings,
                    double part);

}  // namespace golden
