// SPDX-License-Identifier: Apache-2.0
// The registry of optimizers: one row each (registry.cpp).
#pragma once

#include <memory>

#include "base/registry.hpp"
#include "optim/method.hpp"

namespace optim {

struct MethodRow {
  const char* name;
  const char* doc;
  std::shared_ptr<MethodOptions> (*make_options)();
};
const base::Registry<MethodRow>& methods();

}  // namespace optim
