// SPDX-License-Identifier: Apache-2.0
// Knows the launchers of MPI jobs: mpirun of Open MPI 4 and 5, mpiexec of MPICH and Intel MPI
// (hydra), and srun with PMIx or PMI-2. launcher.cpp also holds launched_rank and launched_ranks
// (comm.hpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace comm {

enum class Launcher {
  none,
  openmpi,  // mpirun of Open MPI
  pmix,     // srun --mpi=pmix
  pmi,      // mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2
};

// Returns the launcher that gave this process its rank.
Launcher launcher();
// Returns its name, for people.
std::string launcher_name(Launcher launcher);
// Returns the command that gives each rank this number of cores of its own, for advice.
std::string binding_command(Launcher launcher, int cores);

// True for a variable that a launcher sets for its own use: they differ by rank or start, or are
// secrets.
bool is_of_launcher(std::string_view variable);
// Returns this process's environment without the variables that an MPI launcher sets for a rank.
// With these variables, another MPI program would mistake itself for this rank.
std::vector<std::string> environment_without_mpi();

}  // namespace comm
