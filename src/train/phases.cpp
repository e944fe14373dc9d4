// SPDX-License-Identifier: Apache-2.0
#include "train/phases.hpp"

#include "base/narrow.hpp"

namespace train {

bool tested_within(int64_t first, int64_t end, int64_t test_every) {
  return base::ceil_div(first, test_every) * test_every < end;
}

int64_t phase_of_epoch(int64_t epoch, int64_t test_every) {
  return epoch + base::ceil_div(epoch, test_every);
}

int64_t phase_of_test(int64_t epochs, int64_t test_every) {
  return epochs + base::ceil_div(epochs - 1, test_every);
}

std::string phase_list(int64_t epochs, int64_t test_every) {
  constexpr int64_t kMost = 100;
  std::string out;
  for (int64_t i = 0; i < epochs && i < kMost; ++i) {
    out += 'T';
    if (i % test_every == 0 || i + 1 == epochs) out += 'e';
  }
  return epochs > kMost ? out + "..." : out;
}

}  // namespace train
