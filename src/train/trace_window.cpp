// SPDX-License-Identifier: Apache-2.0
// The observer that writes traces: at the first step of each window it begins to collect the spans
// of this rank, and after the last one it closes the file ([profile], records/trace_file.hpp).
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/log_components.hpp"
#include "comm/clocks.hpp"
#include "device/op_lapses.hpp"
#include "kernels/dispatch.hpp"
#include "records/trace_file.hpp"
#include "train/attempt.hpp"
#include "train/observers.hpp"

namespace train {
namespace log = base::log;

namespace {

constexpr int kBarriers = 16;  // for the clocks

using Window = records::TraceOptions::Window;

class TraceWindow : public Observer {
 public:
  explicit TraceWindow(const Attempt& attempt)
      : attempt_(attempt), options_(attempt.recipe.profile.trace), windows_(options_.windows()) {}
  ~TraceWindow() override {
    if (file_) close("the attempt ended");
  }

  void step_begins(int64_t step) override {
    step_ = step;
    const auto window = std::ranges::find(windows_, step, &Window::first);
    if (window != windows_.end() && !file_) open(*window);
    step_begin_ns_ = base::now_ns();
  }
  void evaluated(int64_t, const Evaluated&) override {
    if (file_) file_->write();
  }
  void step_ends(int64_t step) override {
    if (!file_) return;
    end_step();
    // The host waits for the GPU here, so this is rare.
    if (step % 16 == 0) write_device_ops();
    if (step == last_) close("the window has ended");
  }
  void went_back(int64_t step) override {
    if (file_) close(fmt::format("the run went back to step {}", step));
  }
  void ended(const Ending& ending) override {
    if (file_) close(ending.reason);
  }
  // Called before the end of the step.
  std::string wants_stop() const override {
    if (!options_.stop_after || windows_.empty() || step_ != windows_.back().last) return "";
    return fmt::format("the last traced step was {} (profile.stop_after)", step_);
  }

 private:
  void open(const Window& window) {
    const records::TraceHead head = head_of(window);
    if (!options_.traces(attempt_.world().rank())) return;
    last_ = window.last;
    try {
      file_ = std::make_unique<records::TraceFile>(
          records::trace_path(attempt_.recipe.run.dir, window.first, head.rank), head);
    } catch (const io::Failure& e) {
      log::warning("{}: steps {} to {} are not traced", e.what(), window.first, window.last);
      return;
    }
    if (attempt_.engine().queue().kind() == device::Kind::cuda)
      device_ = std::make_unique<device::OpLapses>(attempt_.engine().queue());
    records::collect_spans(true);
  }

  // All ranks call, even those that are not traced.
  records::TraceHead head_of(const Window& window) const {
    comm::Comm& world = attempt_.world();
    const comm::Mesh& mesh = attempt_.job.mesh();
    records::TraceHead head{.rank = world.rank(),
                            .ranks = world.size(),
                            .attempt = attempt_.state.progress.attempts,
                            .host = attempt_.job.session().host(),
                            .first_step = window.first,
                            .last_step = window.last};
    head.groups = {
        {"world", 0}, {"fsdp", mesh.replica_index * mesh.shape.fsdp}, {"replica", mesh.fsdp_index}};
    head.begin_ns = head.shift_ns = base::now_ns();
    bool several = false;
    for (int rank = 1; rank < world.size(); ++rank) several |= options_.traces(rank);
    if (several) align(head);
    head.unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count() -
                   (base::now_ns() - head.begin_ns);
    return head;
  }

  // Finds the begin of the window on rank 0's clock.
  void align(records::TraceHead& head) const {
    const auto rounds = comm::read_clocks(attempt_.world(), kBarriers, base::now_s);
    const comm::Offset offset = comm::clock_offsets(rounds)[size_t(head.rank)];
    // Processes of one node share a clock.
    const double ahead_s = offset.least <= 0 && 0 <= offset.most ? 0 : offset.middle();
    head.begin_ns = base::now_ns();
    head.shift_ns = std::llround((rounds.back().front().after + ahead_s) * 1e9);
    head.unsure_ns = std::llround((offset.most - offset.least) / 2 * 1e9);
  }

  void end_step() {
    file_->add_step(step_, step_begin_ns_, base::now_ns());
    step_begin_ns_ = 0;
  }

  // A CUDA graph counts as one op, because the ops in it have no times of their own.
  void write_device_ops() {
    if (!device_) return;
    for (const device::OpLapse& op : device_->take())
      file_->add_device_op(
          op.work.op == device::kGraphLaunch ? "graph" : kernels::name_of(kernels::Op(op.work.op)),
          op.work.flops, op.work.bytes, op.begin_ns, op.end_ns);
  }

  void close(const std::string& reason) {
    records::collect_spans(false);
    if (step_begin_ns_ != 0) end_step();
    try {
      write_device_ops();
    } catch (const base::Error& e) {  // the error that ends the attempt
      log::debug(log::Component::train, "the trace lacks the GPU: {}", e.what());
    }
    device_.reset();
    file_->close(reason);
    log::debug(log::Component::train, "trace of {} events: {}", file_->events(), file_->path());
    file_.reset();
  }

  const Attempt& attempt_;
  const records::TraceOptions& options_;
  const std::vector<Window> windows_;
  std::unique_ptr<records::TraceFile> file_;  // of the open window, on ranks that are traced
  std::unique_ptr<device::OpLapses> device_;
  int64_t step_ = 0, last_ = 0;
  int64_t step_begin_ns_ = 0;  // 0: between two steps
};

}  // namespace

ObserverRow trace_window_row() {
  return {"trace_window", [](const Attempt& attempt) -> std::unique_ptr<Observer> {
            if (attempt.recipe.profile.trace.windows().empty()) return nullptr;
            return std::make_unique<TraceWindow>(attempt);
          }};
}

}  // namespace train
