// SPDX-License-Identifier: Apache-2.0
// main() of a test program that runs on ranks. An exception on one rank aborts the job, because the
// others would wait forever.
#pragma once

#include <cstdio>
#include <exception>

#include "comm/comm.hpp"

namespace tests {

inline int run_ranks(int argc, char** argv,
                     int (*body)(comm::Session& session, int argc, char** argv)) {
  comm::Session session(argc, argv);
  try {
    return body(session, argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "FAILED: rank %d: %s\n", session.world().rank(), e.what());
    std::fflush(stdout);
    comm::Session::abort(1);
  }
}

}  // namespace tests
