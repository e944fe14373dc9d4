// SPDX-License-Identifier: Apache-2.0
#include "step/pass_inputs.hpp"

#include <algorithm>

#include "device/transfers.hpp"

namespace step {
using device::Kind;

PassInputs::PassInputs(const Passes& passes, int64_t micro_batch, int64_t kept,
                       device::Queue& queue, device::Ledger& ledger)
    : queue_(queue), keeps_(kept > 1) {
  const Passes training(passes.begin(), passes.begin() + 1);
  auto sizes_of = [&](const Passes& some) {
    Sizes sizes;
    for (const models::Pass* pass : some)
      for (const models::InputSpec& spec : pass->inputs())
        sizes[spec.name] =
            std::max(sizes[spec.name], spec.per_example * micro_batch * device::size_of(spec.type));
    return sizes;
  };
  const Sizes all = sizes_of(passes), of_training = sizes_of(training);
  const bool gpu = queue.device() == Kind::cuda;
  add_set(all, passes, micro_batch, ledger);
  if (gpu) add_set(all, passes, micro_batch, ledger);
  for (int64_t k = 1; k < kept && !gpu; ++k) add_set(of_training, training, micro_batch, ledger);
  if (queue.kind() != Kind::cuda) return;
  copies_ = std::make_unique<device::Queue>(Kind::cuda);
  pinned_.resize(size_t(std::max<int64_t>(2, kept)));
  for (size_t p = 0; p < pinned_.size(); ++p)
    for (const auto& [name, size] : p < 2 ? all : of_training)
      pinned_[p].buffers[name] = device::HostBuffer(Kind::cuda, size);
  for (size_t s = 0; s < sets_.size(); ++s)
    for (models::Inputs& inputs : sets_[s].inputs) fill_on_host(inputs, pinned_[s]);
}

// Points the inputs to the buffers that the host fills.
void PassInputs::fill_on_host(models::Inputs& inputs, Pinned& pinned) {
  for (auto& [name, input] : inputs) input.host.data = pinned.buffers.at(name).data();
}

void PassInputs::add_set(const Sizes& sizes, const Passes& passes, int64_t micro_batch,
                         device::Ledger& ledger) {
  Set& set = sets_.emplace_back();
  for (const auto& [name, size] : sizes)
    set.buffers[name] = device::Buffer(queue_.kind(), ledger, "batch", size);
  for (const models::Pass* pass : passes) {
    models::Inputs& inputs = set.inputs.emplace_back();
    for (const models::InputSpec& spec : pass->inputs())
      inputs[spec.name] =
          set.buffers[spec.name].view(spec.type).slice(0, spec.per_example * micro_batch);
  }
}

const models::Inputs& PassInputs::begin(size_t pass, int64_t number) {
  const bool gpu = queue_.device() == Kind::cuda;
  set_ = gpu ? 1 - set_ : size_t(number);
  if (!copies_) return sets_[set_].inputs[pass];
  filled_ = keeps_ && pass == 0 ? size_t(number) : set_;
  Pinned& pinned = pinned_[filled_];
  fill_on_host(sets_[set_].inputs[pass], pinned);
  device::MayWait lifted;  // two passes are queued; running further ahead gains nothing
  pinned.copied.synchronize("inputs on their way to the GPU");
  return sets_[set_].inputs[pass];
}

void PassInputs::upload(size_t pass) {
  if (!copies_) return;
  Set& set = sets_[set_];
  set.used.wait(*copies_);
  for (const auto& [name, input] : set.inputs[pass])
    device::upload_pinned(input.device, input.host.data, *copies_);
  pinned_[filled_].copied.record(*copies_);
  pinned_[filled_].copied.wait(queue_);
}

}  // namespace step
