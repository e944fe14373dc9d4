// SPDX-License-Identifier: Apache-2.0
#include "optim/registry.hpp"

namespace optim {

// One row for each optimizer: src/optim/NAME.cpp ends in NAME_row().
#define METHODS(ROW) \
  ROW(adafactor) ROW(adamw) ROW(lion) ROW(momentum) ROW(muon) ROW(rmsprop) ROW(sgd)

REGISTRY(methods, MethodRow, "optimizer", METHODS)

}  // namespace optim
