// SPDX-License-Identifier: Apache-2.0
#include "comm/comm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/clock.hpp"
#include "base/span.hpp"

namespace comm {

bool Comm::same(uint64_t digest) {
  // With two int64 reductions, unlike a comparison with rank 0's value, every rank gets the result.
  int64_t value = int64_t(digest);
  return min(value) == max(value);
}

device::Queue& Comm::host_queue() {
  static device::Queue queue(device::Kind::cpu);
  return queue;
}

namespace {

// An exchange that a profiler follows.
struct PlannedWork : Ticket::Work {
  void wait() override {
    if (const base::SpanProfiler* profiler = base::span_profiler();
        profiler && profiler->exchange_is_waited_for)
      profiler->exchange_is_waited_for(number);
    waited = true;
  }
  int64_t number = 0;
  bool waited = true;
};

// Counts bytes and moves nothing.
class PlanComm : public Comm {
 public:
  PlanComm(int size, int rank, std::string name)
      : size_(size), rank_(rank), name_(std::move(name)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Ticket all_gather(device::View, device::View recv, device::Queue&) override {
    if (size_ > 1) {
      ++gathered_.calls;
      gathered_.bytes += recv.bytes();
      return follow("all_gather", recv);
    }
    return {};
  }
  Ticket reduce_scatter(device::View send, device::View, device::Queue&) override {
    if (size_ > 1) {
      ++scattered_.calls;
      scattered_.bytes += send.bytes();
      return follow("reduce_scatter", send);
    }
    return {};
  }
  Ticket all_reduce(device::View view, device::Queue&) override {
    if (size_ > 1 && view.count > 0) {
      ++reduced_.calls;
      reduced_.bytes += view.bytes();
      return follow("all_reduce", view);
    }
    return {};
  }
  void broadcast(device::View, int) override {}
  void barrier() override {}
  int64_t min(int64_t value) override { return value; }
  int64_t max(int64_t value) override { return value; }
  int64_t sum(int64_t value) override { return value * size_; }
  double max(double value) override { return value; }
  int64_t max(int64_t value, bool& alike) override {
    alike = true;
    return value;
  }
  std::vector<std::string> gather_text(const std::string& text) override {
    return std::vector<std::string>(size_, text);
  }
  std::string broadcast_text(const std::string& text, int) override { return text; }

 private:
  Ticket follow(const char* kind, const device::View& view) {
    const base::SpanProfiler* profiler = base::span_profiler();
    if (!profiler || !profiler->exchange_begins) return {};
    static int64_t last = 0;  // of all groups, which belong to one process without threads
    auto work = std::find_if(works_.begin(), works_.end(), [](auto& w) { return w->waited; });
    if (work == works_.end()) work = works_.insert(works_.end(), std::make_unique<PlannedWork>());
    (*work)->number = ++last;
    (*work)->waited = false;
    profiler->exchange_begins(
        last, fmt::format("{} of {}, {} x {}", kind, name_, device::name_of(view.type), view.count),
        view.bytes());
    return Ticket(work->get());
  }

  int size_, rank_;
  std::string name_;
  std::vector<std::unique_ptr<PlannedWork>> works_;
};

}  // namespace

std::unique_ptr<Comm> make_plan_comm(int size, int rank, const std::string& name) {
  return std::make_unique<PlanComm>(size, rank, name);
}

}  // namespace comm
