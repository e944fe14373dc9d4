// SPDX-License-Identifier: Apache-2.0
// The losses of embeddings (ssl.md 3) with their keys in [model.loss]. Each factory declares the
// states of its loss in a block "loss" of `list`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "models/heads/head.hpp"
#include "models/losses/embedding_loss.hpp"

namespace models {

// InfoNCE over all pairs of views (ssl.md 3.1). Output 0 of the head is the embedding. With two
// views it is SimCLR's loss, with more its multi-crop variant.
struct SimclrLossOptions {
  double temperature = 0.1;
  int64_t negative_group = 0;
  void bind(config::Table& t);
};
std::unique_ptr<EmbeddingLoss> make_simclr_loss(const SimclrLossOptions& options);

// Barlow Twins (ssl.md 3.2). Output 0 is the embedding; an example has two views.
struct BarlowLossOptions {
  double lambda = 0.0051, scale = 0.024, gradient_divisor = 1;
  void bind(config::Table& t);
};
std::unique_ptr<EmbeddingLoss> make_barlow_loss(const BarlowLossOptions& options);

// MoCo (ssl.md 3.4). Output 0 is the query, output 0 of the teacher the key: one view each. States:
// loss/queue [queue_size, width] (a key is a row), loss/queue_ptr.
struct MocoLossOptions {
  int64_t queue_size = 65536;
  double temperature = 0.2;
  void bind(config::Table& t);
};
std::unique_ptr<EmbeddingLoss> make_moco_loss(const MocoLossOptions& options, int64_t width,
                                              ParameterList& list);

// SwAV (ssl.md 3.5). Output 0 of the head is the embedding, output 1 + h the scores of prototypes
// h. from_teacher: the teacher's scores of the assigned views give the targets (SwAV momentum). The
// teacher sees the views assign_views, in their order. State: loss/local_emb_queue [assigned views,
// length, width]. Constants: loss/local_queue{h} [assigned views, length, prototypes], if the first
// scores of the queue are random.
struct SwavLossOptions {
  double temperature = 0.1, epsilon = 0.05;
  int64_t sinkhorn_iterations = 3, hard_assignment_steps = 0;
  std::vector<int64_t> assign_views = {0, 1};
  bool double_precision = false;
  int64_t queue_length = 0, queue_start_steps = 0;
  bool random_first_scores = true;
  void bind(config::Table& t);
};
std::unique_ptr<EmbeddingLoss> make_swav_loss(const SwavLossOptions& options, bool from_teacher,
                                              const Head& head, ParameterList& list);

// DINO (ssl.md 3.6). Output 0 of head and teacher are scores. State: loss/center [1, width].
struct DinoLossOptions {
  double student_temperature = 0.1, teacher_temperature_start = 0.04, teacher_temperature = 0.07;
  int64_t teacher_temperature_warmup_steps = 37500;
  std::vector<int64_t> teacher_views = {0, 1};
  double center_momentum = 0.9;
  void bind(config::Table& t);
  // Returns the teacher's temperature at a step, counted from 1.
  double teacher_temperature_at(int64_t step) const;
};
std::unique_ptr<EmbeddingLoss> make_dino_loss(const DinoLossOptions& options, int64_t width,
                                              ParameterList& list);

// Noise-contrastive estimation with a memory bank: NPID, NPID++, PIRL (ssl.md 3.7). Every output is
// an embedding of one view. States: loss/memory [samples, width], loss/norm_constant.
enum class BankLoss { nce, cross_entropy };
struct NceLossOptions {
  int64_t samples = 0, negatives = 16000;
  double temperature = 0.07, momentum = 0.5, norm_constant = -1;
  BankLoss loss = BankLoss::nce;
  std::vector<double> loss_weights = {1};
  int64_t update_output = -1;
  void bind(config::Table& t);
};
std::unique_ptr<EmbeddingLoss> make_nce_loss(const NceLossOptions& options, int64_t width,
                                             ParameterList& list);

// DeepCluster-v2 (ssl.md 3.8). Output 0 is the embedding. States: loss/memory{a} [samples, width]
// of each memory view, loss/centroids{h} [clusters, width]. The first epoch fills the memory.
struct DeepclusterLossOptions {
  int64_t samples = 0, kmeans_iterations = 10;
  std::vector<int64_t> clusters = {3000, 3000, 3000}, memory_views = {0, 1};
  double temperature = 0.1;
  void bind(config::Table& t);
};
std::unique_ptr<EmbeddingLoss> make_deepcluster_loss(const DeepclusterLossOptions& options,
                                                     int64_t width, ParameterList& list);
// Returns `count` different rows of the memory, which are the first centroids.
std::vector<int32_t> rows_of_centroids(const base::Stream& stream, int64_t count, int64_t samples);

// A weighted sum of losses: [[model.loss]] of kind "combined". Only losses without states and
// without a teacher can be terms.
struct LossTermOptions {
  std::string kind = "simclr", name;
  double weight = 1;
  std::shared_ptr<config::Table::Variant> options;
  void bind(config::Table& t);
  // Returns the name of the term's measure.
  const std::string& label() const { return name.empty() ? kind : name; }
  // Returns why this loss cannot have `views` views per example; "" if it can.
  std::string views_problem(int64_t views) const;
};
std::unique_ptr<EmbeddingLoss> make_combined_loss(const std::vector<LossTermOptions>& terms);

// Cross-entropy of output 0 with a label that preprocessing made. An example has one row.
std::unique_ptr<EmbeddingLoss> make_label_loss(const MadeLabel& label);

// The sigmoid loss of pairs (siglip.md 2). Outputs 0 and 1 are the embeddings of an example's image
// and text, of equal width. Parameters: t, the logarithm of the temperature, and b.
struct SigmoidLossOptions {
  double temperature_init = 10, bias_init = -10;
  void bind(config::Table& t);
};
std::unique_ptr<EmbeddingLoss> make_sigmoid_loss(const SigmoidLossOptions& options,
                                                 ParameterList& list);

}  // namespace models
