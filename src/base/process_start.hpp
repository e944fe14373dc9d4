// SPDX-License-Identifier: Apache-2.0
// When this process began: some tenths of a second before main, because libraries load first.
#pragma once

namespace base {

// Returns the start of this process on base::now_s(), exact to a hundredth of a second. Without
// /proc it is the time of the call.
double process_start_s();

// Returns the seconds from 1970-01-01 UTC to a moment on base::now_s().
double unix_s(double moment_s);

}  // namespace base
