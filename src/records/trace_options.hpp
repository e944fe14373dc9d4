// SPDX-License-Identifier: Apache-2.0
// Which steps of which ranks are traced: keys of [profile].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/table.hpp"

namespace records {

struct TraceOptions {
  std::vector<int64_t> steps = {3};  // first steps of the windows
  int64_t length = 3;
  std::vector<int64_t> ranks = {0};
  bool stop_after = false;
  void bind(config::Table& t);

  struct Window {
    int64_t first = 0, last = 0;
  };
  // Returns the windows in order, without those that begin before another one has ended.
  std::vector<Window> windows() const;
  // Names the windows that windows() leaves out; "" = none.
  std::string left_out() const;
  bool traces(int rank) const;
};

}  // namespace records
