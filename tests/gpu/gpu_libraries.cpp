// SPDX-License-Identifier: Apache-2.0
// Prints the version and path of each CUDA library that this process loads, and sums numbers with
// NCCL in a group of one. Lines: "library NAME VERSION PATH". Ends with 77 and a reason without a
// GPU, and with 1 if a library is missing or its sum is wrong.
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda.hpp"
#include "device/gpu.hpp"
#include "device/memory.hpp"
#include "kernels/cuda/call_cublaslt.hpp"
#include "kernels/cuda/graph_cudnn.hpp"
#if __has_include(<nccl.h>)
#include <nccl.h>
#define NCCL(function) LIBRARY_FUNCTION("libnccl.so.2", function)
#endif

namespace {

template <class Function>
void print_library(const char* name, Function* function, const std::string& version) {
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<void*>(function), &info) != 0;
  std::printf("library %s %s %s\n", name, version.c_str(), known ? info.dli_fname : "?");
}

#ifdef NCCL
void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess)
    base::fail(base::Exit::mesh, "NCCL: {}: {}", what, NCCL(ncclGetErrorString)(result));
}

// Waits until a non-blocking communicator has finished its last call.
void settle(ncclComm_t comm, const char* what) {
  constexpr auto kLimit = std::chrono::seconds(20);
  const auto begin = std::chrono::steady_clock::now();
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    check(NCCL(ncclCommGetAsyncError)(comm, &state), what);
    if (std::chrono::steady_clock::now() - begin > kLimit)
      base::fail(base::Exit::mesh, "NCCL: {}: no end after 20 s", what);
    std::this_thread::yield();
  }
  check(state, what);
}

void sum_in_a_group_of_one() {
  int version = 0;
  check(NCCL(ncclGetVersion)(&version), "its version");
  print_library("nccl", NCCL(ncclGetVersion), std::to_string(version));
  device::Queue queue(device::Kind::cuda);
  device::Ledger ledger;
  const std::vector<float> numbers(1000, 2.5f);
  std::vector<float> got(numbers.size());
  const int64_t count = int64_t(numbers.size());
  device::Buffer from(device::Kind::cuda, ledger, "numbers", 4 * count),
      to(device::Kind::cuda, ledger, "sums", 4 * count);
  device::upload(from.view(device::DType::f32).slice(0, count), numbers.data(), queue);

  ncclUniqueId id;
  check(NCCL(ncclGetUniqueId)(&id), "making an id");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t joined = NCCL(ncclCommInitRankConfig)(&comm, 1, id, 0, &config);
  if (joined != ncclInProgress) check(joined, "a group of one");
  settle(comm, "a group of one");
  const ncclResult_t queued = NCCL(ncclAllReduce)(
      from.data(), to.data(), numbers.size(), ncclFloat32, ncclSum, comm, device::stream_of(queue));
  if (queued != ncclInProgress) check(queued, "a sum");
  settle(comm, "a sum");
  device::download(got.data(), to.view(device::DType::f32).slice(0, count), queue);
  NCCL(ncclCommAbort)(comm);
  if (got != numbers) base::fail(base::Exit::mesh, "NCCL: the sum over a group of one is wrong");
  std::printf("NCCL: a group of one adds %zu numbers\n", got.size());
}
#else
void sum_in_a_group_of_one() { std::printf("NCCL: not in this build\n"); }
#endif

int look() {
  const device::Gpus gpus = device::find_gpus();
  if (gpus.count == 0) {
    std::printf("skipped: %s\n", gpus.none_because.c_str());
    return 77;
  }
  device::use_gpu(0);
  std::printf("on %s\n", device::gpu_name().c_str());
  int status = 0;
  const std::function<void()> libraries[] = {
      [] {
        print_library("cublasLt", LT(cublasLtGetVersion), std::to_string(LT(cublasLtGetVersion)()));
      },
      [] { print_library("cudnn", DNN(cudnnGetVersion), std::to_string(DNN(cudnnGetVersion)())); },
      sum_in_a_group_of_one};
  for (const auto& library : libraries) {
    try {
      library();
    } catch (const base::Error& e) {
      std::printf("%s\n", e.what());
      status = 1;
    }
  }
  return status;
}

}  // namespace

int main() {
  try {
    return look();
  } catch (const base::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return int(e.code());
  }
}
