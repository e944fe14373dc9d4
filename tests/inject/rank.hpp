// SPDX-License-Identifier: Apache-2.0
// The rank of this process, for libraries that tests load before the C library.
#pragma once

#include <cstdlib>
#include <initializer_list>

// Returns the rank from the launcher's environment variable (src/comm/launcher.cpp), or null
// without a launcher.
inline const char* own_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name)) return rank;
  return nullptr;
}
