// SPDX-License-Identifier: Apache-2.0
// Single ops on the device of the command line, for recorded results that need no model.
#pragma once

#include <deque>
#include <vector>

#include "device/memory.hpp"
#include "kernels/dispatch.hpp"
#include "run_case.hpp"

namespace golden {

class OnDevice {
 public:
  explicit OnDevice(const Settings& settings)
      : kind_(settings.device), queue_(settings.device, settings.threads, true) {}

  // Returns a copy of the values on the device, until this object ends.
  template <class T>
  device::View copy(const std::vector<T>& values) {
    const device::DType type = device::view(values.data(), 1).type;
    const int64_t count = int64_t(values.size());
    buffers_.emplace_back(kind_, ledger_, "golden", count * device::size_of(type));
    const device::View view = buffers_.back().view(type).slice(0, count);
    device::upload(view, values.data(), queue_);
    return view;
  }
  template <class Args>
  void run(const Args& args) {
    kernels::run(args, queue_);
  }
  template <class T>
  void read(device::View view, std::vector<T>& into) {
    device::download(into.data(), view, queue_);
  }
  device::Queue& queue() { return queue_; }

 private:
  device::Kind kind_;
  device::Queue queue_;
  device::Ledger ledger_;
  std::deque<device::Buffer> buffers_;
};

}  // namespace golden
