// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/driver.hpp"

namespace checkpoint {
namespace log = base::log;

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
                          const std::vector<shard::TensorSlice>& tensors, const IoLimits& io,
                          int64_t& bytes, const comm::Poll& poll) {
  const std::vector<std::string> reasons =
      make_driver(comm, io)->read(candidate.path, manifest, tensors, poll, bytes);
  for (size_t rank = 0; rank < reasons.size(); ++rank)
    if (!reasons[rank].empty())
      return reasons.size() > 1 ? fmt::format("{} (rank {})", reasons[rank], rank) : reasons[rank];
  return "";
}

// Host memory to read a file into: the parts themselves, or host copies if the parts are on a
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
    f.note = "holds no average of the weights: the average starts from the weights";
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
      reason = read_together(comm, c, m, fitted.tensors, target.io, restored.bytes, poll);
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
          "checkpoint.resume = \"{}\" was already carried out by the attempt that wrote {}: this "
          "attempt continues from there (to do it again, move away that file and the other "
          "checkpoints written with this setting)",
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
      {.other = "Give this run another run.dir, or use the deck stored in the file's /deck",
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
      {.other = "checkpoint.branch_from continues a full state, so model and optimizer must equal "
                "those of that run; to take over only the parameters, use init.from",
       .none = "Set checkpoint.branch_from to a run or file with a valid checkpoint"},
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
                                "the deck stored in the file's /deck",
                       .none = "Name another file or run"},
                      poll);
}

}  // namespace checkpoint
