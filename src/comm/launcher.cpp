// SPDX-License-Identifier: Apache-2.0
#include "comm/launcher.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include "comm/comm.hpp"

namespace comm {
namespace {

struct Row {
  Launcher launcher;
  const char *name, *rank, *ranks;  // variables that hold the rank, and the number of ranks
};
// The first row whose rank is set counts: Open MPI 5 sets PMIX_RANK as well. SLURM's PMIx gives no
// number of ranks.
constexpr std::array kRows = {
    Row{Launcher::openmpi, "mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    Row{Launcher::pmix, "srun --mpi=pmix", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
    Row{Launcher::pmi, "mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2", "PMI_RANK",
        "PMI_SIZE"}};

// The names of processes that start ranks, cut off after 15 letters.
constexpr std::array kStarters = {"mpirun",  "mpiexec", "orterun",         "orted",
                                  "prterun", "prted",   "hydra_pmi_proxy", "slurmstepd"};

// An MPI process learns from variables with these prefixes that it is a rank.
constexpr std::array kOfMpi = {"OMPI_", "PMIX_",           "PMI_",     "PMI2_", "PRTE_",
                               "ORTE_", "HYDI_CONTROL_FD", "MPI_LOCAL"};
constexpr std::array kOfLauncher = {
    "OMPI_MCA_orte_",        "OMPI_MCA_ess_",   "OMPI_MCA_pmix",
    "OMPI_MCA_initial_wdir", "OMPI_MCA_prte_",  "OMPI_ARGV",
    "OMPI_COMMAND",          "OMPI_APP_",       "OMPI_FIRST_RANKS",
    "OMPI_FILE_LOCATION",    "OMPI_NUM_APP",    "OMPI_UNIVERSE_",
    "OMPI_COMM_WORLD",       "OMPI_MCA_shmem_", "SLURM_PROCID",
    "SLURM_LOCALID",         "SLURM_NODEID",    "SLURM_TASK_PID",
    "SLURM_GTIDS",           "SLURM_STEP_",     "SLURM_SRUN_",
    "SLURM_LAUNCH_",         "PBS_VNODENUM",    "PBS_TASKNUM",
    "PBS_MOMPORT",           "I_MPI_HYDRA_",    "I_MPI_INFO_",
    "I_MPI_MPIRUN",          "HYDRA_",          "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"};

template <size_t N>
bool begins_with_any(std::string_view name, const std::array<const char*, N>& beginnings) {
  return std::ranges::any_of(beginnings, [&](const char* b) { return name.starts_with(b); });
}

const Row* row() {
  for (const Row& one : kRows)
    if (std::getenv(one.rank)) return &one;
  return nullptr;
}

int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

// True if the launcher started this process itself, not a script that runs it. A rank's script may
// run several processes, or only one rank may run one, so such a process must not wait for other
// ranks.
bool launched_directly() {
  std::string parent;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", getppid())), parent);
  parent = parent.substr(0, parent.find('.'));  // Debian has mpirun.openmpi and mpiexec.mpich, too
  return std::ranges::find(kStarters, parent) != kStarters.end();
}

}  // namespace

Launcher launcher() {
  const Row* one = row();
  return one ? one->launcher : Launcher::none;
}

std::string launcher_name(Launcher launcher) {
  for (const Row& one : kRows)
    if (one.launcher == launcher) return one.name;
  return "no launcher";
}

std::string binding_command(Launcher launcher, int cores) {
  switch (launcher) {
    case Launcher::pmix:
      return fmt::format("srun --cpus-per-task={} --cpu-bind=cores", cores);
    case Launcher::pmi:
      return fmt::format("mpiexec -bind-to core:{}", cores);
    default:
      return fmt::format("mpirun --map-by slot:PE={} --bind-to core", cores);
  }
}

int launched_rank() {
  const Row* one = row();
  return one ? number(one->rank) : 0;
}

int launched_ranks() {
  const Row* one = row();
  if (!one || !launched_directly()) return 1;
  return std::max(1, number(one->ranks));
}

bool is_of_launcher(std::string_view variable) { return begins_with_any(variable, kOfLauncher); }

std::vector<std::string> environment_without_mpi() {
  auto is_launchers = [](std::string_view variable) {
    // The user, not the launcher, sets OMPI_ALLOW_RUN_AS_ROOT.
    return begins_with_any(variable, kOfMpi) && !variable.starts_with("OMPI_ALLOW_RUN_AS_ROOT");
  };
  std::vector<std::string> kept;
  for (char** variable = environ; variable && *variable; ++variable)
    if (!is_launchers(*variable)) kept.emplace_back(*variable);
  return kept;
}

}  // namespace comm
