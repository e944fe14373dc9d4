// SPDX-License-Identifier: Apache-2.0
// --mode eval: runs the deck's evaluators on given weights ([evaluate]). It needs no training data,
// has no optimizer and works on any number of ranks. It writes only the files that evaluate.out and
// evaluate.files name, and a folder beside evaluate.out for calls that are cut off (cut_call.hpp).
// The run directory may belong to a running job. Prints one line per evaluation as training does.
// The last line of output is one JSON object:
// {"run": run.name, "dtype": "f32", "ranks": 2, .., "evaluations": [ROW, ..]}, where ROW is
// {"kind": "eval", "eval": "val", "step": 12, "perplexity": .., "examples": 40, "eval_s": 0.3,
// "from": FILE}. Files of other programs have no step, and 0 is given.
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/checksum.hpp"
#include "host/threads.hpp"
#include "io/waiting.hpp"
#include "job/failure.hpp"
#include "job/stops.hpp"
#include "modes/cut_call.hpp"
#include "modes/mode.hpp"
#include "records/bad_samples.hpp"
#include "train/console.hpp"
#include "train/evaluations.hpp"
#include "train/weight_source.hpp"

namespace modes {
using namespace train;
namespace log = base::log;
namespace {

using OrderedJson = nlohmann::ordered_json;

// Makes the file if there is none. An incomplete row of a killed call is removed: this call writes
// the row again, and must not append to an incomplete line.
void open_rows(const std::string& path) {
  io::make_directories(io::parent_of(path));
  io::File file(path, io::File::Mode::append);
  if (file.size() == 0) return;  // also one that cannot be read, such as a pipe
  const std::string text = io::read_file(path);
  const size_t last = text.rfind('\n') + 1;
  if (last < text.size() && text[last] == '{' && !OrderedJson::accept(text.substr(last)))
    file.truncate(int64_t(last));
  else if (last < text.size())
    file.append("\n");
}

// One call of the mode: set_up refuses what can be refused, run does the work.
class Evaluator {
 public:
  explicit Evaluator(Call& call)
      : recipe_(call.recipe),
        job_(call.recipe, call.deck, call.session, call.start.mesh_selector,
             {.writes_indexes = false,
              .trains = false,
              .work = call.recipe.evaluation_work(),
              .allow_change = call.start.allow_change}),
        begin_s_(call.start.begin_s) {}

  void set_up();
  int run();

 private:
  comm::Comm& world() { return job_.session().world(); }
  bool stopped() { return stops_->agree({}) > job::StopReason::save_file; }
  void stop_while_starting();
  void refuse_average() const;
  void print_head();
  bool evaluate(const WeightSource& source, int64_t step, bool average);
  bool take_over(const std::string& row);
  std::string row_of(const Evaluation& e, const WeightSource& source, int64_t step,
                     const eval::Result& result, double seconds) const;
  void add_row(const std::string& row, bool taken_over);
  std::string folder_of(const Evaluation& e, int64_t step);
  int leave();
  void print_summary();
  void require_files();

  const Recipe& recipe_;
  Job job_;
  double begin_s_;
  std::unique_ptr<job::Stops> stops_;
  std::vector<WeightSource> sources_;
  std::vector<Evaluation> evaluations_;
  std::unique_ptr<records::BadSamples> bad_samples_;
  data::LoaderOptions loader_;
  std::unique_ptr<CutCall> cut_;
  OrderedJson rows_ = OrderedJson::array();
  std::map<std::string, int> folders_;  // uses of each name
};

void Evaluator::set_up() {
  const std::map<std::string, eval::EvalOptions> chosen = recipe_.chosen_evaluations();
  if (chosen.empty())
    throw base::Error(base::Exit::config,
                      "--mode eval: the deck has no evaluator; add an [eval.NAME] table "
                      "(--list evaluator shows the kinds)",
                      true);
  job_.connect();
  stops_ = std::make_unique<job::Stops>(world(), recipe_.limits, "", begin_s_);
  auto poll = [this] { stop_while_starting(); };
  sources_ = weight_sources(world(), recipe_, "evaluate.from", recipe_.evaluate.from,
                            recipe_.evaluate.every_checkpoint);
  job_.stage_data(poll);
  job_.open_data(data_sets_of(chosen), poll);
  for (const auto& [name, options] : chosen)
    evaluations_.push_back(make_evaluation(job_, name, options, {evaluations_.size()}));
  std::map<std::string, int64_t> sizes;
  for (const std::string& name : data_sets_of(chosen)) sizes[name] = job_.evaluated(name).size();
  refuse_average();
  loader_ = recipe_.data.loader;
  bad_samples_ = std::make_unique<records::BadSamples>(world(), "", loader_.max_bad_sample_fraction,
                                                       std::move(sizes));
  loader_.log = bad_samples_->log();
  if (const std::string& out = recipe_.evaluate.out; !out.empty())
    comm::on_first(world(), [&] {
      open_rows(out);
      return std::string();
    });
  cut_ = std::make_unique<CutCall>(world(), recipe_.evaluate.out);
}

void Evaluator::stop_while_starting() {
  if (stopped()) throw job::AskedToStop(stops_->exit(false), stops_->text(), "");
}

// Files of initial weights hold no average.
void Evaluator::refuse_average() const {
  for (const WeightSource& source : sources_)
    for (const Evaluation& e : evaluations_)
      if (!source.is_checkpoint() && e.options.weights == eval::Weights::ema)
        throw base::Error(base::Exit::config,
                          fmt::format("evaluate.evaluators: \"{}\" runs on the average of the "
                                      "weights, but {} holds no average; name evaluators with "
                                      "weights = \"raw\", or a checkpoint of a run with [ema]",
                                      e.name, source.path),
                          true);
}

void Evaluator::print_head() {
  const step::Engine& engine = job_.engine();
  log::line("{}", version_line());
  log::line("evaluate {}  {} ranks x {} threads  {} examples per rank and pass  {} parameters",
            recipe_.run.name, world().size(), job_.threads(), engine.geometry().micro_batch,
            base::with_commas(engine.layout().total_elements()));
  log::line("compute  {}", compute_text(recipe_.precision));
  host::print_binding(world(), job_.session().host(), job_.threads());
  print_memory(engine);
  std::string text;
  for (const Evaluation& e : evaluations_)
    text += fmt::format("  {}{} ({})", e.name, in_own_type(e), e.examples);
  log::line("evals  {}", text);
}

// Runs the evaluators on the loaded weights. Returns false if the job must stop.
bool Evaluator::evaluate(const WeightSource& source, int64_t step, bool average) {
  base::set_phase("evaluate");
  base::set_step(step);
  const std::string weights = cut_->keeps() ? weights_digest(job_, step::Weights::raw) : "";
  for (const Evaluation& e : evaluations_) {
    if ((e.options.weights == eval::Weights::ema) != average) continue;
    base::Stopwatch watch;
    const std::string folder = folder_of(e, step);
    std::unique_ptr<eval::Journal> journal;
    std::string key;
    if (cut_->keeps()) {
      const eval::Journal::Identity identity = identity_of(e, job_, weights);
      key = checkpoint::hex(base::xxh3(
          fmt::format("{} {} {}", e.name, source.path, eval::Journal::text_of(identity))));
      if (take_over(cut_->take(key))) continue;
      journal = cut_->open(key, fmt::format("eval={} step={}", e.name, step), identity);
    }
    const eval::Result result = run_evaluation(
        e, job_, loader_, step::Weights::raw, [this] { return stopped(); }, folder, journal.get());
    if (result.interrupted) return false;
    require_files();
    if (const std::string problem = nonfinite_problem(e.name, step, result); !problem.empty())
      throw base::Error(base::Exit::nonfinite, fmt::format("{}: {}", source.path, problem), true);
    const double seconds = watch.seconds();
    log::line("{}", evaluation_line(e.name, step, result, seconds));
    if (loader_.substitutes) bad_samples_->agree();
    const std::string row = row_of(e, source, step, result, seconds);
    if (journal) cut_->add(key, row, *journal);
    add_row(row, false);
  }
  return true;
}

// Returns the folder for the files of an evaluation; "" without evaluate.files, and on all ranks
// but rank 0.
std::string Evaluator::folder_of(const Evaluation& e, int64_t step) {
  if (recipe_.evaluate.files.empty() || world().rank() != 0) return "";
  const std::string name = fmt::format("{}/{}/{:010}", recipe_.evaluate.files, e.name, step);
  const int use = ++folders_[name];
  return use == 1 ? name : fmt::format("{}-{}", name, use);
}

// Takes over the row of an evaluation that a cut call has made; false without a row.
bool Evaluator::take_over(const std::string& row) {
  if (row.empty()) return false;
  const OrderedJson values = OrderedJson::parse(row);
  log::line("eval={} step={} is taken over from the call before", values["eval"].get<std::string>(),
            values["step"].get<int64_t>());
  add_row(row, true);
  return true;
}

std::string Evaluator::row_of(const Evaluation& e, const WeightSource& source, int64_t step,
                              const eval::Result& result, double seconds) const {
  OrderedJson row = {{"kind", "eval"}, {"eval", e.name}, {"step", step}};
  for (const auto& [name, value] : result.values) row[name] = value;
  row[result.counted] = result.examples;
  row["eval_s"] = seconds;
  row["from"] = source.path;
  return row.dump();
}

// Adds a row to the summary and to evaluate.out. A row of a cut call may be in this file.
void Evaluator::add_row(const std::string& row, bool taken_over) {
  rows_.push_back(OrderedJson::parse(row));
  const std::string& out = recipe_.evaluate.out;
  if (out.empty()) return;
  comm::on_first(world(), [&] {
    if (taken_over && io::read_file(out).find(row + "\n") != std::string::npos)
      return std::string();
    io::File file(out, io::File::Mode::append);
    file.append(row + "\n");
    file.sync();
    return std::string();
  });
}

// The files of evaluators are the purpose of this call, so a file that waits for disk space is an
// error.
void Evaluator::require_files() {
  comm::on_first(world(), [] {
    if (io::write_waiting() > 0) base::fail(base::Exit::checkpoint, "{}", io::waiting_problem());
    return std::string();
  });
}

int Evaluator::leave() {
  const int code = int(stops_->exit(false));
  log::line("stopped  {}; {} evaluations were made, and the same command {}", stops_->text(),
            rows_.size(),
            cut_->keeps() ? "goes on from here"
                          : "makes all of them again (evaluate.out would keep them)");
  log::line("done     exit={}", code);
  return code;
}

void Evaluator::print_summary() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const int64_t rss_kib = world().max(int64_t(usage.ru_maxrss));
  const OrderedJson summary = {{"run", recipe_.run.name},
                               {"dtype", name_of(recipe_.precision.compute)},
                               {"ranks", world().size()},
                               {"threads", job_.threads()},
                               {"batch", job_.engine().geometry().micro_batch},
                               {"peak_rss_mib", rss_kib / 1024},
                               {"evaluations", rows_}};
  log::line("{}", summary.dump());
}

int Evaluator::run() {
  job_.build_engine(recipe_.run.dir + "/gemm_search.txt");
  print_head();
  for (WeightSource& source : sources_)
    // The average comes first: if a file lacks it, the job ends before it evaluates anything.
    for (const bool average : {true, false}) {
      auto wants = [average](const Evaluation& e) {
        return (e.options.weights == eval::Weights::ema) == average;
      };
      if (std::none_of(evaluations_.begin(), evaluations_.end(), wants)) continue;
      const int64_t step = load_weights(job_, source, average, [this] { stop_while_starting(); });
      if (!evaluate(source, step, average)) return leave();
    }
  cut_->remove();
  print_summary();
  return 0;
}

int run_eval(Call& call) {
  job::catch_stop_signals(call.recipe.limits.signals);
  return job::make_and_run(*call.session, [&] {
    auto evaluator = std::make_unique<Evaluator>(call);
    evaluator->set_up();
    return evaluator;
  });
}

}  // namespace

Mode eval_row() {
  return {.name = "eval",
          .doc = "the deck's evaluators on a checkpoint, run or file of weights",
          .on_ranks = true,
          .run = run_eval};
}

}  // namespace modes
