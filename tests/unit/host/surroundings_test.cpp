// SPDX-License-Identifier: Apache-2.0
// Tests the facts that are recorded about a process and its machine.
#include "host/surroundings.hpp"

#include <gtest/gtest.h>

namespace host {
namespace {

TEST(Surroundings, KeepTheVariablesThatMatterAndNoSecret) {
  Facts facts;
  add_environment({"OMP_NUM_THREADS=2", "HOME=/root", "OMPI_MCA_btl=tcp", "OMPI_COMM_WORLD_RANK=3",
                   "OMPI_MCA_orte_precondition_transports=0123", "SLURM_JWT=abc", "UCX_TLS=rc=x",
                   "TRAINER_API_KEY=abc", "NCCL_DEBUG=a\nb", "no variable"},
                  facts);
  EXPECT_EQ(facts, (Facts{{"env.OMP_NUM_THREADS", "2"},
                          {"env.OMPI_MCA_btl", "tcp"},
                          {"env.SLURM_JWT", "(not shown)"},
                          {"env.TRAINER_API_KEY", "(not shown)"},
                          {"env.UCX_TLS", "rc=x"},
                          {"env.NCCL_DEBUG", "a\\x0ab"}}));
}

TEST(Surroundings, HaveLimitsLibrariesAndTheMachine) {
  Facts facts;
  add_limits(facts);
  add_libraries(facts);
  add_machine(facts);
  EXPECT_TRUE(facts.contains("limit.open_files"));
  EXPECT_EQ(facts.at("library.libc").substr(0, 2), "so");
  EXPECT_FALSE(facts.at("machine.kernel").empty());
  EXPECT_GT(most_memory_bytes(), int64_t{64} << 20);
  EXPECT_GE(program_digest().size(), 16u);
  EXPECT_EQ(program_digest(), program_digest());
}

}  // namespace
}  // namespace host
