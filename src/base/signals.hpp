// SPDX-License-Identifier: Apache-2.0
// Signals and threads.
#pragma once

namespace base {

// Signals that ask the run to stop belong to the main thread: every other thread of ours calls this
// first.
void leave_signals_to_main();

// A stack of its own for this thread's fatal signals: a thread that has used up its stack can still
// say so. The main thread and every other thread of ours call it once.
void make_signal_stack();

}  // namespace base
