// SPDX-License-Identifier: Apache-2.0
// The speed of each rank beside the others, while all are busy. What counts is the fastest of many
// short pieces of work: a rank that shares its core with other programs still has such pieces, and
// one whose processor or memory is slow has none.
#include <algorithm>
#include <fstream>
#include <map>

#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "device/gpu.hpp"
#include "device/memory.hpp"
#include "host/machine_limits.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"
#include "modes/selftest_checks.hpp"

namespace modes::selftest {
namespace {

using device::DType;

// Returns the seconds that the calling thread has waited for a core; 0 if the kernel does not say.
double waited_for_core() {
  std::ifstream file("/proc/thread-self/schedstat");  // run, wait (ns), slices
  double run = 0, wait = 0;
  return file >> run >> wait ? wait * 1e-9 : 0;
}

// Returns what products' bits may depend on: the processor and its instructions, or the GPU.
std::string platform(const Place& place) {
  if (place.device.kind == device::Kind::cuda) return device::gpu_name();
  std::ifstream file("/proc/cpuinfo");
  std::string model, flags;
  for (std::string line; std::getline(file, line) && (model.empty() || flags.empty());) {
    if (line.starts_with("model name")) model = line;
    if (line.starts_with("flags")) flags = line;
  }
  return fmt::format("{:x}", base::xxh3(model + flags));
}

// A product of square matrices, and a copy in parts.
class Work {
 public:
  explicit Work(const Place& place)
      : on_gpu_(place.device.kind == device::Kind::cuda),
        size_(on_gpu_ ? 1024 : 256),
        queue_(place.device.kind, place.threads),
        a_(made(size_ * size_)),
        b_(made(size_ * size_)),
        c_(made(size_ * size_)),
        from_(made(copied())),
        to_(made(copied())) {
    std::vector<float> values(static_cast<size_t>(size_ * size_));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = float((i * 2654435761u >> 20 & 0xfff)) * 0x1p-12f - 0.5f;
    device::upload(a_.view(DType::f32), values.data(), queue_);
    device::upload(b_.view(DType::f32), values.data(), queue_);
    kernels::run(kernels::Fill{.y = from_.view(DType::f32), .value = 1}, queue_);
    multiply(queue_);
    copy(0);
    queue_.synchronize("the first work of a selftest");
  }

  double flops() const { return 2.0 * double(size_) * double(size_) * double(size_); }
  // Bytes of all parts, read and written.
  double bytes() const { return 8.0 * double(copied()); }
  int parts() const { return on_gpu_ ? 1 : 32; }

  double time_product() {
    const base::Stopwatch watch;
    multiply(queue_);
    queue_.synchronize("a product");
    return watch.seconds();
  }
  double time_copy(int part) {
    const base::Stopwatch watch;
    copy(part);
    queue_.synchronize("a copy");
    return watch.seconds();
  }
  // Returns the digest of a product whose bits do not depend on the number of threads.
  uint64_t digest(const Place& place) {
    device::Queue fixed(place.device.kind, place.threads, true);
    multiply(fixed);
    std::vector<float> values(static_cast<size_t>(size_ * size_));
    device::download(values.data(), c_.view(DType::f32), fixed);
    return base::xxh3(values.data(), values.size() * 4);
  }

 private:
  device::Buffer made(int64_t count) { return {queue_.kind(), ledger_, "selftest", count * 4}; }
  // More floats than caches hold.
  int64_t copied() const { return on_gpu_ ? 64 << 20 : 8 << 20; }
  void multiply(device::Queue& queue) {
    kernels::run(kernels::Gemm{.c = c_.view(DType::f32),
                               .a = a_.view(DType::f32),
                               .b = b_.view(DType::f32),
                               .m = size_,
                               .n = size_,
                               .k = size_},
                 queue);
  }
  void copy(int part) {
    const int64_t count = copied() / parts();
    kernels::run(kernels::Copy{.y = to_.view(DType::f32).slice(part * count, count),
                               .x = from_.view(DType::f32).slice(part * count, count)},
                 queue_);
  }

  bool on_gpu_;
  int64_t size_;
  device::Ledger ledger_;
  device::Queue queue_;
  device::Buffer a_, b_, c_, from_, to_;
};

Speed measure(Place& place, double seconds) {
  Work work(place);
  Speed speed{.digest = work.digest(place)};
  place.world().barrier();
  const double waited_before = waited_for_core();
  const base::Stopwatch all;
  base::Stopwatch part;
  double fastest = 1e30;
  int products = 0;
  for (; products < 8 || part.seconds() < seconds / 2; ++products)
    fastest = std::min(fastest, work.time_product());
  speed.flops = work.flops() / fastest;
  speed.mean_flops = work.flops() * products / part.seconds();
  // The fastest copy of each part: together they are a whole copy that nothing has disturbed.
  std::vector<double> copies(size_t(work.parts()), 1e30);
  part.restart();
  for (int rounds = 0; rounds < 4 || part.seconds() < seconds / 2; ++rounds)
    for (size_t i = 0; i < copies.size(); ++i)
      copies[i] = std::min(copies[i], work.time_copy(int(i)));
  double sum = 0;
  for (const double s : copies) sum += s;
  speed.bytes = work.bytes() / sum;
  speed.waited = (waited_for_core() - waited_before) / all.seconds();
  return speed;
}

std::vector<Speed> gather(Place& place, const Speed& mine) {
  std::vector<Speed> all;
  for (const std::string& text : place.world().gather_text(fmt::format(
           "{} {} {} {} {}", mine.flops, mine.mean_flops, mine.bytes, mine.waited, mine.digest))) {
    const std::vector<std::string> w = base::split(text, ' ');
    all.push_back({std::stod(w.at(0)), std::stod(w.at(1)), std::stod(w.at(2)), std::stod(w.at(3)),
                   std::stoull(w.at(4))});
  }
  return all;
}

std::vector<double> rates(const Place& place, double Speed::*what) {
  std::vector<double> out;
  for (const Speed& speed : place.speeds) out.push_back(speed.*what);
  return out;
}

double median_rate(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return host::median_of(all);
}

Row row_of(const Place& place, const char* check, const char* unit, double scale,
           double Speed::*what) {
  const std::vector<double> all = rates(place, what);
  const double median = median_rate(all);
  const size_t slowest = size_t(std::min_element(all.begin(), all.end()) - all.begin());
  Row row{.check = check,
          .text = fmt::format("median {:.1f} {} of each rank", median / scale, unit)};
  if (all.size() > 1)
    row.text +=
        fmt::format(", slowest {:.1f} ({})", all[slowest] / scale, place.name(int(slowest)));
  for (const int rank : slow_ranks(all, place.recipe.selftest.slow))
    row.bad.push_back({rank, fmt::format("slow: {:.1f} {}, {:.2f} of the median {:.1f}",
                                         all[size_t(rank)] / scale, unit,
                                         all[size_t(rank)] / median, median / scale)});
  return row;
}

// Blames ranks whose product has other bits than most of the ranks on the same kind of processor.
void compare_bits(Place& place, Row& row) {
  const std::vector<std::string> kinds = place.world().gather_text(platform(place));
  std::map<std::string, std::map<uint64_t, int>> counts;
  for (size_t r = 0; r < kinds.size(); ++r) ++counts[kinds[r]][place.speeds[r].digest];
  for (size_t r = 0; r < kinds.size(); ++r) {
    int most = 0;
    for (const auto& [digest, count] : counts[kinds[r]]) most = std::max(most, count);
    if (counts[kinds[r]][place.speeds[r].digest] < most)
      row.bad.push_back({int(r),
                         "computes wrong: a product has other bits than on the other ranks with "
                         "this kind of processor"});
  }
}

}  // namespace

std::vector<int> slow_ranks(const std::vector<double>& rates, double share) {
  const double median = median_rate(rates);
  std::vector<int> out;
  for (size_t r = 0; r < rates.size(); ++r)
    if (rates[r] < share * median) out.push_back(int(r));
  return out;
}

void need_speeds(Place& place, double seconds) {
  if (place.speeds.empty()) place.speeds = gather(place, measure(place, seconds));
}

std::vector<Row> check_speed(Place& place) {
  constexpr double kSeconds = 0.6;
  need_speeds(place, kSeconds);
  // What was slow for a moment is measured again; the better figure counts.
  const double share = place.recipe.selftest.slow;
  for (int again = 0; again < 2; ++again) {
    if (slow_ranks(rates(place, &Speed::flops), share).empty() &&
        slow_ranks(rates(place, &Speed::bytes), share).empty())
      break;
    const std::vector<Speed> second = gather(place, measure(place, kSeconds));
    for (size_t r = 0; r < second.size(); ++r) {
      Speed& best = place.speeds[r];
      best.flops = std::max(best.flops, second[r].flops);
      best.bytes = std::max(best.bytes, second[r].bytes);
    }
  }
  std::vector<Row> rows = {row_of(place, "products", "GFLOP/s", 1e9, &Speed::flops),
                           row_of(place, "memory", "GB/s", 1e9, &Speed::bytes)};
  compare_bits(place, rows[0]);
  return rows;
}

}  // namespace modes::selftest
