// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saver.hpp"

#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/narrow.hpp"
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
          "checkpoint.staging_mb = {}: the copy takes {} MiB per rank, so every save holds "
          "training until it is on disk; raise staging_mb if the node has the memory, or set "
          "checkpoint.async = false",
          options_.staging_mb, (most >> 20) + 1);
    return staging_bytes_ = 0;
  }
  staging_bytes_ = copied_bytes(state);
  staging_.emplace(state.on_host() ? device::Kind::cpu : device::Kind::cuda, staging_bytes_);
  touched_ = std::async(std::launch::async, [to = staging_->data(), n = size_t(staging_bytes_)] {
    std::memset(to, 0, n);
  });
  return staging_bytes_;
}

int64_t Saver::plan(const State& state) {
  return std::stoll(
      comm::on_first(comm_, [&] { return std::to_string(plan_places(state, known_)); }));
}

void Saver::copy_parts(char* to) {
  for (shard::TensorSlice& t : state_.tensors)
    for (auto& part : t.parts) {
      if (!t.writes || part.begin == part.end) continue;
      const device::View from = t.view(part);
      if (state_.on_host())
        std::memcpy(to, from.data, size_t(from.bytes()));
      else
        device::download(to, from, *state_.queue);
      part.data = to;
      to += base::round_up(from.bytes(), kLine);
    }
}

void Saver::begin(const State& state, int64_t best_step) {
  CHECK(!pending(), "a save is under way");
  begin_s_ = base::now_s();
  if (!since_) since_ = state.step;
  state_ = state;
  // This is equal on all ranks: a replica that writes nothing has an empty copy and must not wait
  // when other ranks go on.
  staged_ = staging_.has_value();
  CHECK(!staged_ || copied_bytes(state_) <= staging_bytes_, "the state has grown since stage()");
  if (touched_.valid()) touched_.get();
  if (!staged_ && !state_.on_host())
    bounce_ = device::HostBuffer(device::Kind::cuda, copied_bytes(state_));
  if (staged_ || !state_.on_host()) copy_parts(staged_ ? staging_->data() : bounce_.data());
  save_ = std::make_unique<Save>(comm_, directory_, state_);
  saved_ = {};
  saved_.step = state_.step;
  saved_.file = save_->file();
  saved_.best = best_step == state.step;
  best_step_ = best_step;
  phase_ = Phase::create;
  worker_.start([this] { return save_->create(keep_free_, known_); });
  saved_.held_s = base::now_s() - begin_s_;
}

std::optional<Saved> Saver::advance(bool wait) {
  CHECK(pending(), "no save is under way");
  double entered = base::now_s();
  try {
    for (auto pause = std::chrono::microseconds(50);;
         pause = std::min(2 * pause, std::chrono::microseconds(2000))) {
      if (comm_.min(int64_t(worker_.done())) == 0) {
        if (!wait) {
          saved_.held_s += base::now_s() - entered;
          return {};
        }
        std::this_thread::sleep_for(pause);
        continue;
      }
      pause = std::chrono::microseconds(50);
      std::vector<std::string> results = comm::agree_on(comm_, worker_.take());
      if (phase_ == Phase::commit) {
        saved_.bytes = std::stoll(results[0]);
        break;
      }
      next(results);
    }
  } catch (const base::Error& e) {
    if (comm_.rank() == 0) save_->discard();
    // Bugs of this program and a lack of memory (base::error_of) keep their own exit code.
    const bool own = e.code() == base::Exit::internal || e.code() == base::Exit::mesh;
    saved_.code = own ? e.code() : base::Exit::checkpoint;
    saved_.failed_rank = e.teller();
    saved_.error = fmt::format("checkpoint of step {} was not written: {}. {}", saved_.step,
                               e.what(), what_is_left());
  }
  save_.reset();
  state_ = {};
  bounce_ = {};
  saved_.seconds = base::now_s() - begin_s_;
  saved_.held_s += base::now_s() - entered;
  return saved_;
}

// Describes the older checkpoints that remain after a failed save.
std::string Saver::what_is_left() const {
  try {
    for (const Candidate& c : candidates(directory_))
      if (c.step != saved_.step) return "Older checkpoints are intact";
    return fmt::format("Older checkpoints: there is none in {}", directory_);
  } catch (const base::Error& e) {
    return fmt::format("Older checkpoints were not touched ({})", e.what());
  }
}

// Starts the next phase. `results` holds every rank's result of the finished one.
void Saver::next(const std::vector<std::string>& results) {
  switch (phase_) {
    case Phase::create:
      save_->set_places(results[0]);
      phase_ = Phase::write;
      return worker_.start([this] { return save_->write(), std::string(); });
    case Phase::write:
      phase_ = Phase::verify;
      return worker_.start([this] {
        std::vector<BlockHash> mine = save_->verify();
        return std::string(reinterpret_cast<const char*>(mine.data()),
                           mine.size() * sizeof(BlockHash));
      });
    case Phase::verify:
      phase_ = Phase::commit;
      return worker_.start([this, results] {
        if (comm_.rank() == 0) commit(results);
        return std::to_string(save_->layout().file_bytes);
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
  save_->commit(all, since_.value_or(saved_.step), own_);
  own_.insert(saved_.step);
  try {  // the new file is safe; the next save repeats anything that fails here
    name_best();
    retain(directory_, saved_.step, options_);
  } catch (const base::Error& e) {
    base::log::warning("checkpoint of step {} is written, but: {}", saved_.step, e.what());
  }
}

// Links best.h5 to the file of the best step. A best.h5 from an abandoned history is moved away.
void Saver::name_best() {
  const std::string best = directory_ + "/" + kBest,
                    wanted = directory_ + "/" + file_name(best_step_);
  int64_t holds = best_held(directory_);
  bool other_past = holds > since_.value_or(saved_.step) && !own_.contains(holds);
  if (holds == best_step_ && holds != saved_.step && !other_past) return;
  if (best_step_ >= 0 && io::exists(wanted)) {
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
