// SPDX-License-Identifier: Apache-2.0
#include "comm/large_count.hpp"

#include <limits>

namespace comm::counted {
namespace {

#ifdef TRAINER_MPI_PLUGINS
bool library_counts_long() { return plugin::table().Iallreduce_c != nullptr; }
#else
constexpr bool library_counts_long() { return MPI_VERSION >= 4; }
#endif

// Calls `with_int`, or `with_long` for a count that is too large for it.
template <class WithInt, class WithLong>
int call(int64_t count, WithInt with_int, WithLong with_long) {
  return count > longest_call() ? with_long() : with_int(int(count));
}

}  // namespace

int64_t& longest_call() {
  static int64_t count = std::numeric_limits<int>::max();
  return count;
}

bool& counts_long() {
  static bool value = library_counts_long();
  return value;
}

// A library of MPI 3 declares none of the long calls.
#if defined(TRAINER_MPI_PLUGINS) || MPI_VERSION >= 4
#define TRAINER_LONG(...) [&] { return __VA_ARGS__; }
#else
#define TRAINER_LONG(...) [] { return MPI_ERR_COUNT; }
#endif

int broadcast(void* data, int64_t count, MPI_Datatype type, int root, MPI_Comm comm) {
  return call(
      count, [&](int n) { return MPI_Bcast(data, n, type, root, comm); },
      TRAINER_LONG(MPI_Bcast_c(data, count, type, root, comm)));
}

int begin_sum(void* data, int64_t count, MPI_Datatype type, MPI_Comm comm, MPI_Request* request) {
  return call(
      count,
      [&](int n) { return MPI_Iallreduce(MPI_IN_PLACE, data, n, type, MPI_SUM, comm, request); },
      TRAINER_LONG(MPI_Iallreduce_c(MPI_IN_PLACE, data, count, type, MPI_SUM, comm, request)));
}

int begin_gather(const void* send, int64_t count, MPI_Datatype type, void* recv, MPI_Comm comm,
                 MPI_Request* request) {
  return call(
      count, [&](int n) { return MPI_Iallgather(send, n, type, recv, n, type, comm, request); },
      TRAINER_LONG(MPI_Iallgather_c(send, count, type, recv, count, type, comm, request)));
}

int begin_scatter(const void* send, int64_t count, MPI_Datatype type, void* recv, MPI_Comm comm,
                  MPI_Request* request) {
  return call(
      count,
      [&](int n) { return MPI_Ireduce_scatter_block(send, recv, n, type, MPI_SUM, comm, request); },
      TRAINER_LONG(MPI_Ireduce_scatter_block_c(send, recv, count, type, MPI_SUM, comm, request)));
}

int gather_texts(const void* mine, int rank, void* all, const std::vector<int64_t>& counts,
                 const std::vector<int64_t>& starts, MPI_Comm comm) {
  return call(
      starts.back() + counts.back(),
      [&](int) {
        const std::vector<int> lengths(counts.begin(), counts.end()),
            places(starts.begin(), starts.end());
        return MPI_Allgatherv(mine, lengths[size_t(rank)], MPI_CHAR, all, lengths.data(),
                              places.data(), MPI_CHAR, comm);
      },
      TRAINER_LONG(MPI_Allgatherv_c(mine, counts[size_t(rank)], MPI_CHAR, all,
                                    reinterpret_cast<const MPI_Count*>(counts.data()),
                                    reinterpret_cast<const MPI_Aint*>(starts.data()), MPI_CHAR,
                                    comm)));
}

}  // namespace comm::counted
