// SPDX-License-Identifier: Apache-2.0
#include "step/pass_inputs.hpp"

#include <algorithm>

#include "device/transfers.hpp"

namespace step {
using device::Kind;

PassInputs::PassInputs(const std::vector<const models::Pass*>& passes, int64_t micro_batch,
                       device::Queue& queue, device::Ledger& ledger)
    : queue_(queue) {
  const Kind kind = queue.kind();
  std::map<std::string, int64_t> bytes;
  for (const models::Pass* pass : passes)
    for (const models::InputSpec& spec : pass->inputs())
      bytes[spec.name] =
          std::max(bytes[spec.name], spec.per_example * micro_batch * device::size_of(spec.type));
  sets_.resize(queue.device() == Kind::cuda ? 2 : 1);
  for (Set& set : sets_) {
    for (const auto& [name, size] : bytes) {
      set.buffers[name] = device::Buffer(kind, ledger, "batch", size);
      if (kind == Kind::cuda) set.host[name] = device::HostBuffer(kind, size);
    }
    for (const models::Pass* pass : passes) {
      models::Inputs& inputs = set.inputs.emplace_back();
      for (const models::InputSpec& spec : pass->inputs()) {
        models::Input input =
            set.buffers[spec.name].view(spec.type).slice(0, spec.per_example * micro_batch);
        if (kind == Kind::cuda) input.host.data = set.host[spec.name].data();
        inputs[spec.name] = input;
      }
    }
  }
  if (kind == Kind::cuda) copies_ = std::make_unique<device::Queue>(kind);
}

const models::Inputs& PassInputs::begin(size_t pass) {
  set_ = (set_ + 1) % sets_.size();
  device::MayWait lifted;  // two passes are queued; running further ahead gains nothing
  sets_[set_].copied.synchronize("inputs on their way to the GPU");
  return sets_[set_].inputs[pass];
}

void PassInputs::upload(size_t pass) {
  if (!copies_) return;
  Set& set = sets_[set_];
  set.used.wait(*copies_);
  for (const auto& [name, input] : set.inputs[pass])
    device::upload_pinned(input.device, input.host.data, *copies_);
  set.copied.record(*copies_);
  set.copied.wait(queue_);
}

}  // namespace step
