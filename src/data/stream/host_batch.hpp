// SPDX-License-Identifier: Apache-2.0
// Converts a batch of the data pipeline to a batch for models.
#pragma once

#include <utility>

#include "data/stream/loader.hpp"
#include "models/model.hpp"

namespace data {

// Returns views of the batch's arrays, valid as long as the batch. first_position is the global
// position of the first example.
inline models::HostBatch host_batch(const Batch& batch, int64_t first_position) {
  models::HostBatch host{
      .features = {}, .examples = batch.size(), .first_position = first_position};
  for (const auto& [field, array] : batch.arrays) host.features[field] = array.view();
  return host;
}

// Returns views of the batch's arrays and keeps the batch alive.
inline models::HostBatch host_batch(BatchPtr batch) {
  models::HostBatch host = host_batch(*batch, batch->positions[0]);
  host.owner = std::move(batch);
  return host;
}

}  // namespace data
