// SPDX-License-Identifier: Apache-2.0
#include "host/machine_limits.hpp"

#include <algorithm>
#include <bit>

#include "base/clock.hpp"
#include "device/memory.hpp"
#include "kernels/elementwise.hpp"

namespace host {
namespace {

using device::DType;

// Returns the median of the calls' seconds. Step times are medians too; the fastest of hundreds of
// calls would need a machine without disturbance, which no step has. The first call, which
// prepares, does not count.
template <class Args>
double usual(const Args& args, device::Queue& queue, double seconds) {
  kernels::run(args, queue);
  std::vector<double> calls;
  base::Stopwatch total;
  do {
    base::Stopwatch watch;
    kernels::run(args, queue);
    calls.push_back(watch.seconds());
  } while (total.seconds() < seconds);
  std::sort(calls.begin(), calls.end());
  return median_of(calls);
}

struct Matrices {
  device::Queue& queue;
  device::Ledger ledger{};
  std::vector<device::Buffer> buffers{};
  // Makes an array and writes it with all threads. Pages that were never written are all one page
  // of zeros, which the cache serves. Both halves of a word are bf16 of 0.01.
  device::View make(int64_t count, DType type = DType::f32) {
    buffers.emplace_back(device::Kind::cpu, ledger, "limits", count * device::size_of(type));
    kernels::run(kernels::Fill{.y = buffers.back().view(DType::f32),
                               .value = std::bit_cast<float>(0x3c243c24u)},
                 queue);
    return buffers.back().view(type).slice(0, count);
  }
};

}  // namespace

double median_of(const std::vector<double>& sorted) {
  const size_t n = sorted.size();
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double measure_peak(comm::Comm& world, int threads, DType type, double seconds) {
  kernels::GemmUse square{.m = 768, .n = 768, .k = 768, .type = type};
  return 2.0 * 768 * 768 * 768 / measure_gemms(world, threads, {square}, seconds)[0];
}

std::vector<double> measure_gemms(comm::Comm& world, int threads,
                                  const std::vector<kernels::GemmUse>& shapes, double seconds) {
  device::Queue queue(device::Kind::cpu, threads);
  std::vector<double> found;
  world.barrier();
  for (const kernels::GemmUse& s : shapes) {
    Matrices matrices{queue};
    found.push_back(usual(
        kernels::Gemm{
            .c = matrices.make(s.m * s.n, s.result),
            .a = matrices.make(s.m * s.k, s.type),
            .b = matrices.make(s.k * s.n, s.type),
            .bias = s.bias ? matrices.make(s.n, s.result) : device::View{},
            .residual = s.residual ? matrices.make(s.m * s.n) : device::View{},
            .m = s.m,
            .n = s.n,
            .k = s.k,
            .trans_a = s.trans_a,
            .trans_b = s.trans_b,
            .write = s.accumulate ? kernels::Write::accumulate : kernels::Write::overwrite,
            .gelu = s.gelu ? matrices.make(s.m * s.n, s.result) : device::View{},
            .gelu_of = s.gelu_of ? matrices.make(s.m * s.n, s.result) : device::View{}},
        queue, seconds));
  }
  return found;
}

double probe_cores(comm::Comm& world, int threads) {
  constexpr int kLanes = 32, kRounds = 40'000;
  double slowest = 0;
#pragma omp parallel num_threads(threads) reduction(max : slowest)
  {
    float sums[kLanes] = {};
    float factor = 0.5f, term = 1.0f;
    // The compiler cannot know these values, so it cannot compute the loop at compile time.
    asm volatile("" : "+m"(factor), "+m"(term));
    base::Stopwatch watch;
    for (int i = 0; i < kRounds; ++i)
      for (float& sum : sums) sum = sum * factor + term;
    float all = 0;
    for (float sum : sums) all += sum;
    asm volatile("" : : "m"(all));
    slowest = watch.seconds();
  }
  return world.max(slowest);
}

double measure_all_reduce(comm::Comm& world, int64_t bytes) {
  device::Queue queue(device::Kind::cpu, 1);
  device::Ledger ledger;
  const device::Buffer memory = world.shared_buffer(device::Kind::cpu, ledger, "limits", bytes);
  device::View floats = memory.view(DType::f32);
  kernels::run(kernels::Fill{.y = floats, .value = 1}, queue);
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    world.barrier();
    base::Stopwatch watch;
    world.all_reduce(floats).wait();
    seconds.push_back(world.max(watch.seconds()));
  }
  std::sort(seconds.begin(), seconds.end());
  return median_of(seconds);
}

double measure_copy(comm::Comm& world, int threads, double seconds) {
  device::Queue queue(device::Kind::cpu, threads);
  Matrices matrices{queue};
  constexpr int64_t kCount = 16 << 20;
  device::View y = matrices.make(kCount), x = matrices.make(kCount);
  world.barrier();
  return 8.0 * double(kCount) / usual(kernels::Copy{.y = y, .x = x}, queue, seconds);
}

}  // namespace host
