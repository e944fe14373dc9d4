// SPDX-License-Identifier: Apache-2.0
// Plain gradient descent: no state.
#pragma once

#include "optim/method.hpp"

namespace optim {

struct SgdOptions : MethodOptions {
  std::unique_ptr<Method> make(const shard::Fabric& fabric) const override;
};

}  // namespace optim
