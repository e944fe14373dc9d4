// SPDX-License-Identifier: Apache-2.0
// The place in the flight page where the calling thread keeps its open spans. Only span.cpp and
// thread_scope.cpp include this file.
#pragma once

#include "base/flight_page.hpp"

namespace base {

// A thread without a place (null) keeps its spans in its own memory, which nobody else reads.
void set_thread_place(FlightPage::Thread* place);
FlightPage::Thread* thread_place();

}  // namespace base
