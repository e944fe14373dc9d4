// SPDX-License-Identifier: Apache-2.0
// An optimizer with one number of state per element, whose update is one op.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "optim/element_state.hpp"

namespace optim {

// `Op`: of the update, which update(piece, ...) adds to updates_.
template <class Op>
class OneState : public Method {
 public:
  // `name`: of the state in checkpoints, KIND/STATE.
  OneState(const shard::Fabric& fabric, device::DType type, std::string name)
      : Method(fabric), state_(fabric, type, [](int) { return true; }), name_(std::move(name)) {}

  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }
  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (int p = 0; p < int(fabric_.layout.parameters().size()); ++p)
      if (trainable(p)) state_.list("/optimizer/" + name_, p, out);
  }

 protected:
  ElementState state_;
  kernels::OpList<Op> updates_;

 private:
  std::string name_;
};

}  // namespace optim
