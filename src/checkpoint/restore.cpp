#include "checkpoint/restore.hpp"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "base/cancel.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/checksum.hpp"

namespace checkpoint {
namespace log = base::log;

namespace {

// Bytes [begin, end) of a tensor, and where they go.
struct Wanted {
  const Entry* entry;
  int64_t begin, end;
  char* data;
  int64_t place() const { return entry->offset + begin; }
};

// In the order of the file, so that the disk can read ahead.
std::vector<Wanted> wanted_of(const std::string& path, const Manifest& manifest,
                              const std::vector<shard::TensorSlice>& tensors) {
  std::vector<Wanted> all;
  for (const shard::TensorSlice& t : tensors) {
    const Entry* e = manifest.layout.find(t.name);
    CHECK(e, "{} is not in {}", t.name, path);
    for (const auto& part : t.parts) {
      int64_t size = device::size_of(t.type), begin = part.begin * size, end = part.end * size;
      CHECK(begin >= 0 && end <= e->bytes, "{}: bytes [{}, {}) of {} are wanted", t.name, begin, end, e->bytes);
      if (begin < end) all.push_back({e, begin, end, static_cast<char*>(part.data)});
    }
  }
  std::sort(all.begin(), all.end(), [](const Wanted& a, const Wanted& b) { return a.place() < b.place(); });
  return all;
}

// Proves blocks by their checksums, in another thread while the next ones are read.
class Prover {
 public:
  explicit Prover(const Manifest& manifest) : manifest_(manifest) {}
  void prove(const Entry& e, int64_t block, const char* data) const {
    int64_t at = block * kBlock, bytes = block_bytes(block, e.bytes);
    if (base::xxh3(data, size_t(bytes)) != manifest_.blocks[size_t(e.first_block + block)])
      base::fail(base::Exit::checkpoint, "{} is damaged (checksum of bytes {} to {} of the file)", e.name,
                 e.offset + at, e.offset + at + bytes);
  }
  // `data` stays as it is until finish().
  void add(const Entry& e, int64_t block, const char* data) {
    waiting_.push_back({&e, block, data});
    if (int64_t(waiting_.size()) * kBlock >= kPortion) start();
  }
  void finish() {
    start();
    if (under_way_.valid()) under_way_.get();
  }

 private:
  struct Block {
    const Entry* entry;
    int64_t block;
    const char* data;
  };
  void start() {
    if (under_way_.valid()) under_way_.get();
    under_way_ = std::async(std::launch::async, [this, blocks = std::exchange(waiting_, {})] {
      for (const Block& b : blocks) prove(*b.entry, b.block, b.data);
    });
  }
  static constexpr int64_t kPortion = 16 << 20;
  const Manifest& manifest_;
  std::vector<Block> waiting_;
  std::future<void> under_way_;
};

}  // namespace

int64_t read_parts(const std::string& path, const Manifest& manifest, const std::vector<shard::TensorSlice>& tensors,
                   const std::stop_token& token) {
  constexpr int64_t kPortion = 16 << 20;
  io::File file(path, io::File::Mode::read);
  std::vector<char> buffer(size_t{kBlock});
  Prover prover(manifest);
  int64_t read = 0;
  auto get = [&](char* to, int64_t bytes, int64_t offset) { file.read_at(to, bytes, offset), read += bytes; };
  for (const Wanted& w : wanted_of(path, manifest, tensors)) {
    const Entry& e = *w.entry;
    // A block is proved whole: one that lies partly outside goes through the buffer.
    auto through_buffer = [&](int64_t block) {
      int64_t at = block * kBlock, bytes = block_bytes(block, e.bytes);
      get(buffer.data(), bytes, e.offset + at);
      prover.prove(e, block, buffer.data());
      int64_t from = std::max(at, w.begin), until = std::min(at + bytes, w.end);
      std::memcpy(w.data + (from - w.begin), buffer.data() + (from - at), size_t(until - from));
    };
    int64_t first = block_count(w.begin), end = w.end == e.bytes ? e.blocks() : w.end / kBlock;  // whole blocks
    if (int64_t block = w.begin / kBlock; block < first) through_buffer(block);
    for (int64_t at = first * kBlock, stop = std::min(end * kBlock, e.bytes); at < stop;) {
      base::end_if_asked(token);
      int64_t bytes = std::min(kPortion, stop - at);
      get(w.data + (at - w.begin), bytes, e.offset + at);
      for (int64_t block = at / kBlock; block * kBlock < at + bytes; ++block)
        prover.add(e, block, w.data + (block * kBlock - w.begin));
      at += bytes;
    }
    if (end >= first && end * kBlock < w.end) through_buffer(end);
  }
  prover.finish();
  return read;
}

namespace {

std::vector<Candidate> list(comm::Comm& comm, const std::string& directory, const Belongs& belongs) {
  std::string steps = on_first(comm, [&] {
    for (const std::string& name : remove_leftovers(directory))
      log::warning("checkpoint: removed {}, an unfinished file of an earlier job", name);
    std::string text;
    for (const Candidate& c : candidates(directory))
      if (!belongs || belongs(c.step)) text += fmt::format("{} ", c.step);
    return text;
  });
  std::vector<Candidate> files;
  for (const std::string& step : base::split(steps, ' '))
    if (!step.empty()) files.push_back({std::stoll(step), directory + "/" + file_name(std::stoll(step))});
  return files;
}

// The manifest, or why the file is refused.
struct Inspected {
  std::optional<Manifest> manifest;
  std::string reason;
};
Inspected inspect_on_first(comm::Comm& comm, const Candidate& candidate) {
  std::string text = on_first(comm, [&]() -> std::string {
    try {
      return "M" + pack(inspect(candidate.path, candidate.step));
    } catch (const base::Error& e) {
      return std::string("R") + e.what();
    }
  });
  if (text[0] == 'R') return {{}, text.substr(1)};
  return {unpack(text.substr(1)), ""};
}

// "" if every rank has read its parts, else the first rank's reason. Other errors than damage go on to the caller.
std::string read_together(comm::Comm& comm, const Candidate& candidate, const Manifest& manifest,
                          const std::vector<shard::TensorSlice>& tensors, int64_t& bytes, const Poll& poll) {
  auto read = [&](const std::stop_token& token) -> std::string {
    try {
      bytes = read_parts(candidate.path, manifest, tensors, token);
      return "";
    } catch (const base::Error& e) {
      if (e.code() != base::Exit::checkpoint) throw;
      return e.what();
    }
  };
  std::vector<std::string> reasons = beside(comm, read, poll);
  for (size_t rank = 0; rank < reasons.size(); ++rank)
    if (!reasons[rank].empty())
      return reasons.size() > 1 ? fmt::format("{} (rank {})", reasons[rank], rank) : reasons[rank];
  return "";
}

// What to do, said with an error: the file belongs to another model; no file is valid.
struct Advice {
  const char *other, *none;
};

Restored newest_valid(comm::Comm& comm, const std::vector<Candidate>& files, State& target, const Advice& advice,
                      const Poll& poll) {
  base::Stopwatch watch;
  FileLayout wanted = layout_of(target);
  Restored restored;
  for (const Candidate& c : files) {
    Inspected inspected = inspect_on_first(comm, c);
    std::string reason = inspected.reason;
    if (reason.empty()) {
      const Manifest& m = *inspected.manifest;
      if (std::vector<std::string> lines = differences(m.layout, wanted); !lines.empty())
        base::fail(base::Exit::checkpoint, "{} is intact but belongs to another model or optimizer:\n  {}\n{}", c.path,
                   base::join(lines, "\n  "), advice.other);
      reason = read_together(comm, c, m, target.tensors, restored.bytes, poll);
      if (reason.empty()) {
        target.step = m.state.step, target.numbers = m.state.numbers, target.texts = m.state.texts;
        restored.file = c.path.substr(c.path.rfind('/') + 1), restored.path = c.path, restored.step = c.step,
        restored.seconds = watch.seconds();
        return restored;
      }
    }
    // io::Failure names the path itself.
    restored.refused.push_back(reason.starts_with(c.path) ? reason : fmt::format("{}: {}", c.path, reason));
    if (comm.rank() == 0) log::warning("checkpoint refused: {}", restored.refused.back());
  }
  base::fail(base::Exit::checkpoint, "{} holds checkpoints, but none is valid:\n  {}\n{}",
             io::parent_of(files.front().path), base::join(restored.refused, "\n  "), advice.none);
}

}  // namespace

std::optional<Restored> restore(comm::Comm& comm, const std::string& directory, State& target,
                                const CheckpointOptions& options, const Belongs& belongs, const Poll& poll) {
  std::vector<Candidate> files = list(comm, directory, belongs);
  int64_t only = resume_step(options.resume);
  // A job script repeats its command: what was done once is not done again by every job that continues the run.
  for (const Candidate& c : only >= 0 || options.resume == "never" ? files : std::vector<Candidate>()) {
    Inspected newest = inspect_on_first(comm, c);
    if (!newest.manifest) continue;  // damaged: the one before tells
    auto done = newest.manifest->state.texts.find(kResumed);
    if (done == newest.manifest->state.texts.end() || done->second != options.resume) break;
    if (comm.rank() == 0)
      log::warning(
          "checkpoint.resume = \"{}\" was carried out by the attempt that wrote {}: this one goes on from there "
          "(to do it once more, move that file and those like it away)",
          options.resume, c.path);
    CheckpointOptions plain = options;
    plain.resume = "must";
    return restore(comm, directory, target, plain, belongs, poll);
  }
  if (options.resume == "never") return {};
  if (files.empty()) {
    if (options.resume == "auto") return {};
    base::fail(base::Exit::checkpoint, "checkpoint.resume = \"{}\", but {} holds no checkpoint", options.resume,
               directory);
  }
  if (only >= 0) {
    std::string steps;
    for (const Candidate& c : files) steps += fmt::format(" {}", c.step);
    std::erase_if(files, [&](const Candidate& c) { return c.step != only; });
    if (files.empty())
      base::fail(base::Exit::checkpoint, "checkpoint.resume = \"{}\", but {} holds only steps{}", only, directory,
                 steps);
  }

  return newest_valid(
      comm, files, target,
      {.other = "Give this run another run.dir, or the deck that the file's /deck holds",
       .none = "Nothing was changed. To begin anew choose another run.dir or checkpoint.resume = \"never\""},
      poll);
}

Restored branch(comm::Comm& comm, const std::string& from, State& target, const Poll& poll) {
  std::string listed = on_first(comm, [&] {
    std::string text;
    for (const Candidate& c : files_at(from)) text += fmt::format("{} {}\n", c.step, c.path);
    return text;
  });
  std::vector<Candidate> files;
  for (const std::string& line : base::split(listed, '\n'))
    if (size_t blank = line.find(' '); blank != line.npos)
      files.push_back({std::stoll(line.substr(0, blank)), line.substr(blank + 1)});
  return newest_valid(
      comm, files, target,
      {.other =
           "checkpoint.branch_from continues a full state, so model and optimizer must be those of its run; to take "
           "over parameters alone use init.from",
       .none = "checkpoint.branch_from names nothing to begin from"},
      poll);
}

}  // namespace checkpoint
