// SPDX-License-Identifier: Apache-2.0
// ViTs of other programs, read as ours. To add a family of names: a row in foreign_vit.cpp.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "checkpoint/init_options.hpp"
#include "checkpoint/weight_file.hpp"
#include "models/trunk_weights.hpp"

namespace checkpoint {

// Returns a file whose tensors have the paths and shapes of our ViT if `file` holds a ViT of a
// known family below any prefix; otherwise returns `file`. Families: timm (also DINO, MAE, DeiT,
// MoCo v3, CLIP, SigLIP, Meta's DINOv2 and DINOv3), transformers' ViT and DINOv2, its DINOv3, its
// CLIP and SigLIP, torchvision's, open_clip's. Tensors of the trunk that ours lacks keep the file's
// name, below the trunk's root, so that a plan refuses them. Tensors beside the trunk keep their
// names. Throws Error(Exit::checkpoint) if the file or the model alone has DINOv3's rotary
// positions. map: init.map. If its only entry names the prefix of such a trunk, that trunk is taken
// and the entry is removed; with other entries `file` is returned. family: init.family. Warns if
// the family's GELU is not vit.gelu.
std::unique_ptr<WeightFile> translated_vit(std::unique_ptr<WeightFile> file,
                                           const models::VitFacts& vit,
                                           std::map<std::string, std::string>& map,
                                           const std::string& family = kAnyFamily);

// Returns a file whose tensors beside the image tower have our paths and shapes if `file` holds a
// pair of open_clip or transformers; otherwise returns `file`. texts: our tower of texts.
std::unique_ptr<WeightFile> translated_texts(std::unique_ptr<WeightFile> file,
                                             const models::VitFacts& texts);

// Returns the values of gelu with which such a translated ViT may have been trained, the usual one
// first.
std::vector<std::string> usual_gelu(const WeightFile& file, const std::string& root);

}  // namespace checkpoint
