// SPDX-License-Identifier: Apache-2.0
// A model that learns from embeddings of several views of each image, without labels: a network, a
// loss over the whole global batch and perhaps a teacher. Each file of kinds/ is a row that chooses
// these parts.
#pragma once

#include "models/embedder.hpp"
#include "models/embeddings/embedding_network.hpp"
#include "models/losses/embedding_loss.hpp"

namespace models {

// How a teacher follows the network and what it sees.
struct TeacherPlan {
  // Returns the share of the teacher that the update at a step keeps.
  std::function<double(int64_t step, int64_t total_steps)> keep;
  std::vector<int64_t> views;  // of group 0 that it sees, in the order of its outputs
  // False: its batch norms read the running statistics of the network.
  bool own_states = true;
  // True: its running statistics begin as the network's after the network's first forward pass.
  bool starts_from_first_pass = false;
  // Its batch norms use statistics of the batch in the steps before this one, then running ones.
  int64_t running_from_step = INT64_MAX;
  // True: it sees the examples of the global batch in a random order. Its groups of batch norms
  // then hold other examples than the network's. Accumulation is refused.
  bool shuffles = false;
};

// The parts that a kind chooses.
struct EmbeddingParts {
  std::unique_ptr<EmbeddingLoss> loss;
  std::string loss_doc, loss_unit = "nats";
  std::vector<int64_t> student_views;  // of group 0 that the network sees; empty: all
  std::string made_by{};  // ops that make the views, for messages; "": ViewOptions::ops()
  std::optional<TeacherPlan> teacher;
};

class EmbeddingModel : public Model, public Embedder {
 public:
  // Makes the parts once trunk and heads are declared in `list`.
  using MakeParts =
      std::function<EmbeddingParts(const EmbeddingNetwork& network, ParameterList& list)>;
  EmbeddingModel(const EmbeddingOptions& options, const MemoryOptions& memory,
                 const MakeParts& make_parts);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  TrunkWeights trunk_weights() const override { return network_.trunk().weights(); }
  std::map<std::string, FeatureSpec> features() const override;
  FeatureSpec single_image() const override;
  void take_bytes(const kernels::PixelRange& range) override;
  int64_t sum_columns() const override { return 1 + int64_t(parts_.loss->terms().size()); }
  std::vector<Measure> measures() const override;
  std::unique_ptr<TrainPass> make_train_pass() const override;
  std::optional<TeacherSpec> teacher() const override;
  std::vector<Tap> taps() const override;
  std::string feature_tap() const override { return network_.encoder().feature_tap(); }
  std::unique_ptr<EmbedPass> make_embed_pass(const std::vector<std::string>& taps) const override;
  std::string changing_arguments() const override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override;
  int64_t train_flops() const override;

  // For tests: called in each step after the loss is formed.
  using Watch = std::function<void(nn::Context& ctx, const StepEmbeddings& step)>;
  void watch(Watch watch) { watch_ = std::move(watch); }
  void tell(nn::Context& ctx, const StepEmbeddings& step) const {
    if (watch_) watch_(ctx, step);
  }

  // ---- parts of passes
  const EmbeddingNetwork& network() const { return network_; }
  const EmbeddingLoss& loss() const { return *parts_.loss; }
  const TeacherPlan* teacher_plan() const { return parts_.teacher ? &*parts_.teacher : nullptr; }
  int64_t views() const;          // of an example that the network sees
  int64_t teacher_views() const;  // 0 without a teacher
  int64_t rows() const;           // of an example that the loss reads: views, perhaps joined
  int64_t outputs() const { return int64_t(network_.widths().size()); }
  std::vector<InputSpec> inputs() const;
  // Makes the inputs that are no fields. Negatives are drawn from `stream` by global position.
  void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const;
  // The groups of views that network and teacher see; without images if there are no inputs.
  std::vector<ImageGroup> groups(const Inputs* inputs) const;
  ImageGroup teacher_group(const Inputs* inputs) const;
  // The numbers of the states of trunk and heads.
  const std::vector<int>& network_states() const { return network_states_; }

 private:
  const std::vector<int64_t>& student_views() const { return parts_.student_views; }
  void check_joins() const;
  // False if the network sees some views of group 0 only.
  bool network_sees_all() const;
  // False if the teacher sees the network's own group 0.
  bool teacher_has_images() const;
  InputSpec images(size_t group, int64_t views) const;
  void copy_views(const HostBatch& batch, const std::vector<int64_t>& views,
                  const View& into) const;
  void prepare_places(const HostBatch& batch, base::Stream stream, const Inputs& into) const;
  void check_labels(const HostBatch& batch) const;

  EmbeddingOptions options_;
  ParameterList list_;
  EmbeddingNetwork network_;
  EmbeddingParts parts_;
  std::vector<int> network_states_;
  bool bytes_ = false;  // images come as bytes
  Watch watch_;
};

}  // namespace models
