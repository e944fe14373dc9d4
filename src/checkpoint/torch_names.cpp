// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch_names.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"

namespace checkpoint {
namespace {

constexpr std::string_view kFirstBlock = "layer1.0.conv1.weight";
const std::string kTrunk = "trunk/";

bool is_of_trunk(std::string_view rest) {
  const std::string_view first = rest.substr(0, rest.find('.'));
  for (std::string_view part : {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"})
    if (first == part) return true;
  return false;
}

std::vector<std::string> prefixes_of_resnets(const std::vector<FileTensor>& tensors) {
  std::vector<std::string> found;
  for (const FileTensor& t : tensors)
    if (t.name.ends_with(kFirstBlock)) {
      const std::string prefix = t.name.substr(0, t.name.size() - kFirstBlock.size());
      if (prefix.empty() || prefix.ends_with('.') || prefix.ends_with('/')) found.push_back(prefix);
    }
  return found;
}

std::string chosen(const WeightFile& file, const std::vector<std::string>& prefixes) {
  if (prefixes.size() == 1) return prefixes[0];
  for (const char* evaluated : {"encoder_q.", "teacher."}) {
    std::vector<std::string> left;
    for (const std::string& p : prefixes)
      if (p.find(evaluated) != std::string::npos) left.push_back(p);
    if (left.size() == 1) return left[0];
  }
  std::vector<std::string> names;
  for (const std::string& p : prefixes)
    names.push_back(base::quoted(p.substr(0, p.empty() ? 0 : p.size() - 1), 200));
  base::fail(
      base::Exit::checkpoint,
      "init.from: {} holds several ResNets, below {}; choose one: init.map = {{ trunk = {} }}",
      file.path(), base::join(names, ", "), names[0]);
}

}  // namespace

bool is_counter(const std::string& name) { return name.ends_with(".num_batches_tracked"); }

bool is_beside_resnet(const std::string& path) {
  return path.starts_with(kTrunk) && !is_of_trunk(std::string_view(path).substr(kTrunk.size()));
}

std::optional<TorchNames> TorchNames::of(const WeightFile& file) {
  const std::vector<std::string> prefixes = prefixes_of_resnets(file.tensors());
  // Checkpoints of this program have the prefix "params/trunk/", which needs no translation.
  if (prefixes.empty() || std::any_of(prefixes.begin(), prefixes.end(),
                                      [](const std::string& p) { return p.ends_with('/'); }))
    return {};
  TorchNames names;
  names.prefix_ = chosen(file, prefixes);
  const std::string& p = names.prefix_;
  auto above = [&p](const std::string& part) -> std::optional<std::string> {
    if (p.size() < part.size() || !p.ends_with(part)) return {};
    return p.substr(0, p.size() - part.size());
  };
  auto add = [&names](const std::string& theirs, const std::string& ours) {
    names.heads_.emplace_back(theirs, ours);
  };
  std::optional<std::string> vissl = above("trunk._feature_blocks.");
  if (!vissl) vissl = above("trunk.");
  if (vissl) {
    for (int i = 9; i > 0; --i)
      add(fmt::format("{}heads.{}.", *vissl, i), fmt::format("head{}/", i));
    add(*vissl + "heads.0.", "head/");
  } else if (const std::optional<std::string> dino = above("backbone.")) {
    add(*dino + "head.last_layer.", "head/prototypes0.");
    add(*dino + "head.", "head/");
  } else {
    add(p + "fc.weight", "head/kernel");  // [out, in] becomes [in, out]
    add(p + "fc.bias", "head/bias");
    add(p + "fc.", "head/clf.");
    add(p + "projection_head.", "head/projection_head.");
    add(p + "prototypes.weight", "head/prototypes0.weight");
    add(p + "prototypes.", "head/");
  }
  return names;
}

std::optional<std::string> TorchNames::ours(const std::string& name) const {
  if (name.starts_with(prefix_) && is_of_trunk(name.substr(prefix_.size())))
    return kTrunk + name.substr(prefix_.size());
  for (const auto& [theirs, ours] : heads_)
    if (name.starts_with(theirs)) return ours + name.substr(theirs.size());
  return {};
}

std::string TorchNames::theirs(const std::string& path) const {
  if (path.starts_with(kTrunk)) return prefix_ + path.substr(kTrunk.size());
  for (const auto& [theirs, ours] : heads_)
    if (path.starts_with(ours)) return theirs + path.substr(ours.size());
  return path;
}

}  // namespace checkpoint
