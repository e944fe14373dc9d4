// SPDX-License-Identifier: Apache-2.0
#include "train/weight_source.hpp"

#include "base/log.hpp"
#include "checkpoint/initial_weights.hpp"
#include "checkpoint/weight_file.hpp"
#include "train/init_images.hpp"
#include "train/run_state.hpp"

namespace train {
namespace log = base::log;
namespace {

void load_file(Job& job, const std::string& path, const checkpoint::State& target,
               const comm::Poll& poll) {
  comm::Comm& world = job.session().world();
  step::Engine& engine = job.engine();
  checkpoint::InitOptions init = job.recipe().init;
  init.from = path;
  init.average = false;
  engine.initialise();
  const checkpoint::InitReport report = checkpoint::load_initial_weights(
      world, init, target, engine.model().trunk_weights(), poll, checkpoint::Use::as_it_is);
  log::line("init     from={} {} s={:.2f}", path, report.summary, report.seconds);
  if (const std::string difference = image_difference(job.recipe(), path, report.beside);
      world.rank() == 0 && !difference.empty())
    log::warning("{}", difference);
  std::string random;
  int64_t count = 0;
  for (const std::string& line : report.lines)
    if (!line.starts_with("loaded") && !line.starts_with("resampled") &&
        !line.starts_with("unused") && ++count <= 3)
      random += "\n  " + line;
  if (count > 0 && world.rank() == 0)
    log::warning(
        "{}: {} parameters are not loaded and keep random values (init.map, "
        "init.dont_load):{}{}",
        path, count, random, count > 3 ? "\n  ..." : "");
}

}  // namespace

std::vector<WeightSource> weight_sources(comm::Comm& world, const Recipe& recipe,
                                         const std::string& key,
                                         const std::vector<std::string>& from,
                                         bool every_checkpoint) {
  const bool own = from.empty();
  std::vector<WeightSource> out;
  for (const std::string& path : own ? std::vector<std::string>{recipe.run.dir} : from) {
    try {
      if (checkpoint::has_weights_alone(path)) {
        comm::on_first(world, [&] { return checkpoint::open_weights(path)->path(); });
        out.push_back({path, {}});
        continue;
      }
      std::vector<checkpoint::Candidate> files = checkpoint::agreed_files_at(world, path);
      if (!every_checkpoint) out.push_back({path, files});
      for (size_t i = every_checkpoint ? files.size() : 0; i > 0; --i)
        out.push_back({files[i - 1].path, {files[i - 1]}});
    } catch (const base::Error& e) {
      throw base::Error(e.code(),
                        fmt::format("{}: {}; name a checkpoint .h5, a run directory with "
                                    "checkpoints, or a file that init.from takes in {}",
                                    own ? "run.dir" : key, e.what(), key),
                        true);
    }
  }
  return out;
}

int64_t load_weights(Job& job, WeightSource& source, bool average, const comm::Poll& poll) {
  base::set_phase("restore");
  step::Engine& engine = job.engine();
  checkpoint::State target;
  target.tensors = engine.state();
  target.queue = &engine.queue();
  target.io = job.recipe().checkpoint.io;
  if (!source.is_checkpoint()) {
    load_file(job, source.path, target, poll);
  } else {
    const checkpoint::Restored restored =
        checkpoint::restore_weights(job.session().world(), source.files, average, target, poll);
    source = {restored.path, {{restored.step, restored.path}}};
    log::line("restore  step={} file={} weights={} mib_per_rank={:.1f} s={:.2f}", restored.step,
              restored.path, average ? "ema" : "raw", double(restored.bytes) / 0x1p20,
              restored.seconds);
    const RunState saved = RunState().read(target);
    job.check_lists(saved.classes, saved.tokenizers, restored.path);
  }
  engine.publish();
  return source.is_checkpoint() ? source.files.front().step : 0;
}

}  // namespace train
