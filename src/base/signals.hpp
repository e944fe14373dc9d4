// Signals and threads.
#pragma once

namespace base {

// Signals that ask the run to stop belong to the main thread: every other thread of ours calls this first.
void leave_signals_to_main();

}  // namespace base
