// SPDX-License-Identifier: Apache-2.0
// DINO (ssl.md 3.6): all views predict what a slowly moving teacher makes of the large views.
#include <cmath>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "models/embeddings/embedding_kind.hpp"

namespace models {
namespace {

struct DinoOptions : EmbeddingOptions {
  DinoLossOptions loss;
  double momentum = 0.996;
  DinoOptions() { views = {.groups = {2, 8}, .image_size = {224, 96}}; }
  void bind(config::Table& t) override {
    EmbeddingOptions::bind(t);
    t.table("loss", loss, "the loss of the scores");
    t.key("momentum", momentum,
          "share of itself that the teacher keeps in the first step; it rises to 1 along a cosine "
          "over the run")
        .min(0)
        .max(1);
    if (views.count() < 2) t.error("views", "one view has no other view to predict; give two");
    check_views(t, "loss.teacher_views", loss.teacher_views, views.groups.front());
  }
  EmbeddingParts parts(const EmbeddingNetwork& network, ParameterList& list) const {
    need_one_output(*this, network);
    return {.loss = make_dino_loss(loss, network.widths().front(), list),
            .loss_doc = "cross-entropy of a view's scores with the teacher's for other views",
            .student_views = {},
            .teacher = TeacherPlan{
                .keep =
                    [from = momentum](int64_t step, int64_t total) {
                      const double share = total > 0 ? double(step - 1) / double(total) : 0;
                      return base::fused((from - 1) / 2, 1 + base::math::cos(M_PI * share), 1.0);
                    },
                .views = loss.teacher_views,
                .starts_from_first_pass = true}};
  }
};

}  // namespace

Registered dino_row() {
  return embedding_row<DinoOptions>(
      "dino", "views predict a momentum teacher's scores of the large views, without labels");
}

}  // namespace models
