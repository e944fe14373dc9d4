// SPDX-License-Identifier: Apache-2.0
// Phases as VISSL counts them: an epoch of training is one, and a test after it is another. With
// train.test_every = k, epochs 0, k, 2k, ... and the last one are followed by a test. All numbers
// are functions of the epochs alone, so checkpoints need not hold them.
#pragma once

#include <cstdint>
#include <string>

namespace train {

// Returns true if a test follows one of the epochs [first, end), counted from 0.
bool tested_within(int64_t first, int64_t end, int64_t test_every);
// Returns the number of the phase of an epoch, counted from 0.
int64_t phase_of_epoch(int64_t epoch, int64_t test_every);
// Returns the number of the phase of a test that follows `epochs` epochs.
int64_t phase_of_test(int64_t epochs, int64_t test_every);
// Returns "TeTTe": an epoch of training (T) or a test (e) for each phase. Long lists are cut.
std::string phase_list(int64_t epochs, int64_t test_every);

}  // namespace train
