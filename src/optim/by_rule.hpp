// SPDX-License-Identifier: Apache-2.0
// Several optimizers side by side, each for the tensors of some rules ([[optimizer.rule]] kind).
#pragma once

#include <memory>
#include <vector>

#include "optim/method.hpp"

namespace optim {

// Returns one method that asks methods[of[p]] about parameter p.
std::unique_ptr<Method> make_by_rule(const shard::Fabric& fabric, std::vector<int> of,
                                     std::vector<std::unique_ptr<Method>> methods);

}  // namespace optim
