// SPDX-License-Identifier: Apache-2.0
// For tests on real ranks: counted checks, lines that the first rank prints, the meshes of a job,
// and a mesh of one rank alone.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.hpp"
#include "ranks.hpp"

namespace tests {

// Each program sets it before its first check.
inline comm::Session* session = nullptr;
inline int checks = 0, failures = 0;

inline void expect(bool good, const std::string& text) {
  ++checks;
  if (good) return;
  if (++failures <= 20)
    std::printf("FAILED on rank %d: %s\n", session->world().rank(), text.c_str());
}

// Prints a line at the first rank.
inline void say(const std::string& text) {
  if (session->world().rank() == 0) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

// Prints the number of checks and failures. Returns the exit code of the program.
inline int conclude(const std::string& program) {
  int64_t total = session->world().sum(int64_t{failures});
  say(fmt::format("{}: {} checks on each of {} ranks, {} failures", program, checks,
                  session->world().size(), total));
  return total ? 1 : 0;
}

// A mesh of this rank alone.
struct Alone {
  static std::unique_ptr<comm::Comm> one() {
    return session->split(session->world().rank(), 0, comm::SumOrder::tree);
  }
  std::unique_ptr<comm::Comm> world = one();
  comm::Mesh mesh{.shape = {1, 1}, .world = world.get(), .fsdp = one(), .replica = one()};
};

// Every mesh that all ranks of the job can form.
inline std::vector<comm::MeshShape> shapes() {
  std::vector<comm::MeshShape> out;
  int ranks = session->world().size();
  for (int replica = 1; replica <= ranks; ++replica)
    if (ranks % replica == 0) out.push_back({replica, ranks / replica});
  return out;
}

inline bool power_of_two() { return std::has_single_bit(unsigned(session->world().size())); }

}  // namespace tests
