// SPDX-License-Identifier: Apache-2.0
// Linear probes (ssl.md 8): classifiers on the values of a trunk at several taps. The trunk is
// frozen, and its batch norms use running statistics in training, too. Each probe has a pool, a
// head and measures of its own. The loss is the sum of the probes' losses.
//
// Parameters: the trunk's own, and "head/...", "head1/...", ... in the order of the probes.
#pragma once

#include "kernels/window.hpp"
#include "models/classes/class_ranker.hpp"
#include "models/classes/linear_probe_options.hpp"
#include "models/embedder.hpp"
#include "models/trunks/pooled_trunk.hpp"

namespace models {

class LinearProbeModel : public Model, public Embedder, public ClassRanker {
 public:
  // Error(Exit::config) for a tap that does not exist, a pool that does not fit, or a head that
  // does not return one score per class.
  LinearProbeModel(const LinearProbeOptions& options, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  TrunkWeights trunk_weights() const override { return encoder_.trunk().weights(); }
  std::map<std::string, FeatureSpec> features() const override;
  double uniform_loss() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override { return 1 + int64_t(probes_.size()) * columns_of_probe(); }
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::vector<Tap> taps() const override;
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  std::string feature_tap() const override { return encoder_.feature_tap(); }
  std::vector<std::string> head_names() const override;
  std::unique_ptr<ClassPass> make_class_pass(const ClassRequest& request) const override;
  int64_t num_classes() const override { return options_.num_classes; }
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;
  int64_t train_flops() const override;

  // ---- parts of passes
  struct State {
    PooledTrunk::Pass encoder;
    std::vector<size_t> probes;                      // probes that run
    std::vector<std::unique_ptr<Head::Pass>> heads;  // passes of their heads
  };
  // Makes a state of the named probes, in the order of the names; no names: of all probes.
  State make_state(const std::vector<std::string>& names = {}) const;
  std::vector<InputSpec> inputs() const;
  // Fills the input buffers. Throws Error(Exit::data) for a label that is not a class.
  void prepare(const HostBatch& batch, const Inputs& into) const;
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums,
                        State& state) const;

 private:
  struct Probe {
    std::string name;
    std::string tap;
    int64_t pool = 0, pool_stride = 1, pool_padding = 0;
    int64_t in = 0;  // values that the head reads
    std::unique_ptr<Head> head;
  };
  Probe make_probe(const ProbeOptions& options, const std::vector<Tap>& taps);
  static kernels::Window probe_window(const Probe& probe, int64_t images, int64_t height,
                                      int64_t width);
  static nn::Context frozen(const nn::Context& ctx);
  // Runs the probes of `state` (ClassScorer).
  void score(nn::Context& ctx, View image, View kept, State& state,
             const ClassScorer::Use& use) const;
  int64_t columns_of_probe() const { return 1 + int64_t(options_.top.size()); }
  ImageGroup images(View of = {}) const;
  // Runs the trunk, and returns what each head reads, f32 [batch, in], as temporaries.
  std::vector<View> read_taps(nn::Context& ctx, View image, State& state) const;
  void read_tap(nn::Context& ctx, const Trunk::TapValues& values, const State& state,
                const std::vector<View>& into) const;
  // hits: f32 [counts of `top`, batch]
  void count_hits(nn::Context& ctx, View ranks, View hits) const;
  // Places the trunk's tables.
  void place(nn::Context& ctx, State& state) const;

  LinearProbeOptions options_;
  ParameterList list_;
  PooledTrunk encoder_;
  std::vector<Probe> probes_;
  bool bytes_ = false;  // images come as bytes
};

}  // namespace models
