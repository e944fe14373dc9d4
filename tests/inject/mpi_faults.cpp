// SPDX-License-Identifier: Apache-2.0
// Injects a fault at a chosen exchange between ranks, or at the decoding of an image. The campaign
// of faults (tests/run/faults.py) loads this library before the C library (LD_PRELOAD).
//   FAULT=RANK:CALL:INDEX:ACTION   that rank does this at the call number INDEX, from 0, of the
//     function CALL: MPI_Iallgather, MPI_Bcast, png_create_read_struct and so on.
//     hang   the call never returns
//     skip   the call returns at once, and this rank takes no part in the exchange
//     half   this rank passes half of the count
//     swap   this rank makes its next call first, as if the program had called them in that
//            order. Its flight page records that order, too
//     slow   this call and all later ones take 300 ms more
//   FAULT_COUNT=N      counts only calls of N elements; a barrier of all ranks has 1
//   FAULT_AFTER=PATH   counts only calls after this file exists
//   FAULT_DONE=PATH    makes this file at the moment of the fault
//   FAULT_HOSTS=1      each rank seems to be on a host of its own, rank0, rank1 ...
//   FAULT_MESSAGES=1   ranks of a node share no memory, so that all sums are messages
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "base/flight_page.hpp"
#include "rank.hpp"

namespace {

enum class Action { none, hang, skip, half, swap, slow };

struct Fault {
  std::string call, after, done;
  Action action = Action::none;
  long at = 0;
  int count = 0;
  std::atomic<long> calls{0};
  bool begun = false;

  Fault() {
    auto text = [](const char* name) {
      return std::string(std::getenv(name) ? std::getenv(name) : "");
    };
    int rank = -1;
    char name[64] = "", what[16] = "";
    if (std::sscanf(text("FAULT").c_str(), "%d:%63[^:]:%ld:%15s", &rank, name, &at, what) != 4 ||
        !own_rank() || own_rank() != std::to_string(rank))
      return;
    call = name;
    after = text("FAULT_AFTER");
    done = text("FAULT_DONE");
    count = std::atoi(text("FAULT_COUNT").c_str());
    const std::string word = what;
    for (const auto& [known, its] : {std::pair{"hang", Action::hang},
                                     {"skip", Action::skip},
                                     {"half", Action::half},
                                     {"swap", Action::swap},
                                     {"slow", Action::slow}})
      if (word == known) action = its;
    if (action == Action::none) {
      std::fprintf(stderr, "FAULT: unknown action %s\n", what);
      std::abort();
    }
  }

  // What to do at this call.
  Action meets(const char* name, int elements) {
    if (action == Action::none || call != name || (count > 0 && elements != count))
      return Action::none;
    if (!begun && !after.empty() && ::access(after.c_str(), F_OK) != 0) return Action::none;
    begun = true;
    const long index = calls++;
    if (index != at && (index < at || action != Action::slow)) return Action::none;
    if (!done.empty()) ::close(::open(done.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    return action;
  }
};

Fault& fault() {
  static Fault* made = new Fault;
  return *made;
}

void rest(int milliseconds) {
  timespec left{milliseconds / 1000, long(milliseconds % 1000) * 1000000};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Returns this process's flight page, or null if the program has mapped none.
base::FlightPage* flight_page() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("/logs/flight/") != line.npos || line.find("memfd:flight") != line.npos)
      return reinterpret_cast<base::FlightPage*>(std::stoull(line, nullptr, 16));
  return nullptr;
}
uint64_t calls_recorded() {
  const base::FlightPage* page = flight_page();
  return page ? page->head.exchanges.load() : 0;
}

// The postponed call, which follows the next call, and its number. Only the thread that calls MPI
// uses this.
struct Postponed {
  std::function<void()> call;
  uint64_t number = 0;
} postponed;

// Swaps the records of the postponed call and of the one after it.
void swap_records() {
  base::FlightPage* page = flight_page();
  if (!page || page->head.exchanges.load() != postponed.number + 1) return;
  auto record = [&](uint64_t call) -> base::FlightPage::Exchange& {
    return page->exchanges[call % base::FlightPage::kExchanges];
  };
  auto &one = record(postponed.number), &other = record(postponed.number + 1);
  auto swap = [](base::FlightWord& a, base::FlightWord& b) { a = b.exchange(a); };
  swap(one.count, other.count);
  swap(one.type, other.type);
  for (size_t i = 0; i < one.kind.size(); ++i) swap(one.kind[i], other.kind[i]);
  for (size_t i = 0; i < one.group.size(); ++i) swap(one.group[i], other.group[i]);
  for (size_t i = 0; i < one.site.size(); ++i) swap(one.site[i], other.site[i]);
  page->head.calls_hash ^= 1;  // another order has another hash
}

int make_postponed(int result) {
  if (postponed.call) {
    const auto call = std::exchange(postponed.call, nullptr);
    call();
  }
  return result;
}

// Stores a request that never completes. The postponed call replaces it.
void never_ends(MPI_Request* request) {
  static char nothing;
  PMPI_Irecv(&nothing, 1, MPI_CHAR, 0, 4711, MPI_COMM_SELF, request);
}

// Returns a copy for a postponed call, because its caller may have freed `memory` by then.
void* kept(const void* memory, int count, MPI_Datatype type) {
  if (memory == MPI_IN_PLACE || !memory) return const_cast<void*>(memory);
  int size = 0;
  MPI_Type_size(type, &size);
  const size_t bytes = size_t(count) * size_t(size);
  return std::memcpy(std::malloc(bytes + 1), memory, bytes);
}

// Applies the fault for this call, if any, and makes the call with this count. `request` is null
// for a blocking call. For these, `later` returns the call with copies of its memory.
template <class Call, class Later>
int meet(const char* name, int count, MPI_Request* request, Call call, Later later) {
  if (postponed.call) swap_records();
  switch (fault().meets(name, count)) {
    case Action::hang:
      for (;;) rest(1000000);
    case Action::skip:
      if (request) *request = MPI_REQUEST_NULL;
      return MPI_SUCCESS;
    case Action::half:
      return make_postponed(call(count / 2));
    case Action::swap:
      if (request) never_ends(request);
      postponed = {later(), calls_recorded()};
      return MPI_SUCCESS;
    case Action::slow:
      rest(300);
      break;
    case Action::none:
      break;
  }
  return make_postponed(call(count));
}

template <class Call>
int meet(const char* name, int count, MPI_Request* request, Call call) {
  return meet(name, count, request, call,
              [=] { return std::function<void()>([=] { call(count); }); });
}

}  // namespace

// NOLINTBEGIN: the names of MPI and of the C library
extern "C" {

int MPI_Iallreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  return meet("MPI_Iallreduce", count, request,
              [=](int n) { return PMPI_Iallreduce(send, recv, n, type, op, comm, request); });
}
int MPI_Iallgather(const void* send, int count, MPI_Datatype type, void* recv, int, MPI_Datatype,
                   MPI_Comm comm, MPI_Request* request) {
  return meet("MPI_Iallgather", count, request,
              [=](int n) { return PMPI_Iallgather(send, n, type, recv, n, type, comm, request); });
}
int MPI_Ireduce_scatter_block(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                              MPI_Comm comm, MPI_Request* request) {
  return meet("MPI_Ireduce_scatter_block", count, request, [=](int n) {
    return PMPI_Ireduce_scatter_block(send, recv, n, type, op, comm, request);
  });
}
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  return meet(
      "MPI_Bcast", count, nullptr, [=](int n) { return PMPI_Bcast(data, n, type, root, comm); },
      [=]() -> std::function<void()> {
        void* own = kept(data, count, type);
        return [=] { PMPI_Bcast(own, count, type, root, comm); };
      });
}
int MPI_Barrier(MPI_Comm comm) {
  return meet("MPI_Barrier", int(comm == MPI_COMM_WORLD), nullptr,
              [=](int) { return PMPI_Barrier(comm); });
}
int MPI_Allreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  return meet(
      "MPI_Allreduce", count, nullptr,
      [=](int n) { return PMPI_Allreduce(send, recv, n, type, op, comm); },
      [=]() -> std::function<void()> {
        const void* from = kept(send, count, type);
        void* to = kept(recv, count, type);
        return [=] { PMPI_Allreduce(from, to, count, type, op, comm); };
      });
}
int MPI_Allgather(const void* send, int count, MPI_Datatype type, void* recv, int to,
                  MPI_Datatype recv_type, MPI_Comm comm) {
  return meet(
      "MPI_Allgather", count, nullptr,
      [=](int n) {
        return PMPI_Allgather(send, n, type, recv, n == count ? to : n, recv_type, comm);
      },
      [=]() -> std::function<void()> {
        int ranks = 0;
        MPI_Comm_size(comm, &ranks);
        const void* from = kept(send, count, type);
        void* all = kept(recv, to * ranks, recv_type);
        return [=] { PMPI_Allgather(from, count, type, all, to, recv_type, comm); };
      });
}

int MPI_Get_processor_name(char* name, int* length) {
  if (!std::getenv("FAULT_HOSTS")) return PMPI_Get_processor_name(name, length);
  const char* rank = own_rank();
  *length = std::snprintf(name, MPI_MAX_PROCESSOR_NAME, "rank%s", rank ? rank : "0");
  return MPI_SUCCESS;
}

int memfd_create(const char* name, unsigned flags) {
  if (std::getenv("FAULT_MESSAGES") && std::strcmp(name, "trainer") == 0) {
    errno = ENOSYS;
    return -1;
  }
  return int(::syscall(SYS_memfd_create, name, flags));
}

// The first call for each PNG image, as libpng declares it.
void* png_create_read_struct(const char* version, void* data, void (*error)(void*, const char*),
                             void (*warning)(void*, const char*)) {
  static auto real = reinterpret_cast<decltype(&png_create_read_struct)>(
      ::dlsym(RTLD_NEXT, "png_create_read_struct"));
  if (fault().meets("png_create_read_struct", 0) == Action::hang)
    for (;;) rest(1000000);
  return real(version, data, error, warning);
}

}  // extern "C"
// NOLINTEND
