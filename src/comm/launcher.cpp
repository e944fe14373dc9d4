// SPDX-License-Identifier: Apache-2.0
#include "comm/launcher.hpp"

#include <unistd.h>

#include <string_view>

namespace comm {

std::vector<std::string> environment_without_mpi() {
  auto is_launchers = [](std::string_view variable) {
    // The user's word that MPI may run as root is none of the launcher's.
    if (variable.starts_with("OMPI_ALLOW_RUN_AS_ROOT")) return false;
    for (const char* prefix : {"OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_"})
      if (variable.starts_with(prefix)) return true;
    return false;
  };
  std::vector<std::string> kept;
  for (char** variable = environ; variable && *variable; ++variable)
    if (!is_launchers(*variable)) kept.emplace_back(*variable);
  return kept;
}

}  // namespace comm
