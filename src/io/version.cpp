// SPDX-License-Identifier: Apache-2.0
#include "io/version.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include "io/h5.hpp"

namespace io {

std::string hdf5_version() {
  std::scoped_lock lock(h5_mutex());
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace io
