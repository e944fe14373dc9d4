// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <span>

#include "base/cancel.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/checksum.hpp"

namespace checkpoint {
namespace log = base::log;

namespace {

// Bytes [begin, end) of a tensor and the memory to fill.
struct WantedBytes {
  const Entry* entry;
  int64_t begin, end;
  char* data;
  int64_t offset() const { return entry->offset + begin; }
};

// Sorted by file offset, so that the disk can read ahead.
std::vector<WantedBytes> wanted_of(const std::string& path, const Manifest& manifest,
                                   const std::vector<shard::TensorSlice>& tensors) {
  std::vector<WantedBytes> all;
  for (const shard::TensorSlice& t : tensors) {
    const Entry* e = manifest.layout.find(t.name);
    CHECK(e, "{} is not in {}", t.name, path);
    for (const auto& part : t.parts) {
      int64_t size = device::size_of(t.type), begin = part.begin * size, end = part.end * size;
      CHECK(begin >= 0 && end <= e->bytes, "{}: bytes [{}, {}) of {} are wanted", t.name, begin,
            end, e->bytes);
      if (begin < end) all.push_back({e, begin, end, static_cast<char*>(part.data)});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const WantedBytes& a, const WantedBytes& b) { return a.offset() < b.offset(); });
  return all;
}

// Whole blocks [first, end) of a tensor, read straight into the wanted memory; or one block that is
// wanted only in part.
struct Portion {
  const WantedBytes* wanted;
  int64_t first, end;
  bool whole;
  int64_t begin() const { return first * kBlock; }  // within the tensor
  int64_t bytes() const { return std::min(end * kBlock, wanted->entry->bytes) - begin(); }
  int64_t offset() const { return wanted->entry->offset + begin(); }
};

// bytes of one read; bytes of a gap between two portions of one read
constexpr int64_t kMaxRead = 64 << 20, kMaxGap = 64 << 10;

std::vector<Portion> portions_of(const std::vector<WantedBytes>& wanted) {
  constexpr int64_t kMaxBlocks = kMaxRead / kBlock;
  std::vector<Portion> out;
  for (const WantedBytes& w : wanted) {
    int64_t first = block_count(w.begin),
            end = w.end == w.entry->bytes ? w.entry->blocks() : w.end / kBlock;
    if (int64_t block = w.begin / kBlock; block < first)
      out.push_back({&w, block, block + 1, false});
    for (int64_t at = first; at < end; at += kMaxBlocks)
      out.push_back({&w, at, std::min(at + kMaxBlocks, end), true});
    if (end >= first && end * kBlock < w.end) out.push_back({&w, end, end + 1, false});
  }
  return out;
}

// Returns the indices of the portions that begin a new read: [0, ..., number of portions].
std::vector<size_t> batches_of(const std::vector<Portion>& portions) {
  std::vector<size_t> out{0};
  int64_t bytes = 0, end = -1;
  for (size_t i = 0; i < portions.size(); ++i) {
    const Portion& p = portions[i];
    // Two parts that meet in a block both want it; such a block is read twice.
    bool beside = end >= 0 && p.offset() >= end && p.offset() - end <= kMaxGap;
    if (i > 0 && (!beside || bytes + p.bytes() > kMaxRead)) {
      out.push_back(i);
      bytes = 0;
    }
    bytes += p.bytes();
    end = p.offset() + p.bytes();
  }
  if (!portions.empty()) out.push_back(portions.size());
  return out;
}

}  // namespace

int64_t read_parts(const std::string& path, const Manifest& manifest,
                   const std::vector<shard::TensorSlice>& tensors, const std::stop_token& token) {
  const std::vector<WantedBytes> wanted = wanted_of(path, manifest, tensors);
  const std::vector<Portion> portions = portions_of(wanted);
  const std::vector<size_t> batches = batches_of(portions);
  io::File file(path, io::File::Mode::read);
  int64_t read = 0;
  // Portions that lie side by side are read in one call, straight into the wanted memory. Blocks
  // that are wanted in part are read into `edges` instead.
  struct Batch {
    std::span<const Portion> portions;
    std::vector<char*> targets;
    std::vector<char> edges;
  };
  auto read_batch = [&](Batch& b) {
    int64_t edges = 0;
    for (const Portion& p : b.portions) edges += p.whole ? 0 : p.bytes();
    b.edges.resize(size_t(edges));
    b.targets.clear();
    std::vector<char> gap(size_t{kMaxGap});
    std::vector<std::span<char>> pieces;
    char* edge = b.edges.data();
    int64_t offset = b.portions[0].offset(), end = offset;
    for (const Portion& p : b.portions) {
      if (p.offset() > end) pieces.emplace_back(gap.data(), size_t(p.offset() - end));
      b.targets.push_back(p.whole ? p.wanted->data + (p.begin() - p.wanted->begin) : edge);
      if (!p.whole) edge += p.bytes();
      pieces.emplace_back(b.targets.back(), size_t(p.bytes()));
      end = p.offset() + p.bytes();
      read += p.bytes();
    }
    file.read_at(std::move(pieces), offset);
  };
  auto verify_batch = [&](const Batch& b) {
    for (size_t i = 0; i < b.portions.size(); ++i) {
      const Portion& p = b.portions[i];
      const Entry& e = *p.wanted->entry;
      const char* data = b.targets[i];
      for (int64_t block = p.first; block < p.end; ++block) {
        int64_t begin = block * kBlock, count = block_bytes(block, e.bytes);
        if (base::xxh3(data + (begin - p.begin()), size_t(count)) !=
            manifest.blocks[size_t(e.first_block + block)])
          base::fail(base::Exit::checkpoint,
                     "{} is damaged (checksum of bytes {} to {} of the file)", e.name,
                     e.offset + begin, e.offset + begin + count);
      }
      if (p.whole) continue;
      int64_t from = std::max(p.begin(), p.wanted->begin),
              until = std::min(p.begin() + p.bytes(), p.wanted->end);
      std::memcpy(p.wanted->data + (from - p.wanted->begin), data + (from - p.begin()),
                  size_t(until - from));
    }
  };
  Batch in_turn[2];  // one batch is verified while the next is read
  std::future<void> proof;
  for (size_t i = 0; i + 1 < batches.size(); ++i) {
    base::end_if_asked(token);
    Batch& b = in_turn[i % 2];
    b.portions = std::span(portions).subspan(batches[i], batches[i + 1] - batches[i]);
    read_batch(b);
    if (proof.valid()) proof.get();
    proof = std::async(std::launch::async, verify_batch, std::cref(b));
  }
  if (proof.valid()) proof.get();
  return read;
}

namespace {

std::vector<Candidate> list(comm::Comm& comm, const std::string& directory,
                            const Belongs& belongs) {
  std::string steps = comm::on_first(comm, [&] {
    for (const std::string& name : remove_leftovers(directory))
      log::warning("checkpoint: removed {}, an unfinished file of an earlier job", name);
    std::string text;
    for (const Candidate& c : candidates(directory))
      if (!belongs || belongs(c.step)) text += fmt::format("{} ", c.step);
    return text;
  });
  std::vector<Candidate> files;
  for (const std::string& step : base::split(steps, ' '))
    if (!step.empty())
      files.push_back({std::stoll(step), directory + "/" + file_name(std::stoll(step))});
  return files;
}

// The manifest, or the reason to refuse the file.
struct Inspected {
  std::optional<Manifest> manifest;
  std::string reason;
};
Inspected inspect_on_first(comm::Comm& comm, const Candidate& candidate) {
  std::string text = comm::on_first(comm, [&]() -> std::string {
    try {
      return "M" + pack(inspect(candidate.path, candidate.step));
    } catch (const base::Error& e) {
      return std::string("R") + e.what();
    }
  });
  if (text[0] == 'R') return {{}, text.substr(1)};
  return {unpack(text.substr(1)), ""};
}

// Returns "" if every rank has read its parts, else the reason of the first rank that failed.
// Errors other than damage are thrown.
std::string read_together(comm::Comm& comm, const Candidate& candidate, const Manifest& manifest,
                          const std::vector<shard::TensorSlice>& tensors, int64_t& bytes,
                          const comm::Poll& poll) {
  auto read = [&](const std::stop_token& token) -> std::string {
    try {
      bytes = read_parts(candidate.path, manifest, tensors, token);
      return "";
    } catch (const base::Error& e) {
      if (e.code() != base::Exit::checkpoint) throw;
      return e.what();
    }
  };
  std::vector<std::string> reasons = comm::beside(comm, read, poll);
  for (size_t rank = 0; rank < reasons.size(); ++rank)
    if (!reasons[rank].empty())
      return reasons.size() > 1 ? fmt::format("{} (rank {})", reasons[rank], rank) : reasons[rank];
  return "";
}

// Host memory to read a file into: the parts themselves, or host copies if the parts lie on a
// device.
class Landing {
 public:
  explicit Landing(const State& target) : tensors_(target.tensors), target_(target) {
    if (target.on_host()) return;
    int64_t bytes = 0;
    for (const shard::TensorSlice& t : tensors_)
      for (const auto& part : t.parts) bytes += t.view(part).bytes();
    memory_ = device::HostBuffer(target.queue->kind(), bytes);
    char* at = memory_.data();
    for (shard::TensorSlice& t : tensors_)
      for (auto& part : t.parts) {
        part.data = at;
        at += t.view(part).bytes();
      }
  }
  const std::vector<shard::TensorSlice>& tensors() const { return tensors_; }
  void deliver() const {
    if (target_.on_host()) return;
    for (size_t i = 0; i < tensors_.size(); ++i)
      for (size_t k = 0; k < tensors_[i].parts.size(); ++k)
        device::upload(target_.tensors[i].view(target_.tensors[i].parts[k]),
                       tensors_[i].parts[k].data, *target_.queue);
  }

 private:
  std::vector<shard::TensorSlice> tensors_;
  const State& target_;
  device::HostBuffer memory_;
};

// The layouts of a file and of the run. An average that only one of them keeps is removed.
struct Fitted {
  FileLayout file, wanted;                  // to compare
  std::vector<shard::TensorSlice> tensors;  // to read
  std::string note;                         // for the log
};

// Compares a file, at this path, with a run. Throws if the file lacks what is asked for.
using Fit =
    std::function<Fitted(const std::string& path, const FileLayout& file, const State& target,
                         const std::vector<shard::TensorSlice>& tensors)>;

constexpr auto is_average = [](const auto& named) { return named.name.starts_with(kAverageRoot); };

Fitted fit_average(const std::string&, const FileLayout& file, const State& target,
                   const std::vector<shard::TensorSlice>& tensors) {
  Fitted f{file, layout_of(target), tensors, ""};
  const bool in_file = std::any_of(file.entries.begin(), file.entries.end(), is_average);
  const bool wanted = std::any_of(tensors.begin(), tensors.end(), is_average);
  if (in_file && !wanted) {
    std::erase_if(f.file.entries, is_average);
    f.note = "holds an average of the weights; it is left out, because the deck has no [ema]";
  }
  if (wanted && !in_file) {
    std::erase_if(f.wanted.entries, is_average);
    for (shard::TensorSlice& t : f.tensors)
      if (is_average(t)) t.name = kWeightRoot + t.name.substr(kAverageRoot.size());
    f.note = "holds no average of the weights: it starts from the weights";
  }
  return f;
}

// Advice in error messages: `other` if the file belongs to another model, `none` if no file is
// valid.
struct Advice {
  const char *other, *none;
};

// Takes the weights of a file, or their average, and leaves the rest out.
Fitted fit_weights(const std::string& path, const FileLayout& file, const State& target,
                   const std::vector<shard::TensorSlice>& tensors, bool average) {
  Fitted f{file, layout_of(target), tensors, ""};
  std::erase_if(f.file.entries, [](const Entry& e) { return !e.name.starts_with(kWeightRoot); });
  if (!average) return f;
  if (std::none_of(file.entries.begin(), file.entries.end(), is_average))
    throw base::Error(base::Exit::checkpoint,
                      path + " holds no average of the weights: its run kept none ([ema])", true);
  auto name_of_average = [](const std::string& weight) {
    return kAverageRoot + weight.substr(kWeightRoot.size());
  };
  for (Entry& e : f.file.entries)
    if (const Entry* averaged = file.find(name_of_average(e.name))) {
      e.type = averaged->type;
      e.shape = averaged->shape;
    }
  for (shard::TensorSlice& t : f.tensors)
    if (file.find(name_of_average(t.name))) t.name = name_of_average(t.name);
  return f;
}

Restored newest_valid(comm::Comm& comm, const std::vector<Candidate>& files, State& target,
                      const Fit& fit, const Advice& advice, const comm::Poll& poll) {
  base::Stopwatch watch;
  const Landing landing(target);
  Restored restored;
  for (const Candidate& c : files) {
    Inspected inspected = inspect_on_first(comm, c);
    std::string reason = inspected.reason;
    if (reason.empty()) {
      const Manifest& m = *inspected.manifest;
      const Fitted fitted = fit(c.path, m.layout, target, landing.tensors());
      if (std::vector<std::string> lines = differences(fitted.file, fitted.wanted); !lines.empty())
        base::fail(base::Exit::checkpoint,
                   "{} is intact but belongs to another model or optimizer:\n  {}\n{}", c.path,
                   base::join(lines, "\n  "), advice.other);
      target.step = m.state.step;
      target.numbers = m.state.numbers;
      target.texts = m.state.texts;
      if (target.before_tensors) target.before_tensors();
      reason = read_together(comm, c, m, fitted.tensors, restored.bytes, poll);
      if (reason.empty()) {
        landing.deliver();
        if (!fitted.note.empty()) log::line("ema      {} {}", c.path, fitted.note);
        restored.file = c.path.substr(c.path.rfind('/') + 1);
        restored.path = c.path;
        restored.step = c.step;
        restored.seconds = watch.seconds();
        return restored;
      }
    }
    // The message of an io::Failure begins with the path already.
    restored.refused.push_back(reason.starts_with(c.path) ? reason
                                                          : fmt::format("{}: {}", c.path, reason));
    if (comm.rank() == 0) log::warning("checkpoint refused: {}", restored.refused.back());
  }
  base::fail(base::Exit::checkpoint, "{} holds checkpoints, but none is valid:\n  {}\n{}",
             io::parent_of(files.front().path), base::join(restored.refused, "\n  "), advice.none);
}

}  // namespace

std::optional<Restored> restore(comm::Comm& comm, const std::string& directory, State& target,
                                const CheckpointOptions& options, const Belongs& belongs,
                                const comm::Poll& poll) {
  std::vector<Candidate> files = list(comm, directory, belongs);
  int64_t only = resume_step(options.resume);
  const int64_t nth = resume_nth(options.resume);
  // A job script repeats its command. A return to an earlier step is done only by the first job,
  // not by every job that continues the run.
  for (const Candidate& c :
       only >= 0 || nth > 0 || options.resume == "never" ? files : std::vector<Candidate>()) {
    Inspected newest = inspect_on_first(comm, c);
    if (!newest.manifest) continue;  // damaged: look at the file before it
    auto done = newest.manifest->state.texts.find(kResumed);
    if (done == newest.manifest->state.texts.end() || done->second != options.resume) break;
    if (comm.rank() == 0)
      log::warning(
          "checkpoint.resume = \"{}\" was carried out by the attempt that wrote {}: this one goes "
          "on from there (to do it once more, move that file and those like it away)",
          options.resume, c.path);
    CheckpointOptions plain = options;
    plain.resume = "must";
    return restore(comm, directory, target, plain, belongs, poll);
  }
  if (options.resume == "never") return {};
  if (files.empty()) {
    if (options.resume == "auto") return {};
    base::fail(base::Exit::checkpoint, "checkpoint.resume = \"{}\", but {} holds no checkpoint",
               options.resume, directory);
  }
  if (nth > 0 && nth <= int64_t(files.size())) only = files[size_t(nth - 1)].step;
  if (only >= 0 || nth > 0) {
    std::string steps;
    for (const Candidate& c : files) steps += fmt::format(" {}", c.step);
    std::erase_if(files, [&](const Candidate& c) { return c.step != only; });
    if (files.empty())
      base::fail(base::Exit::checkpoint, "checkpoint.resume = \"{}\", but {} holds only steps{}",
                 options.resume, directory, steps);
  }

  return newest_valid(
      comm, files, target, fit_average,
      {.other = "Give this run another run.dir, or the deck that the file's /deck holds",
       .none = "Nothing was changed. To begin anew choose another run.dir or checkpoint.resume = "
               "\"never\""},
      poll);
}

std::vector<Candidate> agreed_files_at(comm::Comm& comm, const std::string& from) {
  std::string listed = comm::on_first(comm, [&] {
    std::string text;
    for (const Candidate& c : files_at(from)) text += fmt::format("{} {}\n", c.step, c.path);
    return text;
  });
  std::vector<Candidate> files;
  for (const std::string& line : base::split(listed, '\n'))
    if (size_t blank = line.find(' '); blank != line.npos)
      files.push_back({std::stoll(line.substr(0, blank)), line.substr(blank + 1)});
  return files;
}

Restored branch(comm::Comm& comm, const std::string& from, State& target, const comm::Poll& poll) {
  return newest_valid(
      comm, agreed_files_at(comm, from), target, fit_average,
      {.other = "checkpoint.branch_from continues a full state, so model and optimizer must be "
                "those of its run; to take over parameters alone use init.from",
       .none = "checkpoint.branch_from names nothing to begin from"},
      poll);
}

Restored restore_weights(comm::Comm& comm, const std::vector<Candidate>& files, bool average,
                         State& target, const comm::Poll& poll) {
  auto fit = [average](const std::string& path, const FileLayout& file, const State& state,
                       const std::vector<shard::TensorSlice>& tensors) {
    return fit_weights(path, file, state, tensors, average);
  };
  return newest_valid(comm, files, target, fit,
                      {.other = "Use the deck of the run that wrote it: its deck.resolved.toml, or "
                                "the /deck that the file holds",
                       .none = "Name another file or run"},
                      poll);
}

}  // namespace checkpoint
