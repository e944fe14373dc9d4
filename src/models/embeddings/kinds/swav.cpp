// SPDX-License-Identifier: Apache-2.0
// SwAV (ssl.md 3.5): views of an image predict each other's assignment to prototypes. Assignments
// use each prototype equally often over the batch. With a teacher, the teacher's scores are
// assigned (SwAV momentum).
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

// [model.teacher]
struct SwavTeacherOptions {
  double momentum = 0.99;
  int64_t batch_statistics_steps = 0;
  void bind(config::Table& t) {
    t.key("momentum", momentum, "share of itself that the teacher keeps in each step")
        .min(0)
        .max(1);
    t.key("batch_statistics_steps", batch_statistics_steps,
          "in the first steps its batch norms use the statistics of the batch, then the network's "
          "running ones from before the step; the published code adds those of the step's batch")
        .min(0)
        .unit("steps");
  }
};

struct SwavOptions : EmbeddingOptions {
  SwavLossOptions loss;
  std::optional<SwavTeacherOptions> teacher;
  SwavOptions() { views = {.groups = {2, 6}, .image_size = {224, 96}}; }
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of embeddings and scores");
    t.optional_table("teacher", teacher,
                     "with this table the scores that are assigned come from a teacher that "
                     "follows the network");
    if (rows_of_example() < 2) t.error("views", "one view has no other view to predict; give two");
    check_views(t, "loss.assign_views", loss.assign_views,
                teacher ? views.groups.front() : rows_of_example());
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList& list) const {
    if (network.head().prototypes().empty())
      refuse_last_head("has no prototypes to assign views to; end with a head of kind swav");
    EmbeddingParts parts{
        .loss = make_swav_loss(loss, teacher.has_value(), network.head(), list),
        .loss_doc = "cross-entropy of a view's scores with the assignments of other views",
        .student_views = {},
        .teacher = {}};
    if (teacher)
      parts.teacher =
          TeacherPlan{.keep = [keep = teacher->momentum](int64_t, int64_t) { return keep; },
                      .views = loss.assign_views,
                      .own_states = false,
                      .running_from_step = teacher->batch_statistics_steps + 1};
    return parts;
  }
};

}  // namespace

Registered swav_row() {
  return embedding_row<SwavOptions>(
      "swav", "views of an image predict each other's assignment to prototypes");
}

}  // namespace models
