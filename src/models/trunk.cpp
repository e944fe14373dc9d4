// SPDX-License-Identifier: Apache-2.0
#include "models/trunk.hpp"

#include "models/part_lists.hpp"
#include "models/resnet.hpp"
#include "models/vit_trunk.hpp"

namespace models {
namespace {

struct Kind {
  const char *name, *doc;
  std::shared_ptr<config::Table::Variant> (*make_keys)();
};
template <class Keys>
Kind kind_of(const char* name, const char* doc) {
  return {name, doc,
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<Keys>()); }};
}

const Kind kKinds[] = {kind_of<VitTrunkOptions>("vit", "a transformer over patches of the image"),
                       kind_of<ResnetTrunkOptions>("resnet", "a residual network of convolutions")};

}  // namespace

std::vector<NamedPart> trunk_parts() {
  std::vector<NamedPart> out;
  for (const Kind& k : kKinds) out.push_back({k.name, k.doc});
  return out;
}

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
