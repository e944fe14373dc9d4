// SPDX-License-Identifier: Apache-2.0
// Families of ViTs: what other programs call the tensors of a ViT, and how these become ours
// (foreign_vit.hpp). To add a family: a function with its names in vit_families.cpp.
#pragma once

#include <string>
#include <vector>

namespace checkpoint {

// How numbers of a file become a tensor of ours. Matrices of PyTorch are [out, in], ours [in, out].
enum class How {
  same,     // in the same order, perhaps with another shape
  turned,   // a matrix, transposed
  patches,  // [out, channels, height, width] becomes [height, width, channels, out], and so does
            // a matrix of flat patches
  part,     // one of several equal parts of the rows
  part_turned,
  cls,        // the class token plus its position: ours has none
  positions,  // without that of the class token
  zeros,      // the file has no such tensor
  number,     // one number, with any number of axes
};

struct Rule {
  // {} is the number of a block. A slash in front of ours: beside the trunk.
  std::string theirs, ours;
  How how = How::same;
  int part = 0, parts = 3;
};

struct VitFamily {
  const char *key, *name;  // a value of init.family, and for messages
  const char* mark;        // a tensor that each such ViT has once
  const char* cls;         // the class token, [1, 1, width] or [width]
  const char* positions;   // [1, tokens, width] or [tokens, width]; "": never
  // First parts of the names of the trunk's tensors. What has no rule among them is not in our ViT.
  std::vector<std::string> parts;
  std::vector<Rule> rules;            // class token and positions apart
  std::vector<std::string> unread{};  // tensors of the trunk that its features do not depend on
  // The kernels of the first block's MLP in a family that stores SwiGLU's gate and hidden product
  // as halves of one matrix, under the names that other MLPs have.
  const char *hidden = nullptr, *output = nullptr;
  // If a tensor has this name, the biases of keys are not used.
  const char* key_mask = nullptr;
  // Towers of texts and other models have tensors with the name of the mark, too. The patches,
  // which the first rule names, must lie beside it.
  bool shares_mark = false;
};

// Returns the family's rules for a ViT with such halves.
std::vector<Rule> halved_rules(const VitFamily& family);

const std::vector<VitFamily>& vit_families();

// Returns the rules for files of pairs, apart from their image tower: the tower of texts, the heads
// of both towers, temperature and bias. The mark is a tensor of the tower of texts. Our paths begin
// at the model, not at a tower.
const std::vector<VitFamily>& text_families();

// Returns the rules for the decoder of a masked autoencoder. Our paths begin at the decoder.
const std::vector<VitFamily>& decoder_families();

}  // namespace checkpoint
