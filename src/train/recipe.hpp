// SPDX-License-Identifier: Apache-2.0
// The deck: the options of every section, and the checks that need more than one section.
#pragma once

#include <cmath>
#include <set>

#include "checkpoint/init_options.hpp"
#include "checkpoint/options.hpp"
#include "comm/mesh.hpp"
#include "config/table.hpp"
#include "data/options.hpp"
#include "data/stream/order.hpp"
#include "eval/evaluator.hpp"
#include "host/device_choice.hpp"
#include "host/gemm_choice.hpp"
#include "host/mfu.hpp"
#include "job/hooks.hpp"
#include "job/stops.hpp"
#include "job/watchdog.hpp"
#include "kernels/instruction_choice.hpp"
#include "models/model.hpp"
#include "optim/options.hpp"
#include "records/metrics.hpp"
#include "records/trace_options.hpp"
#include "step/engine.hpp"
#include "step/geometry.hpp"
#include "train/guard.hpp"
#include "train/mode_options.hpp"
#include "train/tracker.hpp"

namespace train {

struct RunOptions {
  std::string name = "run";
  std::string dir;
  host::DeviceWish device = host::DeviceWish::automatic;
  kernels::Instructions cpu = kernels::Instructions::automatic;
  int64_t threads = 0;
  int64_t seed = 0;
  std::string notes;
  host::GemmSearch gemm_search = host::GemmSearch::automatic;
  bool cuda_graph = false;
  int64_t cuda_graph_limit = 64;
  void bind(config::Table& t);
};

struct TrainOptions {
  std::string data;                       // or
  std::map<std::string, double> mixture;  // weights by data set
  config::Duration total;
  int64_t global_batch = 0, micro_batch = 0;
  data::Shuffle shuffle = data::Shuffle::exact;
  int64_t shuffle_block = 512, shuffle_window = 128;
  double class_power = 1;
  int64_t classes_per_batch = 0;
  int64_t test_every = 0;  // epochs (phases.hpp)
  bool reduces_after = false;
  void bind(config::Table& t);
  // total_steps = "input": the run ends when its training data end.
  bool until_input_ends() const { return std::isinf(total.value); }
  // Reports orders of examples that conflict with other keys.
  void check_order(config::Table& t) const;
  // Largest number of examples of a rank in one pass.
  int64_t most_per_pass() const { return micro_batch ? micro_batch : global_batch; }
  // Returns the weights by data set; a single data set has weight 1.
  std::map<std::string, double> parts() const {
    return mixture.empty() ? std::map{std::pair{data, 1.0}} : mixture;
  }
};

// The length of the training data, in examples; 0: not known.
struct DataLength {
  int64_t epoch = 0;  // of all data sets together
  int64_t end = 0;    // position at which a data set would start over
  DataLength(int64_t one_set) : epoch(one_set), end(one_set) {}
  DataLength(int64_t all_sets, int64_t first_end) : epoch(all_sets), end(first_end) {}
};

struct PrecisionOptions {
  host::Compute compute = host::Compute::f32;
  optim::LossScaleOptions loss_scale;  // fp16 only
  // Returns the stored type of the operands of products.
  device::DType type() const {
    return compute == host::Compute::bf16   ? device::DType::bf16
           : compute == host::Compute::fp16 ? device::DType::f16
                                            : device::DType::f32;
  }
  void bind(config::Table& t);
};

// The work of a job that does not train: forward passes over data sets.
struct ForwardWork {
  std::string name = {};  // for messages: "evaluation"
  std::set<std::string> data_sets = {};
  std::vector<step::SidePass> passes = {};
  int64_t batch = 0;  // examples of a pass on each rank; 0: at most the number in a training pass
  // Sets whose labels are written with the passes' results for their images.
  std::set<std::string> labels_of = {};
};

// [profile] of the deck.
struct ProfileOptions : host::ProfileOptions {
  records::TraceOptions trace;
  void bind(config::Table& t) {
    host::ProfileOptions::bind(t);
    trace.bind(t);
  }
};

// The whole deck. It has many members because each table of the deck has one, and the two are read
// side by side.
struct Recipe {
  int64_t format = 1;
  RunOptions run;
  TrainOptions train;
  comm::MeshOptions mesh;
  shard::ShardingOptions sharding;
  PrecisionOptions precision;
  models::MemoryOptions memory;
  step::DeterminismOptions determinism;
  models::ModelOptions model;
  checkpoint::InitOptions init;
  optim::OptimizerOptions optimizer;
  optim::ScheduleTables schedule;
  std::optional<optim::EmaOptions> ema;
  std::optional<optim::NoiseOptions> noise;
  data::Sections data;  // [tokenizer.*], [data.*], [loader]
  std::map<std::string, eval::EvalOptions> evals;
  checkpoint::CheckpointOptions checkpoint;
  records::LogOptions log;
  EarlyStopOptions early_stop;
  GuardOptions guard;
  job::LimitOptions limits;
  job::WatchOptions watch;
  job::HookOptions hooks;
  ProfileOptions profile;
  BenchOptions bench;
  PlanOptions plan;
  ShowOptions show;
  EvaluateOptions evaluate;
  ExtractOptions extract;
  PredictOptions predict;
  CaptionOptions caption;
  IndexOptions index;
  SelftestOptions selftest;
  void bind(config::Table& t);

  // Checks across sections and adds problems to the deck, at their keys. Reads no data.
  void cross_check(config::Deck& deck) const;
  // Checks against facts that are known once files are read. Error(Exit::config) lists all
  // problems. `specs` are the specs of opened data sets; `written` are those whose labels are
  // written (ForwardWork::labels_of).
  void check_opened(config::Deck& deck, const DataLength& length,
                    const std::map<std::string, data::Spec>& specs,
                    const std::set<std::string>& written = {}) const;
  // Checks against the tokenizer files that can be read.
  void check_tokenizers(config::Deck& deck) const;
  // Returns the limits that ids of a data set must be below, by field. A sample with a larger id is
  // bad. "" is the data of training.
  std::map<std::string, data::ValueLimit> value_limits(const std::string& set = "") const;

  // Returns the model of the deck. It is made when it is first asked for, and made anew once a job
  // has counted the samples that the deck leaves to the data.
  std::shared_ptr<const models::Model> made_model() const;
  // `stream_offset`: position of step 0 in the stream (progress.hpp). A run that ends with its
  // input is shorter by examples that were left out.
  int64_t total_steps(const DataLength& length, int64_t stream_offset = 0) const;
  std::map<std::string, eval::EvalOptions> evaluations() const { return eval::evaluations(evals); }
  // Returns the evaluations that --mode eval runs.
  std::map<std::string, eval::EvalOptions> chosen_evaluations() const;
  // Returns the names of all data sets that evaluators read.
  std::set<std::string> evaluated_sets() const;
  // `kind` is the ranks' device, also in a plan. Ranks on GPUs read pixels as bytes if
  // byte_pixels() allows it.
  step::EngineOptions engine(const DataLength& length, int threads,
                             device::Kind kind = device::Kind::cpu) const;
  // Returns the work of --mode eval: the chosen evaluations.
  ForwardWork evaluation_work() const;
  // Returns the options of an engine on this many ranks that only does this work. It needs no
  // training data.
  step::EngineOptions forward_engine(const ForwardWork& work, int ranks, int threads,
                                     device::Kind kind) const;
  // The scaling of pixels, if it can be left to the model. All data sets in use must make all
  // their fields of pixels from bytes in the same way.
  struct BytePixels {
    std::vector<std::string> fields;
    data::ByteScale scale;
  };
  std::optional<BytePixels> byte_pixels() const;
  // Returns the fields of pixels that the model reads: an image, or views of one.
  std::vector<std::string> pixel_fields() const;
  // Returns the data sets that training, evaluators and modes read.
  std::set<std::string> sets_in_use() const;
  // Returns the fields that data sets leave as bytes for the model on this kind of device.
  std::vector<std::string> bytes_fields(device::Kind kind) const;

 private:
  // The values that a model depends on.
  struct MadeFrom {
    std::shared_ptr<config::Table::Variant> options;
    models::Recompute recompute = models::Recompute::none;
    int64_t samples = 0;
    bool operator==(const MadeFrom&) const = default;
  };
  using Features = std::map<std::string, models::FeatureSpec>;
  // Makes the model; the only place that does. With `bytes` it takes pixels as bytes.
  std::shared_ptr<models::Model> make_model(const BytePixels* bytes = nullptr) const;
  // Returns what engines for training and for evaluation alone have in common.
  step::EngineOptions any_engine(int threads, device::Kind kind) const;
  // Returns the fields of a data set that its readers need: model, evaluators, modes.
  Features features_of(const models::Model& made, const std::string& set) const;
  // Checks that a data set has the fields that `reader` needs.
  void feeds(config::Deck& deck, const std::string& reader, const Features& features,
             const std::string& name, const data::Spec& spec) const;
  // Parts of the checks.
  void check_evaluators(config::Deck& deck, const models::Model& made) const;
  void check_limits(config::Deck& deck, const Features& features, const std::string& name,
                    const data::Spec& spec) const;
  void check_lengths(config::Deck& deck, const DataLength& length) const;
  void check_mixture(config::Deck& deck) const;
  void check_average(config::Deck& deck) const;
  void check_extract(config::Deck& deck, const models::Model& made) const;
  void check_predict(config::Deck& deck) const;
  void check_paths(config::Deck& deck, const models::Model& made) const;
  // Returns the data sets whose images the modes extract and predict read.
  std::set<std::string> image_sets() const;
  static Features image_features(const models::Model& made);

  mutable std::shared_ptr<const models::Model> made_;
  mutable MadeFrom made_from_;
};

}  // namespace train
