// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/init_options.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/pattern.hpp"
#include "checkpoint/vit_families.hpp"

namespace checkpoint {

void InitOptions::bind(config::Table& t) {
  t.key("from", from,
        "parameters of a new run, at step 0 only: \"\" = random; a checkpoint .h5; a run "
        "directory; .npz, .safetensors or a file of torch.save (.pth, .pt, .bin, .ckpt, .torch) "
        "with "
        "big_vision's names; .index.json for several such files; a folder with model.safetensors "
        "or the like, as libraries write it; a checkpoint folder of big_vision. For ResNets also "
        "the names of torchvision, VISSL, MoCo, SwAV or DINO, below "
        "any prefix; for ConvNeXts also those of torchvision")
      .unit("path");
  t.key("dont_load", dont_load,
        "regular expressions that must match a whole parameter path: these keep their random "
        "values, and may be missing from the file or left over in it; everything else must match; "
        "default for ResNets and ConvNeXts of PyTorch programs: all but the trunk, [] loads the "
        "head too")
      .check([this]() -> std::string {
        for (const std::string& pattern : dont_load)
          if (std::string problem = base::pattern_problem(pattern); !problem.empty())
            return fmt::format("\"{:.80}\": {}", pattern, problem);
        return "";
      });
  std::vector<std::string> families = {kAnyFamily, kOwnNames};
  for (const VitFamily& one : vit_families())
    if (std::ranges::find(families, one.key) == families.end()) families.emplace_back(one.key);
  t.key("family", family,
        fmt::format("whose names the tensors of a ViT have: {}. auto: recognised; own: this "
                    "program's or big_vision's",
                    fmt::join(families, ", ")))
      .check([this, families]() -> std::string {
        if (std::ranges::find(families, family) != families.end()) return "";
        return fmt::format("is \"{:.80}\"; it may be {}", family, fmt::join(families, ", "));
      });
  t.key("map", map,
        "{ \"encoder\" = \"params/img\" }: our prefix = the prefix in the file; the longest match "
        "wins; parameters without a match stay random; a prefix ends at a slash or a dot. Empty: "
        "the names are equal, below params/, "
        "state_dict, model_state_dict or model if the file has that");
  t.choice("posemb", resample, {{"interpolate", true}, {"keep", false}},
           "position table of another image size. interpolate: resampled linearly, corners "
           "aligned, as published; keep: the new one stays random");
  t.choice("weights", average, {{"raw", false}, {"ema", true}},
           "which weights of a checkpoint to load. raw: the weights as trained; ema: their average "
           "(frozen tensors have none and are loaded as they are)");
}

}  // namespace checkpoint
