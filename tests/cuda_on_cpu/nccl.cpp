// SPDX-License-Identifier: Apache-2.0
// Emulates NCCL between processes of one machine, through shared memory. Communicators must be
// non-blocking. Operations run, in pieces that fit, when their stream is queried. Two ranks on one
// GPU are refused, as NCCL 2.28 does. NCCL_ON_CPU requests a failure: "hang@N" (operation N of this
// process never takes part), "error@N" (as hang@N, and its communicator has an asynchronous error),
// "refuse@N" (the call fails), "absent" (this rank never joins a communicator).
#include "nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "watch.hpp"

namespace {

constexpr int kMostRanks = 16;
constexpr size_t kSlot = 96 * 1024;  // per rank; a multiple of 16 x 8

struct Shared {
  std::atomic<int> joined, left;
  std::atomic<int64_t> arrived;
  char devices[kMostRanks][16];
  alignas(64) char slots[kMostRanks][kSlot];
};

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

int operations = 0;  // of this process

bool asked_for(const std::string& what) {
  const char* text = std::getenv("NCCL_ON_CPU");
  return text && what + "@" + std::to_string(operations) == text;
}

// Copies between memory of the GPU and slots.
void take(char* slot, const char* from, size_t bytes) {
  cuda_on_cpu::reads(from, bytes);
  std::memcpy(slot, from, bytes);
}
void give(char* to, const char* slot, size_t bytes) {
  cuda_on_cpu::writes(to, bytes);
  std::memcpy(to, slot, bytes);
}

template <class T>
void add(void* into, const void* from, size_t count) {
  for (size_t i = 0; i < count; ++i) static_cast<T*>(into)[i] += static_cast<const T*>(from)[i];
}

}  // namespace

struct EmulatedNccl {
  Shared* shared;
  std::string name;
  int rank, ranks;
  int asked = 0;  // queries of its state; at least three are answered with "in progress"
  int64_t barriers = 0;
  bool absent = false;
  ncclResult_t failure = ncclSuccess;
  // set to true, it ends the communicator's pending operations
  std::shared_ptr<bool> gone = std::make_shared<bool>(false);

  void arrive() {
    ++barriers;
    shared->arrived.fetch_add(1);
  }
  bool all_here() const { return shared->arrived.load() >= barriers * ranks; }
  void sum(void* into, size_t offset, size_t count, ncclDataType_t type) const {
    cuda_on_cpu::writes(into, count * size_of(type));
    std::memset(into, 0, count * size_of(type));
    for (int r = 0; r < ranks; ++r)
      (type == ncclFloat64 ? add<double> : add<float>)(into, shared->slots[r] + offset, count);
  }
};

namespace {

// Submits one collective of `pieces` rounds. In each round all ranks write their slots, then all
// ranks read.
template <class Write, class Read>
ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, size_t pieces, Write write, Read read) {
  ++operations;
  if (asked_for("refuse")) return ncclInvalidArgument;
  if (asked_for("error")) comm->failure = ncclSystemError;
  bool lost = asked_for("hang") || comm->failure != ncclSuccess;
  cuda_on_cpu::submit_waiting(stream,
                              [=, gone = comm->gone, piece = size_t(0), phase = 0]() mutable {
                                for (; !lost && !*gone && piece < pieces; ++piece, phase = 0) {
                                  cuda_on_cpu::Access access;
                                  if (phase == 0) {
                                    write(piece);
                                    comm->arrive();
                                    phase = 1;
                                  }
                                  if (phase == 1 && !comm->all_here()) return false;
                                  if (phase == 1) {
                                    read(piece);
                                    comm->arrive();
                                    phase = 2;
                                  }
                                  if (!comm->all_here()) return false;
                                }
                                return !lost || *gone;
                              });
  return ncclSuccess;
}

const char* at(const void* p, size_t bytes) { return static_cast<const char*>(p) + bytes; }
char* at(void* p, size_t bytes) { return static_cast<char*>(p) + bytes; }

struct Cut {  // splits `bytes` into pieces of at most `most`
  size_t bytes, most;
  size_t pieces() const { return (bytes + most - 1) / most; }
  size_t begin(size_t piece) const { return piece * most; }
  size_t length(size_t piece) const { return std::min(most, bytes - begin(piece)); }
};

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t r) {
  return r == ncclSystemError ? "unhandled system error" : "invalid usage";
}
const char* ncclGetLastError(ncclComm_t) { return "a cable was pulled (emulated)"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  int file = -1;
  // The name may exist already: a killed process leaves its file behind, and containers that share
  // /dev/shm have the same process numbers.
  do {
    std::snprintf(id->internal, sizeof id->internal, "/nccl_on_cpu.%d.%d", int(getpid()), made++);
    file = shm_open(id->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
  } while (file < 0 && errno == EEXIST);
  bool good = file >= 0 && ftruncate(file, sizeof(Shared)) == 0;
  if (file >= 0) close(file);
  return good ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0 || ranks > kMostRanks) return ncclInvalidArgument;
  int file = shm_open(id.internal, O_RDWR, 0600);
  if (file < 0) return ncclSystemError;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  auto* shared = static_cast<Shared*>(memory);
  *out = new EmulatedNccl{shared, id.internal, rank, ranks};
  const char* asked = std::getenv("NCCL_ON_CPU");
  (*out)->absent = asked && std::string(asked) == "absent";
  cudaDeviceProp properties{};
  int device = 0;
  cudaGetDevice(&device);
  cudaGetDeviceProperties(&properties, device);
  std::memcpy(shared->devices[rank], properties.uuid.bytes, 16);
  if (!(*out)->absent) shared->joined.fetch_add(1);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->failure;
  if (comm->failure != ncclSuccess) return ncclSuccess;
  bool ready = comm->shared->joined.load() == comm->ranks && ++comm->asked > 3 && !comm->absent;
  if (!ready) {
    *state = ncclInProgress;
    return ncclSuccess;
  }
  for (int r = 0; r < comm->ranks; ++r)
    if (r != comm->rank &&
        std::memcmp(comm->shared->devices[r], comm->shared->devices[comm->rank], 16) == 0)
      *state = comm->failure = ncclInvalidUsage;  // "Duplicate GPU detected"
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->shared->left.fetch_add(1) == 0) shm_unlink(comm->name.c_str());
  munmap(comm->shared, sizeof(Shared));
  *comm->gone = true;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  Cut cut{count * size_of(type), kSlot};
  return submit(
      comm, stream, cut.pieces(),
      [=](size_t p) {
        take(comm->shared->slots[comm->rank], at(send, cut.begin(p)), cut.length(p));
      },
      [=](size_t p) { comm->sum(at(recv, cut.begin(p)), 0, cut.length(p) / size_of(type), type); });
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  const size_t most = kSlot / kMostRanks;
  Cut cut{count * size_of(type), most};
  return submit(
      comm, stream, cut.pieces(),
      [=](size_t p) {
        for (int r = 0; r < comm->ranks; ++r)
          take(comm->shared->slots[comm->rank] + size_t(r) * most,
               at(send, size_t(r) * cut.bytes + cut.begin(p)), cut.length(p));
      },
      [=](size_t p) {
        comm->sum(at(recv, cut.begin(p)), size_t(comm->rank) * most, cut.length(p) / size_of(type),
                  type);
      });
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  Cut cut{count * size_of(type), kSlot};
  return submit(
      comm, stream, cut.pieces(),
      [=](size_t p) {
        take(comm->shared->slots[comm->rank], at(send, cut.begin(p)), cut.length(p));
      },
      [=](size_t p) {
        for (int r = 0; r < comm->ranks; ++r)
          give(at(recv, size_t(r) * cut.bytes + cut.begin(p)), comm->shared->slots[r],
               cut.length(p));
      });
}
