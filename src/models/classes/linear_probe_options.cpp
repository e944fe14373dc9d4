// SPDX-License-Identifier: Apache-2.0
#include "models/classes/linear_probe_options.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace models {

void ProbeOptions::bind(config::Table& t) {
  const auto never = config::OnResume::never;
  t.key("tap", tap, "the values of the trunk that the head reads; an unknown name lists all")
      .required()
      .on_resume(never);
  t.key("name", name, "in measures, as NAME_top1; default: the name of the tap").on_resume(never);
  t.key("pool", pool,
        "height and width of the windows whose means the head reads; 0 = the values as they are")
      .min(0)
      .max(16384)
      .unit("pixels")
      .on_resume(never);
  t.key("pool_stride", pool_stride, "distance of windows")
      .min(1)
      .max(16384)
      .unit("pixels")
      .on_resume(never);
  t.key("pool_padding", pool_padding,
        "zeros around the values; they count in the means, as in the published protocol")
      .min(0)
      .max(8192)
      .unit("pixels")
      .on_resume(never);
  t.table("head", head, "what turns these values into a score for each class");
  if (pool == 0 && (pool_stride != 1 || pool_padding != 0))
    t.error("pool",
            "missing, but pool_stride or pool_padding is set; give the size of the windows");
  if (2 * pool_padding > pool)
    t.error("pool_padding", fmt::format("{} is more than half of pool = {}, so a window could hold "
                                        "zeros alone",
                                        pool_padding, pool));
}

void LinearProbeOptions::bind(config::Table& t) {
  const auto never = config::OnResume::never;
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
  t.table("trunk", trunk, "the part whose values are probed; nothing trains it");
  t.list("probe", probes, "a classifier on the values of one tap; their losses are added");
  if (probes.empty()) t.error("probe", "missing; add a [[model.probe]] table with a tap");
  std::vector<std::string> names;
  for (const ProbeOptions& probe : probes) {
    if (std::count(names.begin(), names.end(), probe.label()) > 0)
      t.error("probe", fmt::format("two probes are named \"{}\"; rename one", probe.label()));
    names.push_back(probe.label());
  }
  if (!trunk.options) return;
  if (const std::string problem = trunk.keys().image_problem(image_size, image_size);
      !problem.empty())
    t.error("image_size", problem);
}

}  // namespace models
