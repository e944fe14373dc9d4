// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <stdexcept>

#include "base/error.hpp"
#include "io/files.hpp"
#include "targets.hpp"

namespace fuzz {

void run(void (*target)(std::string_view), std::string_view input) {
  try {
    target(input);
  } catch (const io::Failure&) {  // a failed system call, with any exit code
  } catch (const base::Error& e) {
    if (e.code() == base::Exit::internal)
      throw std::logic_error(fmt::format("input breaks a CHECK: {}", e.what()));
  }
}

void expect(bool promise, const char* what) {
  if (!promise) throw std::logic_error(what);
}

}  // namespace fuzz
