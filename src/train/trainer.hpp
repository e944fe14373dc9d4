// The run: sets everything up, continues from the newest checkpoint, and loops. Hooks observe; only the loop decides.
#pragma once

#include <memory>

#include "checkpoint/checkpoint.hpp"
#include "data/loader.hpp"
#include "train/bad_samples.hpp"
#include "train/console.hpp"
#include "train/metrics.hpp"
#include "train/progress.hpp"
#include "train/run_dir.hpp"

namespace train {

class Trainer {
 public:
  // `deck`: for the copy in the run directory and in each checkpoint.
  Trainer(comm::Session& session, const Recipe& recipe, const config::Deck& deck, const std::string& deck_path,
          const std::string& mesh_selector);
  ~Trainer();

  // Trains from where the run stands to its end (Exit::finished), or until a signal asks to stop: then with a
  // checkpoint and Exit::requeue. Error(Exit::nonfinite) if the loss or a gradient stops being finite.
  base::Exit run();

 private:
  struct Evaluation {
    std::string name;
    eval::EvalOptions options;
    std::unique_ptr<eval::Evaluator> evaluator;
    std::unique_ptr<data::Dataset> dataset;
    int64_t every = 0;
  };
  void open_data();
  void start();
  void open_bad_samples();
  bool restore();  // this run's own newest checkpoint
  bool branch();   // another run's
  void take_over(const checkpoint::State& state);
  void initialise();  // random, then what [init] names
  void feed(int64_t m, const models::Inputs& into);
  void inspect(const StepReport& report) const;
  void record(const StepReport& report);
  void evaluate(bool at_start);
  void save();
  void finish();
  int64_t period(const config::Duration& every, int64_t total) const;
  checkpoint::State snapshot();

  comm::Session& session_;
  const Recipe& recipe_;
  const config::Deck& deck_;
  std::string deck_path_;
  int threads_;
  comm::Mesh mesh_;
  std::unique_ptr<data::Mixture> data_;
  std::vector<Evaluation> evaluations_;
  std::unique_ptr<RunDirectory> directory_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<BadSamples> bad_samples_;
  data::LoaderOptions loader_options_;
  std::unique_ptr<data::Loader> loader_;
  Progress progress_;
  int64_t step_ = 0, total_ = 0;
  std::string origin_ = "random";  // what step 0 or a branch began from; stays with the run
  double start_s_ = 0;
};

}  // namespace train
