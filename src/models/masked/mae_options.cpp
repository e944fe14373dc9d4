// SPDX-License-Identifier: Apache-2.0
#include "models/masked/mae_options.hpp"

#include <fmt/format.h>

namespace models {
namespace {

// Returns the problem of a trunk that cannot leave out patches, or "".
std::string trunk_problem(const VitTrunkOptions& vit) {
  if (vit.pool != Pool::tok)
    return fmt::format(
        "mae encodes a class token beside the patches that it keeps, and pool = \"{}\" has none; "
        "set pool = \"tok\"",
        base::name_of(kPoolNames, vit.pool));
  if (vit.positions == Positions::rotary)
    return "mae leaves out patches, and posemb = \"rope\" needs all of them; take \"sincos2d_mae\"";
  if (vit.registers > 0) return "mae has no registers; leave them out";
  if (vit.size.dropout > 0) return "mae has no dropout; leave it out";
  return "";
}

void check_masks(config::Table& t, const MaeOptions& o) {
  const auto* vit = dynamic_cast<const VitTrunkOptions*>(o.trunk.options.get());
  if (!vit)
    return t.error("trunk", fmt::format("mae masks patches, and kind = \"{}\" has none; take a ViT",
                                        o.trunk.kind));
  if (const std::string problem = trunk_problem(*vit); !problem.empty()) t.error("trunk", problem);
  if (const std::string problem = vit->image_problem(o.height(), o.width()); !problem.empty())
    return t.error("image_size", problem);
  if (vit->size.patch < 1) return;  // reported
  if (o.kept() < 1 || o.masked() < 1)
    t.error("mask_ratio",
            fmt::format("{:g} keeps {} of the {} patches of an image; the encoder and the loss "
                        "need at least one each",
                        o.mask_ratio, o.kept(), o.patches()));
}

}  // namespace

void MaeDecoderOptions::bind(config::Table& t) {
  const auto never = config::OnResume::never;
  t.key("depth", depth, "transformer blocks").min(1).max(1000).on_resume(never);
  t.key("width", width, "embedding width").min(4).max(65536).on_resume(never);
  t.key("mlp", mlp, "hidden width of the MLPs; 0 = four times the width")
      .min(0)
      .max(1 << 20)
      .on_resume(never);
  t.key("heads", heads, "attention heads; must divide width").min(1).max(1024).on_resume(never);
  if (heads > 0 && width % heads)
    t.error(t.has("width") && !t.has("heads") ? "width" : "heads",
            fmt::format("width = {} is not divisible by heads = {}", width, heads));
  if (width % 4)
    t.error("width",
            fmt::format("its fixed positions need a width divisible by 4; width is {}", width));
}

void MaeOptions::bind(config::Table& t) {
  bind_image_size(t, image_size);
  t.key("mask_ratio", mask_ratio,
        "share of an image's patches that the encoder does not read and the decoder predicts; they "
        "are drawn anew for each example of each step")
      .min(0)
      .max(1);
  t.key("normalize_pixels", normalize_pixels,
        "the decoder predicts the pixels of a patch minus their mean, divided by their deviation");
  t.table("trunk", trunk, "the encoder: a ViT with pool = \"tok\"");
  t.table("decoder", decoder, "a smaller ViT that predicts the pixels of masked patches");
  if (trunk.options) check_masks(t, *this);
}

}  // namespace models
