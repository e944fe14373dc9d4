// SPDX-License-Identifier: Apache-2.0
// Models with one row of memory for each sample of the training data. A deck may leave the number
// to the data, which are opened after the deck is read.
#pragma once

#include "models/model.hpp"

namespace models {

struct CountsSamples {
  virtual ~CountsSamples() = default;
  virtual int64_t& samples() = 0;  // 0 until it is known
};

// Returns the number of samples; null if the model has none. Copies of the options share it.
inline int64_t* samples_of(const ModelOptions& options) {
  auto* counts = dynamic_cast<CountsSamples*>(options.options.get());
  return counts ? &counts->samples() : nullptr;
}
// Returns the number if it is still to be filled in, before the model runs.
inline int64_t* samples_left_to_data(const ModelOptions& options) {
  int64_t* samples = samples_of(options);
  return samples && *samples == 0 ? samples : nullptr;
}

}  // namespace models
