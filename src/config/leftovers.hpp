// SPDX-License-Identifier: Apache-2.0
// Keys that were written for another kind than the chosen one. Private to this folder.
#pragma once

#include "config/report.hpp"
#include "config/schema.hpp"

namespace config {

// A key that two kinds have may mean another thing in each: eps of Adafactor is 1e-30, that of
// AdamW 1e-8. Reports keys of the deck that the chosen kind would take although they were written
// for another one. That is known if --set changes the kind, and likely if the table holds other
// keys that only another kind has.
void report_leftovers(const Section& root, Report& report);

}  // namespace config
