// SPDX-License-Identifier: Apache-2.0
#include "comm/launcher.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "comm/comm.hpp"
#include "comm/mpi_library.hpp"

namespace comm {
namespace {

// Removes the launcher's variables, and sets the given ones while the object lives.
class Variables {
 public:
  Variables(std::initializer_list<std::pair<const char*, const char*>> set) : set_(set) {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) ::unsetenv(name);
    for (const auto& [name, value] : set_) ::setenv(name, value, 1);
  }
  ~Variables() {
    for (const auto& [name, value] : set_) ::unsetenv(name);
  }
  Variables(const Variables&) = delete;

 private:
  std::vector<std::pair<const char*, const char*>> set_;
};

TEST(Launcher, EachGivesARank) {
  {
    const Variables none{};
    EXPECT_EQ(launcher(), Launcher::none);
    EXPECT_EQ(launched_rank(), 0);
  }
  {
    // Open MPI 5 starts ranks by PMIx and sets both.
    const Variables set{{"OMPI_COMM_WORLD_RANK", "3"}, {"PMIX_RANK", "3"}};
    EXPECT_EQ(launcher(), Launcher::openmpi);
    EXPECT_EQ(launched_rank(), 3);
  }
  {
    const Variables set{{"PMIX_RANK", "2"}};
    EXPECT_EQ(launcher(), Launcher::pmix);
    EXPECT_EQ(launched_rank(), 2);
    EXPECT_EQ(binding_command(launcher(), 4), "srun --cpus-per-task=4 --cpu-bind=cores");
  }
  {
    const Variables set{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
    EXPECT_EQ(launcher(), Launcher::pmi);
    EXPECT_EQ(launched_rank(), 1);
    EXPECT_EQ(launched_ranks(), 1);  // this process's parent is not a launcher
    EXPECT_EQ(binding_command(launcher(), 4), "mpiexec -bind-to core:4");
  }
}

TEST(Launcher, ARanksVariablesAreLeftOut) {
  const Variables set{
      {"OMPI_COMM_WORLD_RANK", "3"}, {"PMIX_RANK", "3"},       {"PMI_RANK", "3"},
      {"MPI_LOCALRANKID", "0"},      {"HYDI_CONTROL_FD", "9"}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
      {"I_MPI_FABRICS", "shm"}};
  const std::vector<std::string> kept = environment_without_mpi();
  auto has = [&kept](const std::string& begin) {
    return std::any_of(kept.begin(), kept.end(),
                       [&](const std::string& one) { return one.starts_with(begin); });
  };
  EXPECT_FALSE(has("OMPI_COMM") || has("PMIX_") || has("PMI_") || has("MPI_LOCAL") || has("HYDI_"));
  EXPECT_TRUE(has("OMPI_ALLOW_RUN_AS_ROOT=") && has("PATH=") && has("I_MPI_FABRICS="));
}

TEST(MpiLibrary, IsNamedByItsOwnText) {
  auto seen = [](const std::string& text) {
    const MpiLibrary library = mpi_library_of(text);
    return library.name + " " + library.version;
  };
  EXPECT_EQ(seen("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4"),
            "openmpi 4.1.4");
  EXPECT_EQ(seen("MPICH Version:      4.0.2\nMPICH Release date: Thu Apr  7 12:34:45 CDT 2022\n"),
            "mpich 4.0.2");
  EXPECT_EQ(seen("Intel(R) MPI Library 2021.19 for Linux* OS\n"), "intelmpi 2021.19");
  EXPECT_EQ(seen("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\n"),
            "craympich 8.1.25.17");
  EXPECT_EQ(seen("MVAPICH2 Version      :\t2.3.7\n"), "mvapich 2.3.7");
  EXPECT_EQ(seen("something else"), "mpi unknown");
}

}  // namespace
}  // namespace comm
