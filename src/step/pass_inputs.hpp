// SPDX-License-Identifier: Apache-2.0
// The input buffers of passes. Passes run one after the other, so inputs of equal name share a
// buffer with room for the largest. On a GPU there are two sets: the host fills one and copies it
// while ops read the other. A step of two phases keeps the inputs of all its training passes,
// because it reads them twice; on a GPU the host keeps them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/model.hpp"

namespace step {

class PassInputs {
 public:
  // The first pass is the one of training. kept: number of its inputs that stay as they are until
  // the next step.
  PassInputs(const std::vector<const models::Pass*>& passes, int64_t micro_batch, int64_t kept,
             device::Queue& queue, device::Ledger& ledger);

  // Returns buffers for this pass; `number` of those that are kept. The host fills them, or they
  // are kept from the first phase. On a GPU the host may wait until the set is free.
  const models::Inputs& begin(size_t pass, int64_t number = 0);
  // Starts the copy of the filled buffers to the device.
  void upload(size_t pass);
  // Records that the ops that read the set are queued.
  void queued() { sets_[set_].used.record(queue_); }
  // Returns the inputs of a pass in the set that was begun last.
  const models::Inputs& of(size_t pass) const { return sets_[set_].inputs[pass]; }
  int64_t set() const { return int64_t(set_); }

 private:
  // Buffers that ops read.
  struct Set {
    std::map<std::string, device::Buffer> buffers;  // by name; passes share them
    std::vector<models::Inputs> inputs;             // by pass
    device::Event used;
  };
  // Buffers that the host fills for a GPU.
  struct Pinned {
    std::map<std::string, device::HostBuffer> buffers;
    device::Event copied;
  };
  using Sizes = std::map<std::string, int64_t>;  // bytes, by name
  using Passes = std::vector<const models::Pass*>;
  static void fill_on_host(models::Inputs& inputs, Pinned& pinned);
  void add_set(const Sizes& sizes, const Passes& passes, int64_t micro_batch,
               device::Ledger& ledger);

  device::Queue& queue_;
  std::vector<Set> sets_;
  std::vector<Pinned> pinned_;
  size_t set_ = 0, filled_ = 0;            // those begun last
  bool keeps_ = false;                     // inputs of several training passes
  std::unique_ptr<device::Queue> copies_;  // null: ops read the inputs where the host writes them
};

}  // namespace step
