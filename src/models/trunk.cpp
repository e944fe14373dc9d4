// SPDX-License-Identifier: Apache-2.0
#include "models/trunk.hpp"

#include "models/resnet.hpp"
#include "models/vit_trunk.hpp"

namespace models {

void TrunkOptions::bind(config::Table& t) {
  t.kind(
      "kind", kind, options, {"vit", "resnet"},
      [](const std::string& name) -> std::shared_ptr<config::Table::Variant> {
        if (name == "resnet") return std::make_shared<ResnetTrunkOptions>();
        return std::make_shared<VitTrunkOptions>();
      },
      "which trunk");
}

std::string TrunkOptions::image_problem(int64_t height, int64_t width) const {
  const auto* vit = dynamic_cast<const VitTrunkOptions*>(options.get());
  if (!vit || vit->size.patch <= 0) return "";
  for (int64_t side : {height, width})
    if (side % vit->size.patch)
      return fmt::format("{} is not divisible by model.trunk.patch = {}", side, vit->size.patch);
  return "";
}

std::unique_ptr<Trunk> make_trunk(const TrunkOptions& options, int64_t height, int64_t width,
                                  Recompute recompute, ParameterList& list) {
  if (const auto* resnet = dynamic_cast<const ResnetTrunkOptions*>(options.options.get()))
    return std::make_unique<ResnetTrunk>(resnet->config, recompute, list);
  return std::make_unique<VitTrunk>(dynamic_cast<const VitTrunkOptions&>(*options.options), height,
                                    width, recompute, list);
}

}  // namespace models
