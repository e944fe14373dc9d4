// SPDX-License-Identifier: Apache-2.0
// Builds a libFuzzer program of one target: -DFUZZ_TARGET=NAME.
#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::run(fuzz::FUZZ_TARGET, {reinterpret_cast<const char*>(data), size});
  return 0;
}
