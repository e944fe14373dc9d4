// SPDX-License-Identifier: Apache-2.0
#include "models/classes/class_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/rank_hits.hpp"

namespace models {

void ClassOptions::bind_sizes(config::Table& t) {
  const auto never = config::OnResume::never;
  bind_image_size(t, image_size);
  t.key("num_classes", num_classes, "classes; labels are 0 to num_classes - 1")
      .required()
      .min(1)
      .max(1 << 24)
      .on_resume(never);
}

void ClassOptions::bind_trunk(config::Table& t, const std::string& doc) {
  t.table("trunk", trunk, doc);
  if (!trunk.options) return;
  if (const std::string problem = trunk.keys().image_problem(image_size, image_size);
      !problem.empty())
    t.error("image_size", problem);
}

void ClassifierOptions::bind(config::Table& t) {
  bind_sizes(t);
  bind_loss(t, num_classes);
  t.key("init_head_bias", init_head_bias,
        "initial bias of the logits; the published sigmoid runs use -10");
  t.table("mixup", mixup, "blends of two images and their labels");
  bind_trunk(t, "the part that turns an image into one vector");
}

void LinearProbeOptions::bind(config::Table& t) {
  bind_sizes(t);
  t.key("top", top, "an example counts for topK if its class is among the K most likely ones")
      .min(1)
      .check([this]() -> std::string {
        if (top.empty() || top.size() > size_t(kernels::RankHits::kMost))
          return fmt::format("lists {} numbers; give 1 to {}", top.size(),
                             kernels::RankHits::kMost);
        for (int64_t k : top)
          if (std::count(top.begin(), top.end(), k) > 1)
            return fmt::format("{} is listed twice", k);
        return "";
      });
  bind_trunk(t, "the part whose values are probed; nothing trains it");
  t.list("probe", probes, "a classifier on the values of one tap; their losses are added");
  if (probes.empty()) t.error("probe", "missing; add a [[model.probe]] table with a tap");
  std::vector<std::string> names;
  for (const ProbeOptions& probe : probes) {
    if (std::count(names.begin(), names.end(), probe.label()) > 0)
      t.error("probe", fmt::format("two probes are named \"{}\"; rename one", probe.label()));
    names.push_back(probe.label());
  }
}

}  // namespace models
