// SPDX-License-Identifier: Apache-2.0
#include "models/classifier_options.hpp"

#include <fmt/format.h>

namespace models {

void MixupOptions::bind(config::Table& t) {
  t.key("p", p,
        "an image and its partner have shares drawn from Beta(p, p), the image the larger one; "
        "drawn for each example from (run.seed, step, position); 0 = off")
      .min(0)
      .max(1000);
  t.key("group", group,
        "consecutive examples of the global batch that form a group; the partner of each is the "
        "one before it in the group; must divide the examples of a rank's pass")
      .min(2)
      .max(1 << 20)
      .unit("examples");
}

void ClassifierOptions::bind(config::Table& t) {
  auto never = config::OnResume::never;
  t.key("image_size", image_size,
        "height and width of the images, checked against what `preprocess` yields")
      .min(1)
      .max(16384)
      .unit("pixels")
      .on_resume(never);
  t.key("num_classes", num_classes, "classes; labels are 0 to num_classes - 1")
      .required()
      .min(1)
      .max(1 << 24)
      .on_resume(never);
  t.choice("loss", loss, kClassLossNames,
           "softmax: cross-entropy of one distribution over the classes; sigmoid: sum over the "
           "classes of binary cross-entropies");
  t.key("label_smoothing", label_smoothing, "share of the target given to all other classes")
      .min(0)
      .max(0.99);
  t.key("init_head_bias", init_head_bias,
        "initial bias of the logits; the published sigmoid runs use -10");
  t.table("mixup", mixup, "blends of two images and their labels");
  t.table("trunk", trunk, "the part that turns an image into one vector");
  if (num_classes == 1 && (loss == kernels::ClassLoss::softmax || label_smoothing > 0))
    t.error("num_classes",
            loss == kernels::ClassLoss::softmax
                ? "a softmax over 1 class has nothing to learn: use loss = \"sigmoid\""
                : "label_smoothing needs a second class");
  if (!trunk.options) return;
  if (const std::string problem = trunk.image_problem(image_size, image_size); !problem.empty())
    t.error("image_size", problem);
}

}  // namespace models
