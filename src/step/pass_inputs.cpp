// SPDX-License-Identifier: Apache-2.0
#include "step/pass_inputs.hpp"

#include <algorithm>
#include <cstring>

#include "device/transfers.hpp"

namespace step {
using device::Kind;

PassInputs::PassInputs(const std::vector<const models::Pass*>& passes, int64_t micro_batch,
                       int64_t kept, device::Queue& queue, device::Ledger& ledger)
    : queue_(queue), keeps_(kept > 1) {
  for (const models::Pass* pass : passes) specs_.push_back(pass->inputs());
  auto sizes_of = [&](size_t count) {
    Sizes sizes;
    for (size_t p = 0; p < count; ++p)
      for (const models::InputSpec& spec : specs_[p]) {
        Size& size = sizes[spec.name];
        size.bytes =
            std::max(size.bytes, spec.per_example * micro_batch * device::size_of(spec.type));
        size.made |= spec.field.empty();
      }
    return sizes;
  };
  const Sizes all = sizes_of(passes.size()), of_training = sizes_of(1);
  const bool gpu = queue.device() == Kind::cuda;
  add_set(all, passes.size(), micro_batch, ledger);
  if (gpu) add_set(all, passes.size(), micro_batch, ledger);
  for (int64_t k = 1; k < kept && !gpu; ++k) add_set(of_training, 1, micro_batch, ledger);
  if (queue.kind() != Kind::cuda) return;
  copies_ = std::make_unique<device::Queue>(Kind::cuda);
  pinned_.resize(size_t(std::max<int64_t>(2, kept)));
  for (size_t p = 0; p < pinned_.size(); ++p)
    for (const auto& [name, size] : p < 2 ? all : of_training)
      pinned_[p].buffers[name] = device::HostBuffer(Kind::cuda, size.bytes);
  for (size_t s = 0; s < sets_.size(); ++s)
    for (models::Inputs& inputs : sets_[s].inputs) fill_on_host(inputs, pinned_[s]);
}

// Points the inputs to the buffers that the host fills.
void PassInputs::fill_on_host(models::Inputs& inputs, Pinned& pinned) {
  for (auto& [name, input] : inputs) input.host.data = pinned.buffers.at(name).data();
}

// A buffer of kind plan only counts: on the CPU, the memory of a batch that the engine holds.
void PassInputs::add_set(const Sizes& sizes, size_t passes, int64_t micro_batch,
                         device::Ledger& ledger) {
  Set& set = sets_.emplace_back();
  const bool cpu = queue_.kind() == Kind::cpu;
  for (const auto& [name, size] : sizes)
    set.buffers[name] =
        device::Buffer(cpu && !size.made ? Kind::plan : queue_.kind(), ledger, "batch", size.bytes);
  for (size_t p = 0; p < passes; ++p) {
    models::Inputs& inputs = set.inputs.emplace_back();
    for (const models::InputSpec& spec : specs_[p])
      inputs[spec.name] =
          set.buffers[spec.name].view(spec.type).slice(0, spec.per_example * micro_batch);
  }
}

void PassInputs::begin(size_t pass, int64_t number, bool again) {
  const bool gpu = queue_.device() == Kind::cuda;
  set_ = gpu ? 1 - set_ : size_t(number);
  if (pass == 0 && !again) sets_[set_].batch.reset();
  if (!copies_) return;
  filled_ = keeps_ && pass == 0 ? size_t(number) : set_;
  Pinned& pinned = pinned_[filled_];
  fill_on_host(sets_[set_].inputs[pass], pinned);
  device::MayWait lifted;  // two passes are queued; running further ahead gains nothing
  pinned.copied.synchronize("inputs on their way to the GPU");
}

const models::Inputs& PassInputs::take(size_t pass, const models::HostBatch& batch) {
  models::Inputs& inputs = sets_[set_].inputs[pass];
  for (const models::InputSpec& spec : specs_[pass]) {
    if (spec.field.empty()) continue;
    const device::View field = batch.features.at(spec.field);
    models::Input& input = inputs.at(spec.name);
    CHECK(field.type == input.host.type && field.count == input.host.count,
          "field {} of a batch of {} examples does not fit the input {}", spec.field,
          batch.examples, spec.name);
    if (copies_)
      std::memcpy(input.host.data, field.data, size_t(field.bytes()));
    else
      input = field;
  }
  if (pass == 0 && !copies_) sets_[set_].batch = batch.owner;
  return inputs;
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
