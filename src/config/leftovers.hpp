// SPDX-License-Identifier: Apache-2.0
// Keys that were written for another kind than the chosen one. Private to this folder.
#pragma once

#include "config/report.hpp"
#include "config/schema.hpp"

namespace config {

// A key that two kinds have may mean something else in each: eps of Adafactor is 1e-30, eps of
// AdamW 1e-8. Reports keys that the chosen kind would accept although they were written for another
// kind. This is certain if --set changes the kind, and likely if the table holds keys that only
// another kind has.
void report_leftovers(const Section& root, Report& report);

}  // namespace config
