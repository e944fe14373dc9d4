// SPDX-License-Identifier: Apache-2.0
// Translates PyTorch programs' names of the tensors of a trunk and its head to ours. Knows files of
// torchvision, VISSL, MoCo, SwAV, DINO and of programs that use the same names.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/weight_file.hpp"
#include "models/trunk_weights.hpp"

namespace checkpoint {

// True for a counter of a batch norm. Files hold it as a whole number, and old files lack it.
bool is_counter(const std::string& name);

// True for a path below the trunk's root that no such trunk has, such as the path of a head that a
// file stores beside the trunk.
bool is_beside(const std::string& path, const models::TorchTrunk& trunk);

// Returns the prefix of the trunk in the file, such as "" or "module.encoder_q."; nothing if no
// name ends with `mark`, a tensor that each trunk has once, or if the names are this program's own.
// If a method trains several encoders, encoder_q or teacher is used, because that one is evaluated.
// Throws Error(Exit::checkpoint) if the choice is not unique. plural: "ResNets", for messages.
// also: another tensor of each trunk, if other models have tensors with the name of the mark; or
// "".
std::optional<std::string> trunk_prefix(const WeightFile& file, const std::string& mark,
                                        const std::string& plural, const std::string& root,
                                        const std::string& also = "");

class TorchNames {
 public:
  // Returns the names of a file with such a trunk below one prefix (trunk_prefix); nothing if there
  // is none.
  static std::optional<TorchNames> of(const WeightFile& file, const models::TorchTrunk& trunk);

  // Returns our path of a tensor of the file; nothing for tensors of other parts.
  std::optional<std::string> ours(const std::string& name) const;
  // Returns the name that the file would have for a path of ours, for messages.
  std::string theirs(const std::string& path) const;
  const std::string& prefix() const { return prefix_; }

 private:
  models::TorchTrunk trunk_;
  std::string prefix_;
  // Prefixes of heads in the file, and ours; the first match counts.
  std::vector<std::pair<std::string, std::string>> heads_;
};

}  // namespace checkpoint
