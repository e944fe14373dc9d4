// SPDX-License-Identifier: Apache-2.0
// Evaluators: each has a file in a family's folder and a row in registry.cpp. An evaluator gets the
// data set, the ranks and a function that runs the model forward, and returns named numbers. It
// never changes the run. The loop decides when an evaluator is due and what follows from its
// numbers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/registry.hpp"
#include "comm/mesh.hpp"
#include "config/table.hpp"
#include "data/dataset.hpp"
#include "data/options.hpp"
#include "data/stream/loader.hpp"
#include "eval/journal.hpp"
#include "eval/predictor.hpp"
#include "models/model.hpp"

namespace eval {

// Data sets by the key of [eval.NAME] that names them.
using DataSets = std::map<std::string, const data::Dataset*>;

// The category of features in the ledger. Features are in host memory, even in a job on GPUs.
inline constexpr const char* kFeatureCategory = "features";

struct Context {
  comm::Comm& world;
  const data::Dataset& dataset;
  data::LoaderOptions loader;
  int64_t batch = 1;  // examples of one forward pass on this rank
  // The pass that the evaluator's row made from the model, and the function that runs it on a
  // batch.
  models::ForwardPass* pass = nullptr;
  // Returns the pass as the type that the row makes.
  template <class Pass>
  Pass& pass_as() const {
    return dynamic_cast<Pass&>(*pass);
  }
  std::function<void(
      const models::HostBatch& batch,
      const std::function<void(nn::Context& ctx, const models::Inputs& inputs)>& run)>
      forward;
  // Returns true if the run must stop. All ranks call it between two batches. The evaluator then
  // returns at once, with Result::interrupted.
  std::function<bool()> interrupted = [] { return false; };
  DataSets further{};  // sets beside `dataset` (Registered::further_sets)
  // The folder for files of this evaluation, which the evaluator makes; "" if none are wanted, as
  // on all ranks but one.
  std::string folder{};
  // Keeps results of examples between attempts; null: nothing is kept. Each loop over examples is a
  // stage.
  Journal* journal = nullptr;
  int threads = 1;                   // for arithmetic outside the model
  device::Ledger* ledger = nullptr;  // counts features; other evaluators need none
};

struct Result {
  std::vector<std::pair<std::string, double>> values;
  int64_t examples = 0;
  std::string counted = "examples";  // word for the examples in the log
  bool interrupted = false;          // true: there are no values
};

// The memory that an evaluation needs for the features of all images. Plans print it.
struct FeatureNeeds {
  int64_t rows = 0, features = 0;  // of all tables
  int64_t node_bytes = 0;          // which the ranks of a node share
  int64_t rank_bytes = 0;          // of each rank, besides
  int64_t images = 0;              // that the model embeds, over all ranks
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // Checks, before the run begins, that the evaluator can work on a set. Called for each set that
  // the evaluator reads. Error(Exit::data) with a remedy if not.
  virtual void check(const data::Dataset&) const {}
  // Returns a hash of what the evaluator reads besides its keys and its sets, such as a file that a
  // key names.
  virtual uint64_t fingerprint(const data::Dataset&) const { return 0; }
  virtual Result run(const Context& context) = 0;
  // Returns what the evaluator keeps with sets of these sizes, by the keys that name the sets; rows
  // = 0 if it keeps nothing. What is fitted to features comes on top.
  virtual FeatureNeeds needs(const models::ForwardPass& /*pass*/,
                             const std::map<std::string, int64_t>& /*images*/) const {
    return {};
  }
};

// The weights that an evaluation runs on: as trained, their average ([ema]), or both, one after the
// other.
enum class Weights { raw, ema, both };
inline constexpr std::pair<const char*, Weights> kWeightsNames[] = {
    {"raw", Weights::raw}, {"ema", Weights::ema}, {"both", Weights::both}};

// The type of an evaluation's products: the run's type, or a type of its own.
enum class Compute { run, f32, bf16 };
inline constexpr std::pair<const char*, Compute> kComputeNames[] = {
    {"run", Compute::run}, {"f32", Compute::f32}, {"bf16", Compute::bf16}};

// [eval.NAME]
struct EvalOptions {
  std::string kind;
  std::shared_ptr<config::Table::Variant> options;  // options of this kind
  std::string data;
  config::Duration every;
  bool at_start = false, at_end = true;
  std::string when;                // rule about a measure of training; "" = none
  Weights weights = Weights::raw;  // both: see evaluations()
  Compute compute = Compute::run;
  // Returns the type of the products' operands; nothing: the run's type.
  std::optional<device::DType> operands() const {
    if (compute == Compute::run) return std::nullopt;
    return compute == Compute::f32 ? device::DType::f32 : device::DType::bf16;
  }
  void bind(config::Table& t);
};
// Returns the evaluations that the [eval.NAME] tables ask for, by the name of their rows: NAME on
// the trained weights, NAME_ema on their average. `weights` of each result is "raw" or "ema".
std::map<std::string, EvalOptions> evaluations(const std::map<std::string, EvalOptions>& tables);

using Features = std::map<std::string, models::FeatureSpec>;

// A number that an evaluator returns, with its description for files and messages.
struct Metric {
  std::string name, unit, doc;
};

// Texts for the classes that an evaluator ranks, in the order of their numbers.
struct ClassTexts {
  std::string key;  // of [eval.NAME]: "classes"
  std::vector<std::string> texts;
};

struct Registered {
  std::string name, doc;
  // Returns the metrics of a result, in the result's order. They may depend on the evaluator's
  // keys.
  std::vector<Metric> (*metrics)(const config::Table::Variant& options);
  std::string needs;  // capability of the model, for messages: "rank classes"
  // Makes the pass that the evaluator runs; null if the model lacks the capability. Call the
  // function make_pass below instead, because either this or make_sized_pass is null.
  std::unique_ptr<models::ForwardPass> (*make_pass)(const models::Model& model);
  std::shared_ptr<config::Table::Variant> (*make_options)();
  std::unique_ptr<Evaluator> (*make)(const config::Table::Variant& options);
  // For passes whose sizes depend on the evaluator's keys.
  std::unique_ptr<models::ForwardPass> (*make_sized_pass)(
      const models::Model& model, const config::Table::Variant& options) = nullptr;
  // Optional: returns the names of the data sets that the evaluator reads besides `data`, by their
  // keys.
  std::map<std::string, std::string> (*further_sets)(const config::Table::Variant& options) =
      nullptr;
  // Optional: returns the fields that a data set must have, for the key that names it. Without this
  // function, or without a result, a set must have the model's fields.
  std::optional<Features> (*features)(const models::Model& model,
                                      const config::Table::Variant& options,
                                      const std::string& key) = nullptr;
  // Optional: makes predictions of single examples from the evaluator's keys.
  const Predicts* predicts = nullptr;
  // Optional: returns the texts that stand for the classes of `data`.
  ClassTexts (*class_texts)(const config::Table::Variant& options) = nullptr;
};
const base::Registry<Registered>& registry();
const Registered& row_of(const EvalOptions& options);
std::vector<Metric> metrics_of(const EvalOptions& options);
// Makes the pass of the evaluator; null if the model lacks the capability. Error(Exit::config) if
// the model lacks a part that the options name.
std::unique_ptr<models::ForwardPass> make_pass(const EvalOptions& options,
                                               const models::Model& model);
std::unique_ptr<Evaluator> make_evaluator(const EvalOptions& options);
// Returns the names of all data sets that the evaluator reads, by their keys; "data" is one.
std::map<std::string, std::string> data_sets_of(const EvalOptions& options);
// Returns the fields that one of these data sets must have; nothing if they are the model's fields.
std::optional<Features> features_of(const EvalOptions& options, const std::string& key,
                                    const models::Model& model);

// Returns the fields of a set of images with classes: the model's image, and the i32 `label`.
// Messages name `key` as the reader.
Features labelled_images(const models::Model& model, const std::string& key);

// Gives every example of a set to one rank, in batches of equal size. Examples that the journal has
// are left out. All ranks run the same number of rounds, because weights may have to be gathered.
// Positions from examples() on are padding.
class Rounds {
 public:
  // Begins a stage of the context's journal; `take` gets the examples that the journal has.
  // `passes` over the set have passes * set.size() positions; random ops draw anew in each pass.
  Rounds(const Context& context, const data::Dataset& set, const std::string& stage,
         const Journal::Take& take, int64_t passes = 1);
  // Begins a stage over the context's set, with the same count of numbers for each example. values:
  // [numbers, examples].
  Rounds(const Context& context, const std::string& stage, std::vector<double>& values);
  int64_t count() const { return count_; }
  int64_t examples() const { return examples_; }  // of all passes
  // Returns the position of the first example of this rank's batch.
  int64_t first(int64_t round) const { return begin_ + (round * ranks_ + rank_) * batch_; }
  // Loads the batches of this rank. `place` returns the sample at a position.
  std::unique_ptr<data::Loader> loader(const Context& context,
                                       const std::function<int64_t(int64_t position)>& place) const;
  // Copies the numbers of a batch to the positions of its examples, without padding, and gives them
  // to the journal. values: [numbers, examples].
  void store(const Context& context, int64_t round,
             const std::vector<const std::vector<double>*>& of_batch,
             std::vector<double>& values) const;

 private:
  const data::Dataset& set_;
  int64_t examples_, batch_, ranks_, rank_, begin_, count_;
};

// Adds up the ranks' values for positions [0, n). Each rank fills its own positions and leaves
// zeros elsewhere. Every rank can then sum over the positions in order, so results do not depend on
// the number of ranks. T: float or double.
template <class T>
void share_values(comm::Comm& world, std::vector<T>& values);

}  // namespace eval
