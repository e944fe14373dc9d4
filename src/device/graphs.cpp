// SPDX-License-Identifier: Apache-2.0
#include "device/graphs.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/span.hpp"
#include "device/gpu.hpp"
#include "device/op_lapses.hpp"

namespace device {
namespace {

// The queue records while this object exists.
class Recording {
 public:
  explicit Recording(Queue& queue) : queue_(queue) {
    gpu::begin_recording(queue_.stream());
    queue_.set_recording(true);
  }
  ~Recording() {
    queue_.set_recording(false);
    if (!ended_) gpu::drop_recording(queue_.stream());
  }
  Recording(const Recording&) = delete;
  gpu::Recorded end() {
    ended_ = true;
    return gpu::end_recording(queue_.stream());
  }

 private:
  Queue& queue_;
  bool ended_ = false;
};

// Returns the work of all ops of a graph, added up as if they were one op.
template <class Costs>
OpTimer::Work work_of(const Costs& costs) {
  OpTimer::Work work{kGraphLaunch};
  for (const auto& [op, cost] : costs) {
    work.flops += cost.flops;
    work.bytes += cost.bytes;
  }
  return work;
}

}  // namespace

Graphs::Graphs(Queue& queue, int64_t max_graphs, std::string name)
    : queue_(queue), max_graphs_(max_graphs), name_(std::move(name)) {
  CHECK(queue.kind() == Kind::cuda && max_graphs >= 1);
}
Graphs::~Graphs() = default;

void Graphs::Free::operator()(void* graph) const { gpu::free_graph(graph); }

void Graphs::run(const Key& key, const std::function<void()>& work) {
  ++counts_.runs;
  // the scratch has moved, and old graphs would write to its old place
  if (queue_.scratch_data() != scratch_) forget_all();
  Entry& entry = entries_[key];
  const bool first = !std::exchange(entry.seen, true);
  if (!entry.graph && (first || counts_.graphs == max_graphs_)) {
    if (!first && !std::exchange(limit_logged_, true))
      base::log::line(
          "graphs   {} recorded, the limit: {} of other shapes run without a graph "
          "(run.cuda_graph_limit)",
          max_graphs_, name_);
    return work();
  }
  if (entry.graph) {
    for (const auto& [op, cost] : entry.costs) queue_.account_again(op, cost);
    return launch(entry);
  }
  const size_t before = gpu_memory_used_bytes();
  const base::Stopwatch watch;
  const double ops_s = record(entry, work);  // costs() counts these seconds already
  ++queue_.graph_cost().recorded;
  queue_.graph_cost().seconds += watch.seconds() - ops_s;
  launch(entry);
  counts_.bytes += std::max<int64_t>(0, int64_t(gpu_memory_used_bytes()) - int64_t(before));
}

double Graphs::record(Entry& entry, const std::function<void()>& work) {
  base::Span span("record a graph");
  const auto before = queue_.costs();
  try {
    Recording recording(queue_);
    work();
    gpu::Recorded recorded = recording.end();
    entry.graph.reset(recorded.graph);
    counts_.nodes += recorded.nodes;
  } catch (const base::Error& e) {
    throw base::Error(e.code(), fmt::format("recording a CUDA graph of {} failed at or after op "
                                            "{}: {}; run.cuda_graph = \"off\" runs without graphs",
                                            name_, queue_.op(), e.what()));
  }
  ++counts_.graphs;
  entry.costs.clear();
  double ops_s = 0;
  for (int op = 0; op < Queue::kMaxOps; ++op) {
    const OpCost &was = before[size_t(op)], &is = queue_.costs()[size_t(op)];
    ops_s += is.seconds - was.seconds;
    if (is.calls > was.calls)
      entry.costs.push_back({op,
                             {.calls = is.calls - was.calls,
                              .flops = is.flops - was.flops,
                              .bytes = is.bytes - was.bytes}});
  }
  return ops_s;
}

void Graphs::launch(const Entry& entry) {
  base::TimedSpan span("graph");
  OpTimer* timer = queue_.timer();
  if (timer) timer->begin(queue_);
  gpu::launch_graph(entry.graph.get(), queue_.stream());
  if (timer) timer->end(work_of(entry.costs), queue_);
  ++counts_.launches;
  ++queue_.graph_cost().launches;
  queue_.graph_cost().seconds += span.end_s();
}

void Graphs::forget_all() {
  for (auto& [key, entry] : entries_) entry.graph.reset();
  counts_.graphs = counts_.nodes = counts_.bytes = 0;
  scratch_ = queue_.scratch_data();
}

}  // namespace device
