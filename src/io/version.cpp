// SPDX-License-Identifier: Apache-2.0
#include "io/version.hpp"

#include <fmt/format.h>

#include "io/h5_handle.hpp"

namespace io {

std::string hdf5_version() {
  H5Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}-{}", major, minor, release,
                     hdf5_is_parallel() ? "parallel" : "serial");
}

bool hdf5_is_parallel() {
#ifdef TRAINER_HDF5_MPIO
  return true;
#else
  return false;
#endif
}

}  // namespace io
