// SPDX-License-Identifier: Apache-2.0
#include "train/mode_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "models/trunks/trunk.hpp"

namespace train {
using config::OnResume;

void BenchOptions::bind(config::Table& t) {
  t.key("warmup_steps", warmup_steps, "steps before the timed ones (--mode bench)")
      .min(1)
      .on_resume(OnResume::may_change);
  t.key("steps", steps, "timed steps").min(1).on_resume(OnResume::may_change);
  t.key("op_steps", op_steps,
        "on GPUs, steps after the timed ones in which the GPU measures each op; 0 = none")
      .min(0)
      .on_resume(OnResume::may_change);
  t.key("max_s", max_s, "stop timing after this, with at least two timed steps")
      .above(0)
      .unit("s")
      .on_resume(OnResume::may_change);
}

void PlanOptions::bind(config::Table& t) {
  t.key("parameters", parameters,
        "true: also print a table of all parameters: shape, initial distribution, weight decay, "
        "multiplier of the learning rate, schedule or frozen, placement, unit, optimizer state")
      .on_resume(OnResume::may_change);
}

void ShowOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("data", data,
        "source of the examples: \"\" = the training stream at `step`; a [data.NAME] = its first "
        "ones, unshuffled")
      .on_resume(may);
  t.key("step", step, "step of training whose batch is shown").min(1).on_resume(may);
  t.key("examples", examples, "number of examples")
      .min(1)
      .max(4096)
      .unit("examples")
      .on_resume(may);
}

void EvaluateOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("from", from,
        "weights to evaluate, one after the other (--mode eval): a checkpoint .h5, a run "
        "directory, or a file that init.from takes; [] = run.dir. Files of other programs are read "
        "with "
        "init.map and init.posemb. Parameters that init.dont_load names are read, too, if the file "
        "has them and they fit")
      .unit("path")
      .on_resume(may);
  t.choice("checkpoints", every_checkpoint, {{"newest", false}, {"all", true}},
           "which checkpoints of a run directory to evaluate: the newest valid one, or all, oldest "
           "first")
      .on_resume(may);
  t.key("evaluators", evaluators,
        "names of [eval.NAME] to run, or NAME_ema for one on the average of the weights; [] = all")
      .on_resume(may);
  t.key("batch", batch,
        "examples of one pass on each rank; 0 = train.micro_batch, or the rank's part of "
        "train.global_batch if that is smaller. Values do not depend on it")
      .min(0)
      .max(1 << 24)
      .unit("examples")
      .on_resume(may);
  t.key("out", out,
        "file to which each evaluation appends a row, as in metrics.jsonl; \"\" = none: the mode "
        "then writes no file")
      .unit("path")
      .on_resume(may);
  t.key("files", files,
        "folder for the files of evaluators (captions.jsonl, confusions.json): FILES/EVAL/STEP, as "
        "training writes them below RUN/eval; \"\" = they are not written. Further weights of the "
        "same step get STEP-2 and so on")
      .unit("path")
      .on_resume(may);
}

void RowOptions::bind(config::Table& t, const std::string& place) {
  auto may = config::OnResume::may_change;
  t.key("from", from,
        "weights: a checkpoint .h5, a run directory, or a file that init.from takes; \"\" = "
        "run.dir. Files of "
        "other programs are read as evaluate.from says")
      .unit("path")
      .on_resume(may);
  t.choice("weights", average, {{"raw", false}, {"ema", true}},
           "raw: the weights as trained; ema: their average in the checkpoint")
      .on_resume(may);
  t.key("batch", batch,
        "examples of one pass on each rank; 0 = train.micro_batch, or the rank's part of "
        "train.global_batch if that is smaller")
      .min(0)
      .max(1 << 24)
      .unit("examples")
      .on_resume(may);
  t.key("out", out,
        "HDF5 file; \"\" = " + place +
            ". A file that is not complete is called OUT.part, and the same command continues it")
      .unit("path")
      .on_resume(may);
}

void ExtractOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("data", data, "name of a [data.NAME] table (--mode extract); the mode needs it")
      .on_resume(may);
  t.key("taps", taps,
        "features to write; without any, the vector that a head reads. " + models::taps_doc())
      .check([this] {
        for (const std::string& tap : taps)
          if (std::count(taps.begin(), taps.end(), tap) > 1)
            return fmt::format("\"{}\" is listed twice", tap);
        return std::string();
      })
      .on_resume(may);
  t.choice("pool", mean, {{"none", false}, {"mean", true}},
           "taps with tokens: none: write all tokens; mean: their mean, summed in float64")
      .on_resume(may);
  t.choice("dtype", half, {{"float32", false}, {"float16", true}},
           "float16: rounded to the nearest, ties to even; a feature beyond its range is an error "
           "that names the sample")
      .on_resume(may);
  rows.bind(t, "run.dir/extract/DATA.h5");
}

void PredictOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("evaluator", evaluator,
        "name of an [eval.NAME] of kind scoring or classification (--mode predict), whose classes "
        "and scores are used; the mode needs it")
      .on_resume(may);
  t.key("data", data, "name of a [data.NAME] table; \"\" = the evaluator's; labels may be missing")
      .on_resume(may);
  t.key("top_k", top_k,
        "classification: most likely classes whose numbers and probabilities are written")
      .min(1)
      .on_resume(may);
  rows.bind(t, "run.dir/predict/EVALUATOR.h5");
}

void CaptionOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("from", from,
        "weights that caption (--mode caption): a checkpoint .h5, a run directory, or "
        "a file that init.from takes; \"\" = the checkpoint or run that is given in place of the "
        "deck, or else "
        "run.dir")
      .unit("path")
      .on_resume(may);
  t.choice("weights", weights, {{"raw", eval::Weights::raw}, {"ema", eval::Weights::ema}},
           "raw: the weights as trained; ema: their average ([ema])")
      .on_resume(may);
  t.key("data", data,
        "name of a [data.NAME] table, whose ops turn a file into the model's image; \"\" = the set "
        "of the first captioning evaluator, of the first evaluator with captions, or of training")
      .on_resume(may);
  t.key("batch", batch,
        "images of one pass on each rank; 0 = as evaluate.batch, and no more than there are")
      .min(0)
      .max(1 << 24)
      .unit("images")
      .on_resume(may);
  t.key("out", out,
        "file for one JSON line per image, made anew; \"\" = none: the console has all captions")
      .unit("path")
      .on_resume(may);
  decoding.bind(t);
}

bool SelftestOptions::has(const std::string& check) const {
  return std::find(checks.begin(), checks.end(), check) != checks.end();
}

void SelftestOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  const std::vector<std::string> known = checks;
  t.key("checks", checks,
        "what --mode selftest checks. exchange: values and speed of exchanges; speed: products and "
        "copies of each rank; mesh: two steps on all meshes; files: the file system of run.dir; "
        "clocks: clocks, threads and cores, which only warn")
      .one_of(known)
      .on_resume(may);
  t.key("slow_below", slow, "a rank below this share of the median speed of all ranks is bad")
      .min(0)
      .max(1)
      .on_resume(may);
  t.key("mesh_s", mesh_s,
        "time for the check of meshes; if two meshes of the deck's model would take longer, a "
        "small model is checked instead, which the table says")
      .min(0)
      .unit("s")
      .on_resume(may);
}

void IndexOptions::bind(config::Table& t) {
  t.key("data", data, "names of [data.NAME] to read (--mode index); [] = all")
      .on_resume(config::OnResume::may_change);
}

}  // namespace train
