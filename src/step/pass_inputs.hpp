// SPDX-License-Identifier: Apache-2.0
// The input buffers of passes. Passes run one after the other, so inputs of equal name share a
// buffer with room for the largest. On a GPU there are two sets: the host fills one and copies it
// while ops read the other.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/model.hpp"

namespace step {

class PassInputs {
 public:
  PassInputs(const std::vector<const models::Pass*>& passes, int64_t micro_batch,
             device::Queue& queue, device::Ledger& ledger);

  // Returns buffers for the host to fill for this pass. On a GPU the host may wait until the set is
  // free.
  const models::Inputs& begin(size_t pass);
  // Starts the copy of the filled buffers to the device.
  void upload(size_t pass);
  // Records that the ops that read the set are queued.
  void queued() { sets_[set_].used.record(queue_); }
  // Returns the inputs of a pass in the set that was begun last.
  const models::Inputs& of(size_t pass) const { return sets_[set_].inputs[pass]; }
  int64_t set() const { return int64_t(set_); }

 private:
  struct Set {
    std::map<std::string, device::Buffer> buffers;  // by name; passes share them
    std::map<std::string, device::HostBuffer> host;
    std::vector<models::Inputs> inputs;  // by pass
    device::Event copied, used;
  };

  device::Queue& queue_;
  std::vector<Set> sets_;
  size_t set_ = 0;
  std::unique_ptr<device::Queue> copies_;  // null: ops read the inputs where the host writes them
};

}  // namespace step
