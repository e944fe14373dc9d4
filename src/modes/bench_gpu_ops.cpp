// SPDX-License-Identifier: Apache-2.0
#include "modes/bench_gpu_ops.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/log.hpp"
#include "data/stream/host_batch.hpp"
#include "device/op_timer.hpp"

namespace modes {
using namespace train;
namespace log = base::log;
namespace {

using device::OpTimer;

// Sets a timer of the queue within a scope.
class Timed {
 public:
  Timed(device::Queue& queue, OpTimer& timer) : queue_(queue) { queue_.set_timer(&timer); }
  ~Timed() { queue_.set_timer(nullptr); }
  Timed(const Timed&) = delete;

 private:
  device::Queue& queue_;
};

void run_steps(Job& job, int64_t last, OpTimer& timer) {
  step::Engine& engine = job.engine();
  const int64_t end = last + job.recipe().bench.op_steps;
  data::Loader loader(job.data(), job.recipe().data.loader,
                      training_plan(engine.geometry(), job.mesh(), last, end));
  const Timed timed(engine.queue(), timer);
  for (int64_t step = last + 1; step <= end; ++step) {
    engine.submit(step, [&](int64_t) { return data::host_batch(loader.next()); });
    engine.report(step);
    timer.collect(engine.queue());
  }
}

// An op, or its calls of one shape; counts and seconds of all measured steps.
struct Row {
  OpTimer::Work work;  // of one call, or of all calls of an op
  OpTimer::Time time;
};

bool is_longer(const Row& one, const Row& other) { return one.time.seconds > other.time.seconds; }

// Returns the ops with the work of all their calls, the longest first.
std::vector<Row> rows_by_op(const OpTimer::Times& times) {
  std::map<int, Row> by_op;
  for (const auto& [work, time] : times.ops) {
    Row& row = by_op[work.op];
    row.work.op = work.op;
    row.work.flops += work.flops * time.calls;
    row.work.bytes += work.bytes * time.calls;
    row.time.calls += time.calls;
    row.time.seconds += time.seconds;
  }
  std::vector<Row> rows;
  for (const auto& [op, row] : by_op) rows.push_back(row);
  std::sort(rows.begin(), rows.end(), is_longer);
  return rows;
}

std::vector<Row> shapes_of(int op, const OpTimer::Times& times) {
  std::vector<Row> rows;
  for (const auto& [work, time] : times.ops)
    if (work.op == op) rows.push_back({work, time});
  std::sort(rows.begin(), rows.end(), is_longer);
  return rows;
}

void print_row(const std::string& name, const Row& row, double steps, double flops, double bytes,
               double all_s) {
  const double seconds = row.time.seconds;
  auto speed = [&](double amount) { return seconds > 0 ? amount / seconds : 0; };
  log::line("{:<34}{:>8.1f}{:>12.3f}{:>10.1f}{:>10.0f}{:>8.1f}%", name,
            double(row.time.calls) / steps, seconds / steps * 1e3, speed(flops) / 1e12,
            speed(bytes) / 1e9, all_s > 0 ? 100 * seconds / all_s : 0);
}

void print_op(const Row& op, const std::vector<Row>& shapes, double steps, double all_s) {
  print_row(kernels::name_of(kernels::Op(op.work.op)), op, steps, double(op.work.flops),
            double(op.work.bytes), all_s);
  if (shapes.size() < 2) return;
  for (const Row& shape : shapes) {
    if (shape.time.seconds < 0.005 * all_s) break;
    const double flops = double(shape.work.flops), bytes = double(shape.work.bytes),
                 calls = double(shape.time.calls);
    print_row(fmt::format("  {:.2f} GFLOP, {:.1f} MB each", flops / 1e9, bytes / 1e6), shape, steps,
              flops * calls, bytes * calls, all_s);
  }
}

}  // namespace

void add_gpu_ops(nlohmann::ordered_json& summary, Job& job, int64_t last) {
  OpTimer timer;
  run_steps(job, last, timer);
  const OpTimer::Times& times = timer.times();
  const double steps = double(job.recipe().bench.op_steps);
  const std::vector<Row> ops = rows_by_op(times);
  double all_s = 0;
  for (const Row& op : ops) all_s += op.time.seconds;
  log::line("{:<34}{:>8}{:>12}{:>10}{:>10}{:>9}", "op (per step, on the GPU)", "calls", "ms",
            "TFLOP/s", "GB/s", "share");
  summary["gpu_ops"] = nlohmann::ordered_json::array();
  for (const Row& op : ops) {
    const std::vector<Row> shapes = shapes_of(op.work.op, times);
    print_op(op, shapes, steps, all_s);
    for (const Row& shape : shapes)
      summary["gpu_ops"].push_back({{"op", kernels::name_of(kernels::Op(op.work.op))},
                                    {"calls", double(shape.time.calls) / steps},
                                    {"ms", shape.time.seconds / steps * 1e3},
                                    {"gflop", double(shape.work.flops) / 1e9},
                                    {"mb", double(shape.work.bytes) / 1e6}});
  }
  summary["gpu_ops_ms"] = all_s / steps * 1e3;
  summary["gpu_span_ms"] = times.span_s / steps * 1e3;
  log::line(
      "gpu      {:.2f} ms in ops, {:.2f} ms from the first op to the last: the rest are copies, "
      "exchanges and pauses",
      all_s / steps * 1e3, times.span_s / steps * 1e3);
}

}  // namespace modes
