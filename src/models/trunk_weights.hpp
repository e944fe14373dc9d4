// SPDX-License-Identifier: Apache-2.0
// A trunk's declarations about its tensors, for readers of weight files (checkpoint/name_map.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace models {

using TensorShapes = std::map<std::string, std::vector<int64_t>>;  // by our path

// The form of a trunk, read off the shapes of tensors: a file and a model are compared as a whole.
struct TrunkForm {
  static constexpr int64_t kAnyValue = -1;  // tensors do not tell the key's value, but it is not 0
  struct Number {
    const char *key, *what;  // "model.trunk.depth", "depth"
    int64_t value;
  };
  std::vector<Number> numbers;  // that keys of the deck set; none if the keys are lists
  std::string text;             // "a ViT of depth 12, width 768, ..."
  std::string deck{};  // the keys of [model.trunk], a line for each, if tensors tell them all
};

// The names of a trunk's tensors in files of PyTorch programs: after any prefix, a name is our path
// without `root`.
struct TorchTrunk {
  std::string plural;              // "ResNets", for messages
  std::string root;                // "trunk/"
  std::vector<std::string> parts;  // the names up to their first dot: "conv1", "layer1", ...
  std::string mark;                // a tensor that each of these trunks has
  std::string head = "fc.";        // of the linear classifier beside it
};

// Facts about our ViT that readers of other programs' ViTs need (checkpoint/foreign_vit.hpp).
struct VitFacts {
  std::string root;  // "encoder/"
  int64_t heads = 1, patches = 0;
  bool class_token = false;
  bool learned_positions = true;
  // The table of the patches that the model computes instead of learning it, or nothing.
  std::vector<float> fixed_positions{};
  bool rotary = false;  // positions are DINOv3's
  std::string gelu{};   // the value of model.trunk.gelu; "": no MLP of a block has GELU
};

struct TrunkWeights {
  // Paths of position tables [1, g * g, width] with one row per image patch. They are resampled
  // when initial weights come from another image size.
  std::vector<std::string> patch_tables{};
  std::optional<TorchTrunk> torch{};  // none: PyTorch programs have no such names
  std::optional<VitFacts> vit{};      // none: the trunk is not a ViT
  std::optional<VitFacts> texts{};    // of a tower of texts beside the trunk
  std::optional<VitFacts> decoder{};  // of a decoder of masked patches beside the trunk
  // Returns the form of a trunk of this kind among these tensors, if there is one. The pointer is
  // null if no key of the deck sets the form's numbers.
  std::optional<TrunkForm> (*form)(const TensorShapes& shapes) = nullptr;
};

}  // namespace models
