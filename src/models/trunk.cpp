// SPDX-License-Identifier: Apache-2.0
#include "models/trunk.hpp"

#include "models/classifier_options.hpp"

namespace models {

void TrunkOptions::bind(config::Table& t) {
  t.kind(
      "kind", kind, options, {"vit"},
      [](const std::string&) -> std::shared_ptr<config::Table::Variant> {
        return std::make_shared<VitTrunkOptions>();
      },
      "which trunk");
}

}  // namespace models
