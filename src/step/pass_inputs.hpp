// SPDX-License-Identifier: Apache-2.0
// The inputs of passes. On the CPU ops read fields of a batch where the loader wrote them, and only
// inputs that a pass makes have buffers. Passes run one after the other, so inputs of equal name
// share a buffer with room for the largest. On a GPU every input has buffers in two sets: the host
// fills one and copies it while ops read the other. A step of two phases keeps the inputs of all
// its training passes, because it reads them twice; on a GPU the host keeps them.
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

  // Begins the inputs of this pass: `number` of those that are kept. again: as the first phase has
  // left them; else the batch that they held is released. On a GPU the host may wait until the set
  // is free.
  void begin(size_t pass, int64_t number = 0, bool again = false);
  // Gives the inputs of the pass that has begun the fields of a batch; the pass makes the others. A
  // batch of a training pass is kept until its inputs begin again. On a GPU fields are copied.
  const models::Inputs& take(size_t pass, const models::HostBatch& batch);
  // Starts the copy of the inputs to the device.
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
    std::shared_ptr<const void> batch;              // whose fields the training pass reads
    device::Event used;
  };
  // Buffers that the host fills for a GPU.
  struct Pinned {
    std::map<std::string, device::HostBuffer> buffers;
    device::Event copied;
  };
  struct Size {
    int64_t bytes = 0;
    bool made = false;  // by a pass; else a field wherever it is read
  };
  using Sizes = std::map<std::string, Size>;  // by name
  static void fill_on_host(models::Inputs& inputs, Pinned& pinned);
  void add_set(const Sizes& sizes, size_t passes, int64_t micro_batch, device::Ledger& ledger);

  device::Queue& queue_;
  std::vector<std::vector<models::InputSpec>> specs_;  // by pass
  std::vector<Set> sets_;
  std::vector<Pinned> pinned_;
  size_t set_ = 0, filled_ = 0;            // those begun last
  bool keeps_ = false;                     // inputs of several training passes
  std::unique_ptr<device::Queue> copies_;  // null: ops read the inputs where the host writes them
};

}  // namespace step
