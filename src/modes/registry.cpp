// SPDX-License-Identifier: Apache-2.0
#include "modes/mode.hpp"

namespace modes {

// One row for each mode: src/modes/NAME.cpp ends in NAME_row().
#define MODES(ROW) \
  ROW(train)       \
  ROW(eval)        \
  ROW(caption)     \
  ROW(extract)     \
  ROW(predict)     \
  ROW(bench)       \
  ROW(plan)        \
  ROW(show)        \
  ROW(index)       \
  ROW(weights)     \
  ROW(selftest)

REGISTRY(registry, Mode, "mode", MODES)

}  // namespace modes
