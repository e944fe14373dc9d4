// SPDX-License-Identifier: Apache-2.0
// Helper of tests that look at the message of an error.
#pragma once

#include <exception>
#include <functional>
#include <string>

// Returns the message of the error that a call throws; "" if it throws none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}
