// SPDX-License-Identifier: Apache-2.0
// ViTs of other programs, read as ours. To add a family of names: a row in foreign_vit.cpp.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "checkpoint/init_options.hpp"
#include "checkpoint/vit_families.hpp"
#include "checkpoint/weight_file.hpp"
#include "models/trunk_weights.hpp"

namespace checkpoint {

// Returns a file whose tensors have the paths and shapes of our ViT if `file` holds a ViT of a
// known family below any prefix; otherwise returns `file`. Families: timm (also DINO, MAE, DeiT,
// MoCo v3, CLIP, SigLIP, Meta's DINOv2 and DINOv3), transformers' ViT and DINOv2, its DINOv3, its
// CLIP and SigLIP, torchvision's, open_clip's. Of transformers' first three, the names in files and
// those of version 5's modules are known. Tensors of the trunk that ours lacks keep the file's
// name, below the trunk's root, so that a plan refuses them. A table of positions is left out if
// the model computes the same one. Tensors beside the trunk keep their names. Throws
// Error(Exit::checkpoint) if the file or the model alone has DINOv3's rotary positions. map:
// init.map. If its only entry names the prefix of such a trunk, that trunk is taken and the entry
// is removed; with other entries `file` is returned. family: init.family. Warns if the family's
// GELU is not vit.gelu. Throws, too, if files beside the weights (weight_config.hpp) describe
// another ViT. vit.patches < 0: there is no model to compare with.
std::unique_ptr<WeightFile> translated_vit(std::unique_ptr<WeightFile> file,
                                           const models::VitFacts& vit,
                                           std::map<std::string, std::string>& map,
                                           const std::string& family = kAnyFamily);

// Returns a file whose tensors beside the trunk have our paths and shapes if `file` holds such
// parts of one of these families; otherwise returns `file`. part: ours, a tower of texts or a
// decoder of masked patches.
std::unique_ptr<WeightFile> translated_part(std::unique_ptr<WeightFile> file,
                                            const models::VitFacts& part,
                                            const std::vector<VitFamily>& families);

// Returns the values of gelu with which such a translated ViT may have been trained, the usual one
// first.
std::vector<std::string> usual_gelu(const WeightFile& file, const std::string& root);

}  // namespace checkpoint
