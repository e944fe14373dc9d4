// SPDX-License-Identifier: Apache-2.0
#include "config/duration.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace config {

int64_t Duration::steps(int64_t global_batch, int64_t data_size, int64_t total_steps,
                        int64_t otherwise) const {
  if (unit == Unit::none) return otherwise;
  CHECK(value >= 0, "a length of {}", value);
  double exact = value;
  switch (unit) {
    case Unit::none:
    case Unit::steps:
      break;
    case Unit::examples:
      CHECK(global_batch > 0, "global_batch {}", global_batch);
      exact = value / double(global_batch);
      break;
    case Unit::epochs:
      CHECK(global_batch > 0, "global_batch {}", global_batch);
      if (data_size <= 0)
        base::fail(base::Exit::config, "a length in epochs needs a data set of known size");
      exact = value * double(data_size) / double(global_batch);
      break;
    case Unit::fraction:
      if (total_steps <= 0)
        base::fail(base::Exit::config, "a fraction of the run needs a run of known length");
      CHECK(value <= 1, "fraction {}", value);
      exact = value * double(total_steps);
      break;
  }
  if (!(exact < 0x1p53)) base::fail(base::Exit::config, "a length of {} steps is too long", exact);
  if (unit == Unit::steps) return int64_t(exact);
  // nearbyint rounds half to even, as the published code does.
  return std::max<int64_t>(1, int64_t(std::nearbyint(exact)));
}

bool is_time(int64_t step, int64_t every, int64_t total, bool last, bool first,
             double drop_close_to_last) {
  if (every <= 0) return false;
  bool close = double(std::abs(step - total)) < drop_close_to_last * double(every);
  return (step % every == 0 && !close) || (last && step == total) || (first && step == 1);
}

}  // namespace config
