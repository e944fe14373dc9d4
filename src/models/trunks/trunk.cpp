// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/trunk.hpp"

#include "models/part_lists.hpp"
#include "models/trunks/convolutional/convnext.hpp"
#include "models/trunks/convolutional/resnet.hpp"
#include "models/trunks/vit_options.hpp"

namespace models {
namespace {

struct Kind {
  const char *name, *doc;
  const char* taps;  // "a ResNet: conv1, ...", for help
  std::shared_ptr<config::Table::Variant> (*make_keys)();
};
template <class Keys>
Kind kind_of(const char* name, const char* doc, const char* taps) {
  return {name, doc, taps,
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<Keys>()); }};
}

const Kind kKinds[] = {
    kind_of<VitTrunkOptions>(
        "vit", "a transformer over patches of the image",
        "a ViT: pre_logits, this vector; encoded, all normalised tokens; blockNN, all tokens after "
        "block NN, counted from 00; blockNN_mean, their mean"),
    kind_of<ResnetTrunkOptions>("resnet", "a residual network of convolutions",
                                "a ResNet: conv1, res1 to res5, res5avg, flatten"),
    kind_of<ConvnextTrunkOptions>(
        "convnext", "convolutions of single channels, layer norms and MLPs, as in transformers",
        "a ConvNeXt: stem, stage1 to stage4, pre_logits")};

}  // namespace

void Trunk::size_tokens(std::span<const ImageGroup> groups, Pass& pass) const {
  pass.tokens.groups.clear();
  for (const ImageGroup& g : groups)
    pass.tokens.groups.push_back({g.per_example, grid(g.height, g.width), {}});
  pass.tokens.packed = pass.tokens.class_rows = {};
}

std::vector<NamedPart> trunk_parts() {
  std::vector<NamedPart> out;
  for (const Kind& k : kKinds) out.push_back({k.name, k.doc});
  return out;
}

void bind_image_size(config::Table& t, int64_t& size) {
  t.key("image_size", size,
        "height and width of the images, checked against what `preprocess` yields")
      .min(1)
      .max(16384)
      .unit("pixels")
      .on_resume(config::OnResume::never);
}

std::string taps_doc() {
  std::string text;
  for (const Kind& k : kKinds) text += fmt::format("{}Of {}", text.empty() ? "" : ". ", k.taps);
  return text;
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
