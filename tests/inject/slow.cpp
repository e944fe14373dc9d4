// SPDX-License-Identifier: Apache-2.0
// Makes a rank slow. A test loads this library before the C library of the ranks (LD_PRELOAD).
//   SLOW=RANK:MS:PLACE   this rank sleeps MS milliseconds once in each step: in its first product
//     (PLACE = computing), or while it begins its first gather of weights (exchange)
// A step begins at the agreement that ends the previous step, a call of MPI_Allreduce.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rank.hpp"

namespace {

struct Plan {
  int ms = 0;  // 0: this rank is not slow
  char place[16] = "";
  Plan() {
    const char *own = own_rank(), *order = std::getenv("SLOW");
    if (!own || !order) return;
    int rank = -1;
    if (std::sscanf(order, "%d:%d:%15s", &rank, &ms, place) != 3) {
      std::fprintf(stderr, "SLOW: not RANK:MS:PLACE: %s\n", order);
      std::abort();
    }
    if (rank != std::atoi(own)) ms = 0;
  }
};

std::atomic<bool> due = false;

void rest_in(const char* place) {
  static const Plan plan;
  if (plan.ms && std::strcmp(place, plan.place) == 0 && due.exchange(false))
    ::usleep(useconds_t(1000 * plan.ms));
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// NOLINTBEGIN: the libraries' names. Handles are pointers in Open MPI and fit into them elsewhere.
extern "C" int MPI_Allreduce(const void* send, void* recv, int count, void* type, void* op,
                             void* comm) {
  static auto real = next<decltype(&MPI_Allreduce)>("MPI_Allreduce");
  due = true;
  return real(send, recv, count, type, op, comm);
}
extern "C" int MPI_Iallgather(const void* send, int count, void* type, void* recv, int recv_count,
                              void* recv_type, void* comm, void* request) {
  static auto real = next<decltype(&MPI_Iallgather)>("MPI_Iallgather");
  rest_in("exchange");
  return real(send, count, type, recv, recv_count, recv_type, comm, request);
}
extern "C" int dnnl_primitive_execute(const void* primitive, void* stream, int count,
                                      const void* arguments) {
  static auto real = next<decltype(&dnnl_primitive_execute)>("dnnl_primitive_execute");
  rest_in("computing");
  return real(primitive, stream, count, arguments);
}
// NOLINTEND
