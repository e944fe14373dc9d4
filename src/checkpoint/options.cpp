// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "io/version.hpp"

namespace checkpoint {

namespace {

using config::OnResume;

void bind_io(config::Table& t, IoLimits& limits) {
  t.key("io_threads", limits.threads,
        "threads of each rank that read and prove parts of a checkpoint at a start, and that prove "
        "what a save wrote; the bytes are the same")
      .min(1)
      .max(1024)
      .on_resume(OnResume::may_change);
  t.key("io_inflight_mb", limits.inflight_mb,
        "limit of the bytes that a restore on each rank has read and not yet proved; all "
        "io_threads share it")
      .min(2)
      .max(1 << 20)
      .unit("MiB")
      .on_resume(OnResume::may_change);
  if (limits.inflight_mb < 2 * limits.threads)
    t.error("io_inflight_mb",
            fmt::format("{} MiB are too few for io_threads = {}: each takes at least 2 MiB",
                        limits.inflight_mb, limits.threads));
}

void bind_driver(config::Table& t, IoLimits& io) {
  t.choice("driver", io.mpio, {{"direct", false}, {"mpio", true}},
           "who moves the bytes of checkpoints. direct: each rank by itself; mpio: HDF5's MPI-IO "
           "driver, by the main threads of all ranks, so training waits for the transfer. The "
           "files are equal, and each driver reads them")
      .on_resume(OnResume::may_change)
      .check([&io] {
        return io.mpio && !io::hdf5_is_parallel()
                   ? fmt::format(
                         "\"mpio\" needs an HDF5 that was built with MPI, and this program has "
                         "HDF5 "
                         "{}: set checkpoint.driver = \"direct\", or build with a parallel HDF5",
                         io::hdf5_version())
                   : std::string();
      });
  t.choice(
       "transfer", io.collective, {{"collective", true}, {"independent", false}},
       "with driver = \"mpio\": all ranks take part in each transfer, so that MPI-IO may collect "
       "bytes of several ranks; or each rank makes its own ones")
      .on_resume(OnResume::may_change);
  t.key(
       "hints", io.hints,
       "with driver = \"mpio\": hints for MPI-IO, such as { cb_nodes = \"4\" }; those that it does "
       "not know have no effect")
      .on_resume(OnResume::may_change);
  for (const auto& [name, given] :
       {std::pair{"transfer", !io.collective}, {"hints", !io.hints.empty()}})
    if (given && !io.mpio)
      t.error(name, "this is for checkpoint.driver = \"mpio\"; the deck has \"direct\"");
  t.key("stripes", io.stripes,
        "Lustre: number of targets over which the files of RUN/checkpoints are spread, set once by "
        "lfs; -1 = all; 0 = keep the folder's setting")
      .min(-1)
      .on_resume(OnResume::may_change);
}

// The beginning of a run: a checkpoint, or weights.
void bind_beginning(config::Table& t, CheckpointOptions& options) {
  t.key("resume", options.resume,
        "auto: the newest valid checkpoint if there is one; must: an error if there is none; "
        "never: from the beginning; or in quotes a step number, or \"-2\" for the second newest "
        "checkpoint and so on. Going back is done once, however often the command is repeated; "
        "files of later steps are moved to checkpoints/abandoned at the next save")
      .on_resume(OnResume::may_change)
      .check([&resume = options.resume]() -> std::string {
        if (resume == "auto" || resume == "must" || resume == "never" || resume_step(resume) >= 0 ||
            resume_nth(resume) > 0)
          return "";
        return fmt::format(
            "\"{}\" is not auto, must, never, a step number in quotes (\"1000\") or -N in quotes "
            "for "
            "the N-th newest (\"-2\")",
            resume);
      });
  t.key("branch_from", options.branch_from,
        "begin a new run from another run's full state, step and optimizer included (for a "
        "cool-down, say): its run directory, whose newest checkpoint is used, or a checkpoint "
        "file. A checkpoint of this run takes precedence; \"\" = none")
      .unit("path");
  t.key("restart_data", options.restart_data,
        "true: a run that goes on from a checkpoint begins its data anew, at the first example of "
        "their order; step, schedules and counts go on. This is done once, however often the "
        "command is repeated: a checkpoint records whether the attempt that wrote it set this key")
      .on_resume(OnResume::may_change);
}

}  // namespace

void CheckpointOptions::bind(config::Table& t) {
  t.duration("every", every,
             "how often a checkpoint is written; the last step and a stop always write one")
      .on_resume(OnResume::may_change);
  if (every.set()) every_s = 0;
  t.key("every_s", every_s,
        "a checkpoint is also written when the last one began this long ago; 0 = off. The default "
        "of 900 becomes 0 if the deck sets another every_*")
      .min(0)
      .unit("s")
      .on_resume(OnResume::may_change);
  t.key("first_step", first_step,
        "a checkpoint is also written after step 1, as the published code does, so a disk that "
        "cannot be written is found at once")
      .on_resume(OnResume::may_change);
  t.key("keep_last", keep_last, "number of newest checkpoints to keep")
      .min(1)
      .on_resume(OnResume::may_change);
  t.key("keep_every_steps", keep_every_steps,
        "checkpoints of multiples of this step are never removed; 0 = none")
      .min(0)
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("best", best,
        "EVAL/METRIC:min or :max: the checkpoint with the best value so far also gets the name "
        "checkpoints/best.h5; a new best value writes a checkpoint; empty = off")
      .on_resume(OnResume::may_change);
  t.key(
       "passes", passes,
       "EVAL/METRIC:below:VALUE or :above:VALUE: a checkpoint is also written each time the metric "
       "comes to that side of the value; empty = off")
      .on_resume(OnResume::may_change);
  t.key("async", async,
        "files are written beside training, which waits only for the copy to host memory")
      .on_resume(OnResume::may_change);
  t.key("staging_mb", staging_mb,
        "limit of host memory per rank for that copy; if the copy needs more, each save holds "
        "training")
      .min(0)
      .unit("MiB")
      .on_resume(OnResume::may_change);
  bind_io(t, io);
  bind_driver(t, io);
  t.choice("on_error", stops_on_error, {{"continue", false}, {"stop", true}},
           "when a file cannot be written (the old ones are intact): go on with a warning, or stop")
      .on_resume(OnResume::may_change);
  bind_beginning(t, *this);
}

int64_t resume_step(const std::string& resume) {
  if (resume.starts_with("-")) return -1;  // "-0" is not a step
  int64_t step = -1;
  auto [end, error] = std::from_chars(resume.data(), resume.data() + resume.size(), step);
  return error == std::errc() && end == resume.data() + resume.size() && step >= 0 ? step : -1;
}

int64_t resume_nth(const std::string& resume) {
  return resume.starts_with("-") ? std::max<int64_t>(0, resume_step(resume.substr(1))) : 0;
}

}  // namespace checkpoint
