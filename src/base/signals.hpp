// SPDX-License-Identifier: Apache-2.0
// Signal handling of threads.
#pragma once

namespace base {

// Blocks the signals that stop a run, because only the main thread handles them. Every other thread
// of this program calls this first.
void leave_signals_to_main();

// Gives this thread a separate stack for fatal signals, so that a stack overflow can be reported.
// Every thread of this program calls it once.
void make_signal_stack();

}  // namespace base
