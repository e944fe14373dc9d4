// SPDX-License-Identifier: Apache-2.0
#include "models/trunk.hpp"

#include "models/resnet.hpp"
#include "models/vit_trunk.hpp"

namespace models {
namespace {

struct Kind {
  const char* name;
  std::shared_ptr<config::Table::Variant> (*make_keys)();
};
template <class Keys>
Kind kind_of(const char* name) {
  return {name, [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<Keys>()); }};
}

const Kind kKinds[] = {kind_of<VitTrunkOptions>("vit"), kind_of<ResnetTrunkOptions>("resnet")};

}  // namespace

void TrunkOptions::bind(config::Table& t) {
  std::vector<std::string> names;
  for (const Kind& k : kKinds) names.emplace_back(k.name);
  t.kind(
      "kind", kind, options, names,
      [](const std::string& name) {
        return std::ranges::find_if(kKinds, [&](const Kind& k) { return name == k.name; })
            ->make_keys();
      },
      "which trunk");
}

}  // namespace models
