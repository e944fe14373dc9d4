// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saver.hpp"

#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "base/log_components.hpp"
#include "base/narrow.hpp"
#include "base/span.hpp"
#include "base/thread_scope.hpp"
#include "checkpoint/catalogue.hpp"
#include "comm/together.hpp"

namespace checkpoint {
namespace {

constexpr int64_t kLine = 64;  // bytes; each part is copied to its own cache lines

int64_t copied_bytes(const State& state) {
  int64_t bytes = 0;
  for (const shard::TensorSlice& t : state.tensors)
    if (t.writes)
      for (const auto& part : t.parts)
        bytes += base::round_up((part.end - part.begin) * device::size_of(t.type), kLine);
  return bytes;
}

}  // namespace

Saver::Saver(comm::Comm& comm, std::string directory, const CheckpointOptions& options)
    : comm_(comm), directory_(std::move(directory)), options_(options) {}

Saver::~Saver() = default;

int64_t Saver::stage(const State& state) {
  int64_t most = comm_.max(copied_bytes(state));
  if (!options_.async || most > options_.staging_mb << 20) {
    if (options_.async && comm_.rank() == 0)
      base::log::warning(
          "checkpoint.staging_mb = {}: the copy takes {} MiB per rank, so training waits until "
          "each save is on disk; raise staging_mb if the node has the memory, or set "
          "checkpoint.async = false",
          options_.staging_mb, (most >> 20) + 1);
    return copies_.staging_bytes = 0;
  }
  copies_.staging_bytes = copied_bytes(state);
  copies_.staging.emplace(state.on_host() ? device::Kind::cpu : device::Kind::cuda,
                          copies_.staging_bytes);
  copies_.touched = base::async(
      "touch memory",
      [to = copies_.staging->data(), n = size_t(copies_.staging_bytes)] { std::memset(to, 0, n); });
  return copies_.staging_bytes;
}

int64_t Saver::plan(const State& state) {
  return std::stoll(
      comm::on_first(comm_, [&] { return std::to_string(plan_places(state, known_)); }));
}

void Saver::copy_parts(char* to) {
  for (shard::TensorSlice& t : pending_.state.tensors)
    for (auto& part : t.parts) {
      if (!t.writes || part.begin == part.end) continue;
      const device::View from = t.view(part);
      if (pending_.state.on_host())
        std::memcpy(to, from.data, size_t(from.bytes()));
      else
        device::download(to, from, *pending_.state.queue);
      part.data = to;
      to += base::round_up(from.bytes(), kLine);
    }
}

void Saver::begin(const State& state, int64_t best_step) {
  CHECK(!pending(), "a save is under way");
  base::Span span("begin a save", state.step, base::SpanKind::save);
  pending_.begin_s = base::now_s();
  if (!history_.since) history_.since = state.step;
  pending_.state = state;
  // This is equal on all ranks: a replica that writes nothing has an empty copy and must not wait
  // when other ranks go on.
  pending_.staged = copies_.staging.has_value();
  CHECK(!pending_.staged || copied_bytes(pending_.state) <= copies_.staging_bytes,
        "the state has grown since stage()");
  if (copies_.touched.valid()) copies_.touched.get();
  if (!pending_.staged && !pending_.state.on_host())
    copies_.bounce = device::HostBuffer(device::Kind::cuda, copied_bytes(pending_.state));
  if (pending_.staged || !pending_.state.on_host())
    copy_parts(pending_.staged ? copies_.staging->data() : copies_.bounce.data());
  pending_.save = std::make_unique<Save>(comm_, directory_, pending_.state);
  pending_.result = {};
  pending_.result.step = pending_.state.step;
  pending_.result.file = pending_.save->file();
  pending_.result.best = best_step == state.step;
  pending_.best_step = best_step;
  pending_.phase = Phase::create;
  worker_.start([this] {
    base::Span work("create a checkpoint", base::SpanKind::save);
    return pending_.save->create(keep_free_, known_);
  });
  pending_.result.held_s = base::now_s() - pending_.begin_s;
}

std::optional<Saved> Saver::advance(bool wait) {
  CHECK(pending(), "no save is under way");
  base::Span span("advance a save", wait ? base::SpanKind::wait : base::SpanKind::save);
  double entered = base::now_s();
  try {
    for (auto pause = std::chrono::microseconds(50);;
         pause = std::min(2 * pause, std::chrono::microseconds(2000))) {
      if (comm_.min(int64_t(worker_.done())) == 0) {
        if (!wait) {
          pending_.result.held_s += base::now_s() - entered;
          return {};
        }
        std::this_thread::sleep_for(pause);
        continue;
      }
      pause = std::chrono::microseconds(50);
      std::vector<std::string> results = comm::agree_on(comm_, worker_.take());
      if (pending_.phase == Phase::commit) {
        pending_.result.bytes = std::stoll(results[0]);
        break;
      }
      next(results);
    }
  } catch (const base::Error& e) {
    if (comm_.rank() == 0) pending_.save->discard();
    // Bugs of this program and a lack of memory (base::error_of) keep their own exit code.
    const bool own = e.code() == base::Exit::internal || e.code() == base::Exit::mesh;
    pending_.result.code = own ? e.code() : base::Exit::checkpoint;
    pending_.result.failed_rank = e.teller();
    pending_.result.error = fmt::format("checkpoint of step {} was not written: {}. {}",
                                        pending_.result.step, e.what(), what_is_left());
  }
  pending_.save.reset();
  pending_.state = {};
  copies_.bounce = {};
  pending_.result.seconds = base::now_s() - pending_.begin_s;
  pending_.result.held_s += base::now_s() - entered;
  return pending_.result;
}

// Describes the older checkpoints that remain after a failed save.
std::string Saver::what_is_left() const {
  try {
    for (const Candidate& c : candidates(directory_))
      if (c.step != pending_.result.step) return "Older checkpoints are intact";
    return fmt::format("There is no older checkpoint in {}", directory_);
  } catch (const base::Error& e) {
    return fmt::format("Older checkpoints were not touched ({})", e.what());
  }
}

// Starts the next phase. `results` holds every rank's result of the finished one.
void Saver::next(const std::vector<std::string>& results) {
  base::log::debug(base::log::Component::checkpoint,
                   "save of step {}: phase {} of 4 done after {:.3f} s", pending_.result.step,
                   int(pending_.phase) + 1, base::now_s() - pending_.begin_s);
  switch (pending_.phase) {
    case Phase::create:
      pending_.save->set_places(results[0]);
      if (pending_.save->together()) pending_.save->write_together();
      pending_.phase = Phase::write;
      return worker_.start([this] {
        base::Span span("write a checkpoint", base::SpanKind::save);
        pending_.save->write();
        return std::string();
      });
    case Phase::write:
      pending_.phase = Phase::verify;
      return worker_.start([this] {
        base::Span span("verify a checkpoint", base::SpanKind::save);
        std::vector<BlockHash> mine = pending_.save->verify();
        return std::string(reinterpret_cast<const char*>(mine.data()),
                           mine.size() * sizeof(BlockHash));
      });
    case Phase::verify:
      pending_.phase = Phase::commit;
      return worker_.start([this, results] {
        base::Span span("commit a checkpoint", base::SpanKind::save);
        if (comm_.rank() == 0) commit(results);
        return std::to_string(pending_.save->layout().file_bytes);
      });
    case Phase::commit:
      break;
  }
}

// (io, rank 0 alone)
void Saver::commit(const std::vector<std::string>& hashes) {
  std::vector<BlockHash> all;
  for (const std::string& text : hashes) {
    size_t at = all.size();
    all.resize(at + text.size() / sizeof(BlockHash));
    std::memcpy(all.data() + at, text.data(), text.size());
  }
  pending_.save->commit(all, history_.since.value_or(pending_.result.step), history_.own);
  history_.own.insert(pending_.result.step);
  try {  // the new file is safe; the next save repeats anything that fails here
    io::replace_symlink(pending_.save->file(), directory_ + "/" + kLatest);
    name_best();
    retain(directory_, pending_.result.step, options_);
  } catch (const base::Error& e) {
    base::log::warning("checkpoint of step {} is written, but: {}", pending_.result.step, e.what());
  }
}

// Links best.h5 to the file of the best step. A best.h5 from an abandoned history is moved away.
void Saver::name_best() {
  const std::string best = directory_ + "/" + kBest,
                    wanted = directory_ + "/" + file_name(pending_.best_step);
  int64_t holds = best_held(directory_);
  bool other_past =
      holds > history_.since.value_or(pending_.result.step) && !history_.own.contains(holds);
  if (holds == pending_.best_step && holds != pending_.result.step && !other_past) return;
  if (pending_.best_step >= 0 && io::exists(wanted)) {
    io::link_file(wanted, best);
  } else if (other_past) {
    io::make_directories(directory_ + "/abandoned");
    io::rename_file(best, directory_ + "/abandoned/" + kBest);
  }
  io::sync_directory(directory_);
}

Saved save(comm::Comm& comm, const std::string& directory, const State& state,
           CheckpointOptions options) {
  options.async = false;
  Saver saver(comm, directory, options);
  saver.begin(state);
  Saved saved = saver.finish();
  if (!saved.error.empty()) throw base::Error(saved.code, saved.error, true, saved.failed_rank);
  return saved;
}

}  // namespace checkpoint
