// SPDX-License-Identifier: Apache-2.0
// A job, built by stages: session, threads, device, mesh, data, model and engine. Each mode runs
// the stages that it needs, so all modes refuse, open and build alike.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "host/device_choice.hpp"
#include "step/engine.hpp"
#include "train/class_lists.hpp"
#include "train/input.hpp"
#include "train/recipe.hpp"

namespace train {

// It has many members because each stage leaves its result here.
class Job {
 public:
  // How data sets are opened, and for which work.
  struct Access {
    bool writes_indexes = true;  // false: no file is written, and one thread reads
    // true: opening accepts broken samples, whatever loader.on_bad_sample says
    bool spares_samples = false;
    // false: the job only runs forward passes. It reads no training data, and any number of ranks
    // fits.
    bool trains = true;
    ForwardWork work = {};  // for a job that does not train
    // Keys or tables that may differ from those of the weights' training (--allow-change).
    std::vector<std::string> allow_change = {};
  };

  // `session` is null in a process without MPI. Otherwise all ranks call each stage.
  Job(const Recipe& recipe, config::Deck& deck, comm::Session* session, std::string mesh_selector,
      Access access);

  // Starts the compute threads, chooses the device and connects the mesh. Refuses a batch that the
  // mesh cannot divide.
  void connect();
  // Chooses device and mesh of a planned job with this many ranks.
  void connect_on_paper(int ranks);
  // Copies to loader.stage_dir the files of the data sets in use that can be staged. `poll`: see
  // comm::beside.
  void stage_data(const comm::Poll& poll = [] {});
  // Opens the training data, if the job trains, and the data sets of evaluators. With a session all
  // ranks agree on them, and the deck is checked against them.
  void open_data(
      const std::set<std::string>& evaluated = {}, const comm::Poll& poll = [] {});
  // Closes the data sets of evaluators, once they are checked, except those to keep. They cost
  // memory, and a run may need them much later.
  void close_evaluated(const std::set<std::string>& keep);
  // Opens these data sets, except those already open. All ranks call. Error(Exit::data) if the
  // samples are no longer those that were checked. `poll`: see comm::beside.
  void open_evaluated(
      const std::set<std::string>& names, const comm::Poll& poll = [] {});
  // Opens one data set for the caller.
  std::unique_ptr<data::Dataset> open_set(const std::string& name) const;
  // Builds model and stores, and the optimizer if the job trains. Refuses a job that the address
  // space cannot hold. `choices` is the file of run.gemm_search; "" = none. A job that does not
  // train only reads it.
  void build_engine(const std::string& choices = "");

  const Recipe& recipe() const { return recipe_; }
  const config::Deck& deck() const { return deck_; }
  comm::Session& session() const { return *session_; }
  int threads() const { return threads_; }
  const host::DeviceChoice& device() const { return device_; }
  comm::Mesh& mesh() { return mesh_; }
  const comm::Mesh& mesh() const { return mesh_; }
  const data::Tokenizers& tokenizers() const { return tokenizers_; }
  const data::Mixture& data() const { return *data_; }
  const data::Dataset& evaluated(const std::string& name) const { return *evaluated_.at(name); }
  int64_t evaluated_size(const std::string& name) const;  // of a closed set, too
  // Number of training examples; 0 if the data are not open.
  int64_t data_size() const { return data_ ? data_->size() : 0; }
  DataLength data_length() const {
    return data_ ? DataLength(data_->size(), data_->end()) : DataLength(0);
  }
  step::Engine& engine() const { return *engine_; }
  // Return what checkpoints keep, once the data are open. classes(): the names of the model's
  // classes, one per line, or "" (class_lists.hpp). tokenizer_text(): each opened tokenizer that
  // has a file, with the file's hash.
  std::string classes() const;
  std::string tokenizer_text() const;
  // Checks, once the engine is built, that the open sets have the classes of the training that
  // wrote `file`, and that the tokenizers have the same files. "" means not known.
  // Error(Exit::config) if not. All ranks call.
  void check_lists(const std::string& classes, const std::string& tokenizers,
                   const std::string& file) const;

 private:
  // Samples of a data set that is closed.
  struct Checked {
    int64_t size;
    uint64_t fingerprint;
  };
  void choose_instructions(kernels::Instructions widest) const;
  data::OpenContext context(const std::string& evaluated_set = "") const;
  std::unique_ptr<data::Dataset> open_set(const std::string& name,
                                          const std::stop_token& token) const;
  void agree_and_check() const;
  ClassSets class_sets() const;  // those that were opened
  void need_memory(const step::EngineOptions& options) const;
  void count_samples() const;

  const Recipe& recipe_;
  config::Deck& deck_;
  comm::Session* session_;
  std::string mesh_selector_;
  Access access_;
  int threads_ = 1;
  host::DeviceChoice device_;
  std::unique_ptr<comm::Comm> paper_;  // ranks of a planned job
  comm::Mesh mesh_;
  std::string stage_dir_;
  std::map<std::string, std::vector<std::string>> shares_;  // OpenContext::shares, while sets open
  data::Tokenizers tokenizers_;
  std::unique_ptr<data::Mixture> data_;
  std::map<std::string, std::unique_ptr<data::Dataset>> evaluated_;
  std::map<std::string, Checked> closed_;
  std::unique_ptr<step::Engine> engine_;
};

}  // namespace train
