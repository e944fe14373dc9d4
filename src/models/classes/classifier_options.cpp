// SPDX-License-Identifier: Apache-2.0
#include "models/classes/classifier_options.hpp"

namespace models {

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
  bind_loss(t, num_classes);
  t.key("init_head_bias", init_head_bias,
        "initial bias of the logits; the published sigmoid runs use -10");
  t.table("mixup", mixup, "blends of two images and their labels");
  t.table("trunk", trunk, "the part that turns an image into one vector");
  if (!trunk.options) return;
  if (const std::string problem = trunk.keys().image_problem(image_size, image_size);
      !problem.empty())
    t.error("image_size", problem);
}

}  // namespace models
