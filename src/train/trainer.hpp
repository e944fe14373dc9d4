// The run: sets everything up, continues from the newest checkpoint, and loops. Hooks observe; only the loop decides.
#pragma once

#include <limits>
#include <memory>

#include "checkpoint/checkpoint.hpp"
#include "data/loader.hpp"
#include "train/bad_samples.hpp"
#include "train/console.hpp"
#include "train/job.hpp"
#include "train/metrics.hpp"
#include "train/progress.hpp"
#include "train/run_dir.hpp"
#include "train/sample_log.hpp"
#include "train/stops.hpp"
#include "train/tracker.hpp"

namespace train {

// How the program was started, beside the deck.
struct Start {
  std::string deck_path, mesh_selector;
  int64_t overrides = 0;                  // number of --set
  std::vector<std::string> allow_change;  // --allow-change
  double begin_s = 0;                     // of the program, on base::now_s()
};

class Trainer {
 public:
  // `deck`: for the copy in the run directory and in each checkpoint. `directory`: nullptr if it is still to be made.
  Trainer(comm::Session& session, const Recipe& recipe, config::Deck& deck, std::unique_ptr<RunDirectory> directory,
          const Start& start);
  ~Trainer();

  // Trains from where the run stands to its end (Exit::finished), or until something asks to stop (stops.hpp): then
  // with a checkpoint and Exit::requeue or Exit::stopped. Error(Exit::nonfinite) by guard.nonfinite.
  base::Exit run();

 private:
  struct Evaluation {
    std::string name;
    eval::EvalOptions options;
    std::unique_ptr<eval::Evaluator> evaluator;
    const data::Dataset* dataset = nullptr;  // of the job
    int64_t every = 0;
    models::ForwardPass* pass = nullptr;  // of the engine
  };
  enum class Which { at_start, due, missing };  // missing: due at this step, and cut off in the attempt before

  // Starting (trainer_start.cpp)
  void open_data();
  void start();
  void print_start();
  bool restore();  // this run's own newest checkpoint
  bool branch();   // another run's
  void check_data(const checkpoint::State& state) const;
  void take_over(const checkpoint::State& state);
  void initialise();  // random, then what [init] names
  void open_metrics(bool after_kill);
  void open_bad_samples();
  void open_loader();
  void account_lost();

  // The loop
  void enter(const char* phase);
  void feed(int64_t m, const models::Inputs& into);
  bool settle(int64_t ahead);
  bool accept(const StepReport& report);
  void rewind(const std::string& problem);
  bool evaluation_due() const;
  bool evaluate(Which which);
  Outlook outlook() const;
  StopReason asked_to_stop();
  void stop_while_starting();  // throws AskedToStop
  void charge_training();
  bool save_due(StopReason stop);
  void save();
  void watch_save(bool wait);
  void watch_directory(bool now);
  void write_deck(bool or_warn);
  void flush_metrics();
  bool stopped_early();
  checkpoint::State target();
  checkpoint::State snapshot();
  int64_t period(const config::Duration& every, int64_t total) const;

  // Telling (trainer_report.cpp)
  int64_t examples_seen() const;
  void record(const StepReport& report, bool skipped);  // of settled_
  void describe_first_batch(const data::Batch& batch);
  void warn_if_diverged() const;
  base::Exit leave(StopReason stop);
  Outlook first_outlook() const;
  void finish();

  const Recipe& recipe_;
  Job job_;
  Start started_;
  std::vector<Evaluation> evaluations_;
  std::unique_ptr<RunDirectory> directory_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<BadSamples> bad_samples_;
  data::LoaderOptions loader_options_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<SampleLog> sample_log_;
  std::unique_ptr<checkpoint::Saver> saver_;
  std::unique_ptr<Stops> stops_;
  Tracker best_, patience_;
  bool complete_ = true;     // no evaluation was cut off
  bool save_best_ = false;   // the next checkpoint holds the best value so far
  double save_bytes_ = 0;    // of a checkpoint
  std::string save_error_;   // of the newest save that failed
  int64_t saved_step_ = -1;  // of the newest checkpoint that was begun or restored
  int64_t in_a_row_ = 0;     // steps skipped, or rewinds
  int64_t last_bad_step_ = 0;
  Progress progress_;
  int64_t step_ = 0, total_ = 0;
  int64_t first_step_ = 0;       // that this attempt started from
  bool caught_up_ = false;       // this attempt did an evaluation that was missing
  int64_t settled_ = 0;        // the newest step whose report is known; at most one before step_
  int64_t bad_samples_of_[2] = {};  // replaced in a step, by its turn
  std::string data_identity_;       // sizes and fingerprints of the training data
  std::string origin_ = "random";  // what step 0 or a branch began from; stays with the run
  bool first_batch_told_ = false;
  bool utilisation_explained_ = false;
  double start_s_ = 0;
  double step_s_ = 0;  // of training, since the last row
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();
  int64_t restored_attempt_ = 0;  // that wrote the checkpoint this one goes on from
  double restored_uptime_s_ = 0;  // of that attempt, then
};

}  // namespace train
