// SPDX-License-Identifier: Apache-2.0
// An optimizer with one number of state per element, whose update is one op.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "optim/element_state.hpp"

namespace optim {

// `Op`: the op of an update. update(piece, ...) of the subclass adds it to updates_.
template <class Op>
class OneState : public Method {
 public:
  // `name`: the state's name in checkpoints, KIND/STATE.
  OneState(const shard::Fabric& fabric, const Chosen& chosen, device::DType type, std::string name)
      : Method(fabric, chosen),
        state_(fabric, type, [this](int p) { return this->chosen(p); }),
        name_(std::move(name)) {}

  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }
  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (int p = 0; p < int(fabric_.layout.parameters().size()); ++p)
      if (chosen(p)) state_.list("/optimizer/" + name_, p, out);
  }

 protected:
  ElementState state_;
  kernels::OpList<Op> updates_;

 private:
  std::string name_;
};

}  // namespace optim
