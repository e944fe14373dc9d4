// SPDX-License-Identifier: Apache-2.0
// Names of PyTorch programs for the tensors of a ResNet and its head, as names of ours: files of
// torchvision, VISSL, MoCo, SwAV, DINO and of programs that write like them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/weight_file.hpp"

namespace checkpoint {

// True for a counter of a batch norm. Files hold it as a whole number, and old files lack it.
bool is_counter(const std::string& name);

// True for a path below "trunk/" that no ResNet has, such as that of a head beside it in a file.
bool is_beside_resnet(const std::string& path);

class TorchNames {
 public:
  // Returns the names of a file with a ResNet below one prefix, such as "", "module.encoder_q." or
  // "trunk._feature_blocks."; nothing if there is none. A method may train several encoders
  // together; then the one that is evaluated counts: encoder_q, teacher. Throws
  // Error(Exit::checkpoint) if several are left to choose from.
  static std::optional<TorchNames> of(const WeightFile& file);

  // Returns our path of a tensor of the file; nothing for tensors of other parts.
  std::optional<std::string> ours(const std::string& name) const;
  // Returns the name that the file would have for a path of ours, for messages.
  std::string theirs(const std::string& path) const;
  const std::string& prefix() const { return prefix_; }

 private:
  std::string prefix_;
  // Prefixes of heads in the file, and ours; the first match counts.
  std::vector<std::pair<std::string, std::string>> heads_;
};

}  // namespace checkpoint
