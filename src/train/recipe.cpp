// SPDX-License-Identifier: Apache-2.0
#include "train/recipe.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/elementary.hpp"
#include "base/text.hpp"
#include "data/stream/loader.hpp"
#include "host/device_choice.hpp"
#include "job/run_dir.hpp"
#include "train/unused.hpp"

namespace train {
using config::OnResume;

void RunOptions::bind(config::Table& t) {
  t.key("name", name, "name of the run, in logs and files").on_resume(OnResume::may_change);
  t.key("dir", dir,
        "run directory: all output goes here; parents are created; one running job per directory "
        "(lock)")
      .required()
      .unit("path")
      .check([this] { return job::directory_problem(dir); })
      .on_resume(OnResume::may_change);
  t.choice("device", device, host::kDeviceWishNames, "where to compute")
      .on_resume(OnResume::may_change);
  t.choice(
       "cpu", cpu, kernels::kInstructionsNames,
       "widest instructions of products and loops on CPUs; auto: all that the CPU has; generic: "
       "plain C++, only at determinism.level \"anywhere\" or if the CPU is no x86-64")
      .on_resume(OnResume::may_change);
  t.key("threads", threads,
        "compute threads per rank; 0 = the cores the launcher bound the rank to")
      .min(0)
      .max(1024)
      .on_resume(OnResume::may_change);
  t.key("seed", seed, "seed of initial weights, sample order, draws and dropout").min(0);
  t.key("notes", notes, "free text, copied into metrics.h5 and every checkpoint")
      .on_resume(OnResume::may_change);
  t.choice("cuda_graph", cuda_graph, {{"off", false}, {"on", true}},
           "GPUs: on: forward and backward of a pass are recorded as a CUDA graph when their "
           "shapes recur, then started by one call, with the same bits; none if passes exchange "
           "(sharded parameters of several ranks, determinism.level \"mesh\") or drop out")
      .on_resume(OnResume::may_change);
  t.key("cuda_graph_limit", cuda_graph_limit,
        "most graphs kept; passes of further shapes run without. The driver holds their memory, "
        "which is not in the plan")
      .min(1)
      .max(1 << 16)
      .unit("graphs")
      .on_resume(OnResume::may_change);
  t.choice("gemm_search", gemm_search, host::kGemmSearchNames,
           "algorithms of products on GPUs: off: cuBLASLt's first proposals, the same in every "
           "run; on: the fastest of eight, timed by rank 0 at the first start and kept in "
           "RUN/gemm_search.txt; a run with a copy of that file has the same bits; auto: on in "
           "training if all ranks have the same GPU, and off at determinism.level \"mesh\"")
      .on_resume(OnResume::may_change);
}

void TrainOptions::bind(config::Table& t) {
  t.key("data", data, "name of a [data.NAME] table; or mixture");
  t.key("mixture", mixture,
        "{ NAME = weight }: data sets interleaved by weight, exact over every period (10,000 "
        "examples or fewer); one epoch of the mixture has as many examples as all its data sets "
        "together")
      .above(0);
  t.duration("total", total,
             "length of the run; making it longer extends a finished run; \"input\": until the "
             "training data end, whole batches only, and schedules span them all")
      .required()
      .one_of({"input"})
      .above(0)
      .no_fraction()
      .on_resume(OnResume::may_change);
  t.key("global_batch", global_batch, "examples per update, whatever the number of ranks")
      .required()
      .min(1)
      .max(1 << 24)
      .unit("examples");
  t.key("micro_batch", micro_batch,
        "largest number of examples per rank and pass; accumulation is derived; 0 = global_batch / "
        "ranks")
      .min(0)
      .unit("examples")
      .on_resume(OnResume::may_change);
  t.choice(
      "shuffle", shuffle, data::kShuffleNames,
      "order of the examples: none: as stored; exact: another permutation every epoch; blocks: "
      "runs of neighbours in random order, mixed within windows, kind to file systems; classes: "
      "each example is drawn independently, with a weight by its class (data.NAME.class_field); "
      "stratified: each batch has classes_per_batch classes with equally many examples each");
  t.key("shuffle_block", shuffle_block, "shuffle \"blocks\": neighbouring examples read together")
      .min(1)
      .max(1 << 24)
      .unit("examples");
  t.key("shuffle_window", shuffle_window, "shuffle \"blocks\": blocks mixed with each other")
      .min(1)
      .max(1 << 24)
      .unit("blocks");
  t.key("class_power", class_power,
        "shuffle \"classes\": a sample has the weight 1 / (samples of its class)^class_power; 0: "
        "all samples alike; 1: all classes alike")
      .min(0)
      .max(10);
  t.key("classes_per_batch", classes_per_batch,
        "shuffle \"stratified\": classes of a batch, which global_batch must be divisible by")
      .min(0)
      .max(1 << 24)
      .unit("classes");
  t.key("test_every", test_every,
        "all evaluators also run after epochs 0, k, 2k, ... (k = test_every) and after the last "
        "one, in VISSL's phases; 0 = only when their own keys say")
      .min(0)
      .max(1 << 30)
      .unit("epochs")
      .on_resume(OnResume::may_change);
  t.choice("reduce_gradients", reduces_after,
           {{"beside_backward", false}, {"after_backward", true}},
           "when gradients of replicated parameters are summed over ranks at determinism.level "
           "\"run\": as soon as those of a block are complete, or after backward. Both give the "
           "same bits")
      .on_resume(OnResume::may_change);
  for (const char* name : {"label_smoothing", "pad_id"})
    t.moved(name, fmt::format("model.{}", name));
  check_order(t);
  if (data.empty() && mixture.empty())
    t.error("data", "missing; name a [data.NAME] table, or give mixture = { NAME = weight, ... }");
  if (!data.empty() && !mixture.empty())
    t.error("mixture", "train.data is set, too: give one of the two");
}

void PrecisionOptions::bind(config::Table& t) {
  t.choice("compute", compute, host::kComputeNames,
           "products and the activations between them: f32, or rounded to bf16; on GPUs also fp16, "
           "with a loss scale, and tf32: operands of f32 products are rounded to 10 bits as they "
           "are read; residuals, sums, softmax, norms and weights stay f32")
      .on_resume(OnResume::may_change);
  t.table("loss_scale", loss_scale,
          "fp16 only: gradients are formed times a scale, which shrinks when one overflows (that "
          "step makes no update, on any rank) and grows again; 1 / scale comes before norms and "
          "clipping; checkpoints hold it");
}

void Recipe::bind(config::Table& t) {
  t.key("format", format, "version of the deck format").min(1).max(1);
  t.table("run", run, "where and as what");
  t.table("train", train, "what is trained, how long, on what batch");
  t.table("mesh", mesh, "replica * fsdp = number of ranks; one of them may be -1 (inferred)");
  t.table(
      "sharding", sharding,
      "replicated+replicated: data parallel; replicated+sharded: ZeRO-1; sharded+sharded: FSDP");
  t.table("precision", precision, "number formats");
  t.table("memory", memory, "memory against time");
  t.table("determinism", determinism, "what the bits may depend on");
  t.table("model", model, "the model");
  t.table("init", init,
          "parameters of a new run; to continue another run see checkpoint.branch_from");
  t.table("optimizer", optimizer, "the optimizer and the rules for parameters");
  t.named("schedule", schedule,
          "multipliers of the update, evaluated at step - 1; `default` is used unless a rule names "
          "another");
  t.optional_table("ema", ema,
                   "with this table the run keeps a moving average of the weights, for "
                   "eval.NAME.weights and init.weights");
  t.optional_table("noise", noise,
                   "with this table training passes use weights plus normal noise; the stored "
                   "weights stay without noise");
  data.bind(t);
  t.named("eval", evals, "evaluators, run in alphabetical order");
  t.table("checkpoint", checkpoint, "files to continue from");
  t.table("log", log, "what is written how often");
  t.table("early_stop", early_stop,
          "end the run as finished (exit 0) when an evaluator's metric no longer improves");
  t.table("guard", guard, "decided by all ranks together, before the update");
  t.table("limits", limits,
          "when to stop early: with a checkpoint, and exit 75 (job scripts requeue) or 8 for "
          "RUN/stop and a spent budget");
  t.table("watch", watch,
          "the watchdog, which notices a job that makes no progress and names the rank that the "
          "others wait for");
  t.table("hooks", hooks,
          "commands that run after events of the run, while training continues; each gets the "
          "facts of its event. --fast-dev runs none");
  t.table("profile", profile, "what speed is compared with, and which steps are traced");
  t.table("bench", bench, "--mode bench");
  t.table("plan", plan, "--mode plan: what a run needs");
  t.table("show", show, "--mode show: a batch as the model would see it");
  t.table("evaluate", evaluate, "--mode eval: evaluators on given weights");
  t.table("extract", extract, "--mode extract: features of every sample of a data set");
  t.table("predict", predict, "--mode predict: scores of classes for every sample of a data set");
  t.table("caption", caption, "--mode caption: captions of image files");
  t.table("index", index, "--mode index: what data sets hold");
  t.table("selftest", selftest, "--mode selftest: the machine that a run would use");
}

namespace {

constexpr const char* kModel = "the model";  // reader of data sets, in messages

// True if rows of metrics have a value of this name, whatever the model: see RunLog::write_row.
bool is_in_rows(std::string_view name) {
  constexpr std::string_view kSchedule = "schedule";  // "schedule1" is the second one
  if (name == "kind" || name == "step" || name == "attempt") return true;
  if (name.starts_with(kSchedule))
    return name.find_first_not_of("0123456789", kSchedule.size()) == name.npos;
  return std::ranges::any_of(records::train_metrics(),
                             [&](const records::MetricInfo& m) { return m.name == name; });
}

// Checks the names that a deck gives to measures: a row has one value of each name.
void check_measures(config::Deck& deck, const models::Model& made) {
  for (const models::Measure& m : made.measures())
    if (m.name != "loss" && is_in_rows(m.name))
      deck.error("model.loss", fmt::format("name = \"{}\" is already the name of another value in "
                                           "metrics.jsonl; choose another name",
                                           m.name));
}

// Checks that the metrics named by checkpoint.best and early_stop exist, and the measures of
// eval.NAME.when.
void check_metrics(const Recipe& recipe, config::Deck& deck, const models::Model& made) {
  auto metric = [&](const std::string& key, const std::string& choice) {
    if (choice.empty()) return;
    try {
      parse_metric_choice(choice, recipe.evaluations());
    } catch (const base::Error& e) {
      deck.error(key, e.what());
    }
  };
  metric("checkpoint.best", recipe.checkpoint.best);
  metric("early_stop.metric", recipe.early_stop.metric);
  try {
    if (!recipe.checkpoint.passes.empty())
      parse_threshold(recipe.checkpoint.passes, recipe.evaluations());
  } catch (const base::Error& e) {
    deck.error("checkpoint.passes", e.what());
  }
  for (const auto& [name, options] : recipe.evals) {
    if (options.when.empty()) continue;
    try {
      parse_measure_rule(options.when, made.measures());
    } catch (const base::Error& e) {
      deck.error(fmt::format("eval.{}.when", name), e.what());
    }
  }
}

// Checks that the evaluations named by evaluate.evaluators exist.
void check_chosen(const Recipe& recipe, config::Deck& deck) {
  std::vector<std::string> names;
  for (const auto& [name, options] : recipe.evaluations()) names.push_back(name);
  for (const std::string& name : recipe.evaluate.evaluators) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    deck.error("evaluate.evaluators",
               fmt::format("there is no evaluation \"{}\"; {}", name,
                           names.empty() ? "the deck has no [eval.NAME]"
                                         : "the deck has " + base::join(names, ", ")));
  }
}

// Checks for work that the device cannot do, and for batch arithmetic that no number of ranks can
// fix.
void check_machine(const Recipe& recipe, config::Deck& deck, const models::Model& made) {
  if (std::string problem = host::problem_on_cpus(recipe.precision.compute);
      recipe.run.device == host::DeviceWish::cpu && !problem.empty())
    deck.error("precision.compute", problem);
  if (recipe.run.device == host::DeviceWish::cpu)
    for (const Unused& u : only_for_gpus(recipe))
      deck.error(u.key, u.why + ", and run.device is \"cpu\": leave it out, or compute on GPUs");

  if (recipe.run.device == host::DeviceWish::cuda)
    for (const Unused& u : only_for_cpus(recipe))
      deck.error(u.key, u.why + ", and run.device is \"cuda\": leave it out, or compute on CPUs");

  if (recipe.determinism.anywhere() && recipe.run.device == host::DeviceWish::cuda)
    deck.error("determinism.level", step::kAnywhereIsForCpus, "run.device");
  if (recipe.determinism.mesh() && recipe.train.global_batch % recipe.determinism.slices)
    deck.error("determinism.slices",
               fmt::format("train.global_batch = {} is not divisible by slices = {}",
                           recipe.train.global_batch, recipe.determinism.slices),
               "train.global_batch");

  if (recipe.run.cuda_graph) {
    std::string problem = made.changing_arguments();
    if (problem.empty() && recipe.determinism.mesh()) problem = step::kTreeInPasses;
    if (!problem.empty())
      deck.error("run.cuda_graph", problem + "; so no CUDA graph can repeat a pass: use \"off\"");
  }
}

}  // namespace

void Recipe::cross_check(config::Deck& deck) const {
  // The model that the checks make, and keep, already holds numbers of the run.
  base::math::use_own(determinism.anywhere());
  // Check data sets: their names, ops, and whether they yield the model's fields.
  auto known = [&](const std::string& key, const std::string& name) {
    if (data.data.count(name)) return true;
    std::vector<std::string> names;
    for (const auto& [n, o] : data.data) names.push_back(n);
    std::string near = base::nearest_name(name, names);
    deck.error(key, fmt::format("there is no [data.{}]{}", name,
                                near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
    return false;
  };
  for (const data::Problem& p : data.problems()) deck.error(p.key, p.text);

  const std::shared_ptr<const models::Model> made = made_model();
  // Data sets with equal preprocessing and equal spec have the same problems, which are reported
  // once for each reader.
  std::vector<std::tuple<std::string, data::Spec, std::string>> checked;
  auto use = [&](const std::string& key, const std::string& name, const std::string& reader,
                 const Features& features) {
    if (!known(key, name)) return;
    std::tuple<std::string, data::Spec, std::string> one;
    try {
      one = {data.preprocess_of(name), data.spec_of(name), reader};
    } catch (const base::Error&) {
      return;  // reported above, or it needs a missing file
    }
    if (std::find(checked.begin(), checked.end(), one) != checked.end()) return;
    checked.push_back(one);
    feeds(deck, reader, features, name, std::get<data::Spec>(one));
  };
  const Features features = made->features();
  for (const auto& [name, weight] : train.parts())
    use(train.mixture.empty() ? "train.data" : "train.mixture", name, kModel, features);
  if (!deck.problems().any()) check_mixture(deck);
  for (const auto& [name, e] : evals)
    for (const auto& [key, set] : eval::data_sets_of(e)) {
      const std::optional<Features> own = eval::features_of(e, key, *made);
      const std::string at = fmt::format("eval.{}.{}", name, key);
      use(at, set, own ? at : kModel, own ? *own : features);
    }
  check_evaluators(deck, *made);
  if (!show.data.empty()) use("show.data", show.data, kModel, features);
  for (const auto& [key, set] :
       {std::pair{"extract.data", extract.data}, {"predict.data", predict.data}})
    if (!set.empty()) use(key, set, "the encoder", image_features(*made));
  check_extract(deck, *made);
  check_predict(deck);
  if (!caption.data.empty()) use("caption.data", caption.data, kModel, features);
  check_lengths(deck, 0);
  for (const std::string& name : index.data) known("index.data", name);

  check_average(deck);
  check_measures(deck, *made);
  check_metrics(*this, deck, *made);
  check_chosen(*this, deck);
  check_machine(*this, deck, *made);
  check_paths(deck, *made);
}

// Checks that the model can do what evaluators need.
void Recipe::check_evaluators(config::Deck& deck, const models::Model& made) const {
  for (const auto& [name, e] : evals) {
    const eval::Registered& row = eval::row_of(e);
    try {
      if (!eval::make_pass(e, made))
        deck.error(fmt::format("eval.{}.kind", name),
                   fmt::format("{} needs a model that can {}, and model.kind = \"{}\" cannot",
                               row.name, row.needs, model.kind));
    } catch (const base::Error& error) {
      deck.error("eval." + name, error.what());
    }
  }
}

void Recipe::feeds(config::Deck& deck, const std::string& reader, const Features& features,
                   const std::string& name, const data::Spec& spec) const {
  std::string at = fmt::format("data.{}.preprocess", name);
  if (!deck.has(at)) at = "data." + name + ".kind";
  auto way = [](const std::string& ops) { return ops.empty() ? "" : "; as by " + ops; };
  for (const auto& [feature, wanted] : features) {
    auto field = spec.find(feature);
    if (field == spec.end()) {
      if (!wanted.optional)
        deck.error(at, fmt::format("{} needs \"{}\", [data.{}] yields {}{}", reader, feature, name,
                                   data::text_of(spec), way(wanted.made_by)));
      continue;
    }
    const data::FieldSpec &has = field->second,
                          takes = data::FieldSpec::array(wanted.type, wanted.shape);
    bool array = has.kind == data::FieldSpec::Kind::array,
         same_type = array && has.type == takes.type;
    if (same_type && has.shape == takes.shape) continue;
    const std::string way_out = !array || has.shape != takes.shape ? way(wanted.made_by)
                                : has.type == device::DType::u8 && wanted.pixels
                                    ? "; add value_range, as in value_range(-1, 1)"
                                    : "; numbers of another type would be misread";
    deck.error(at,
               fmt::format("yields {} {} where {} takes {} ({}){}", feature, data::text_of(has),
                           reader, data::text_of(takes), wanted.key, way_out),
               wanted.key);
  }
  check_limits(deck, features, name, spec);
  try {
    data::check_batchable(spec);
  } catch (const base::Error& e) {
    deck.error(at, e.what());
  }
}

void Recipe::check_limits(config::Deck& deck, const Features& features, const std::string& name,
                          const data::Spec& spec) const {
  for (const auto& [feature, wanted] : features)
    if (auto field = spec.find(feature);
        wanted.below > 0 && field != spec.end() && field->second.limit > wanted.below)
      deck.error(wanted.limit_key,
                 fmt::format("{} is smaller than the {} ids that [data.{}] can yield", wanted.below,
                             field->second.limit, name));
}

void Recipe::check_tokenizers(config::Deck& deck) const {
  std::set<std::string> names = evaluated_sets();
  for (const auto& [name, weight] : train.parts()) names.insert(name);
  std::map<std::string, data::Spec> specs;
  for (const std::string& name : names) {
    try {
      specs[name] = data.opened_spec_of(name);
    } catch (const base::Error& e) {
      // The machine that checks a deck may lack the files.
      if (e.code() == base::Exit::config)
        deck.error(fmt::format("data.{}.preprocess", name), e.what());
    }
  }
  check_opened(deck, 0, specs);
}

void Recipe::check_average(config::Deck& deck) const {
  for (const auto& [name, options] : evals) {
    if (options.weights == eval::Weights::raw) continue;
    const char* weights = base::name_of(eval::kWeightsNames, options.weights);
    if (!ema)
      deck.error(fmt::format("eval.{}.weights", name),
                 fmt::format("\"{}\" needs the average of the weights, which a run keeps if its "
                             "deck has an [ema] table",
                             weights));
    if (evals.contains(name + "_ema"))
      deck.error(fmt::format("eval.{}.weights", name),
                 fmt::format("\"{0}\" calls its rows {1}_ema, but the deck has an [eval.{1}_ema], "
                             "too: rename that evaluator",
                             weights, name));
  }
}

void Recipe::check_mixture(config::Deck& deck) const {
  try {
    data::Proportions proportions(train.parts());
  } catch (const base::Error& e) {
    deck.error("train.mixture", e.what());
  }
  const std::string first = train.parts().begin()->first;
  for (const auto& [name, weight] : train.parts()) {
    try {
      if (std::string problem = data::spec_difference(data.spec_of(first), data.spec_of(name));
          !problem.empty())
        deck.error("train.mixture", fmt::format("[data.{}] and [data.{}] cannot be mixed: {}",
                                                first, name, problem));
    } catch (const base::Error&) {
      // A file that the spec needs is missing; opening the mixture checks again.
    }
  }
}

}  // namespace train
