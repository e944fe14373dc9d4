// SPDX-License-Identifier: Apache-2.0
// [noise]: normal noise on trained weights while a step's passes run. The weights that the
// optimizer updates, evaluations and checkpoints have none. All passes of a step see the same
// noise. It is a pure function of seed, step, tensor and element.
#pragma once

#include <string>
#include <vector>

#include "base/random.hpp"
#include "config/table.hpp"
#include "kernels/add_noise.hpp"
#include "kernels/ema_update.hpp"
#include "optim/element_state.hpp"

namespace optim {

struct NoiseOptions {
  std::string match = ".*";
  double std = 0;
  void bind(config::Table& t);
};

class Noise {
 public:
  // `weights` must outlive this object. Error(Exit::config) if `match` matches no trained
  // parameter.
  Noise(shard::Fabric fabric, const NoiseOptions& options, uint64_t seed,
        shard::WeightStore& weights);

  // Keeps the weights, adds the noise and publishes the result. Call it before a step's passes.
  void begin(int64_t step);
  // Restores the weights that begin() kept. Publish them afterwards.
  void end();

 private:
  struct Part {
    Piece piece;
    base::Stream stream;  // of the tensor
  };
  device::View weights(const Piece& piece) const {
    return weights_.owned(piece.unit).slice(piece.offset, piece.count());
  }

  shard::Fabric fabric_;
  double std_;
  shard::WeightStore& weights_;
  ElementState kept_;
  std::vector<Part> parts_;
  kernels::OpList<kernels::EmaUpdate> copies_;
  kernels::OpList<kernels::AddNoise> noise_;
};

}  // namespace optim
