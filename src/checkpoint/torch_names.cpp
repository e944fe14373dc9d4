// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch_names.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"

namespace checkpoint {
namespace {

bool is_of_trunk(const std::string& rest, const models::TorchTrunk& trunk) {
  return std::ranges::find(trunk.parts, rest.substr(0, rest.find('.'))) != trunk.parts.end();
}

std::vector<std::string> prefixes_of_trunks(const std::vector<FileTensor>& tensors,
                                            const std::string& mark, const std::string& also) {
  std::vector<std::string> found;
  for (const FileTensor& t : tensors)
    if (t.name.ends_with(mark)) {
      const std::string prefix = t.name.substr(0, t.name.size() - mark.size());
      if (!prefix.empty() && !prefix.ends_with('.') && !prefix.ends_with('/')) continue;
      if (also.empty() || prefix.ends_with('/') ||
          std::ranges::any_of(tensors,
                              [&](const FileTensor& of) { return of.name == prefix + also; }))
        found.push_back(prefix);
    }
  return found;
}

std::string chosen(const WeightFile& file, const std::string& plural, const std::string& root,
                   const std::vector<std::string>& prefixes) {
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
  base::fail(base::Exit::checkpoint,
             "init.from: {} holds several {}, below {}; choose one: init.map = {{ {} = {} }}",
             file.path(), plural, base::join(names, ", "), root.substr(0, root.size() - 1),
             names[0]);
}

}  // namespace

bool is_counter(const std::string& name) { return name.ends_with(".num_batches_tracked"); }

bool is_beside(const std::string& path, const models::TorchTrunk& trunk) {
  return path.starts_with(trunk.root) && !is_of_trunk(path.substr(trunk.root.size()), trunk);
}

std::optional<std::string> trunk_prefix(const WeightFile& file, const std::string& mark,
                                        const std::string& plural, const std::string& root,
                                        const std::string& also) {
  const std::vector<std::string> prefixes = prefixes_of_trunks(file.tensors(), mark, also);
  // Checkpoints of this program have prefixes such as "params/trunk/", which need no translation.
  if (prefixes.empty() || std::any_of(prefixes.begin(), prefixes.end(),
                                      [](const std::string& p) { return p.ends_with('/'); }))
    return {};
  return chosen(file, plural, root, prefixes);
}

std::optional<TorchNames> TorchNames::of(const WeightFile& file, const models::TorchTrunk& trunk) {
  const std::optional<std::string> prefix =
      trunk_prefix(file, trunk.mark, trunk.plural, trunk.root);
  if (!prefix) return {};
  TorchNames names;
  names.trunk_ = trunk;
  names.prefix_ = *prefix;
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
    add(p + trunk.head + "weight", "head/kernel");  // [out, in] becomes [in, out]
    add(p + trunk.head + "bias", "head/bias");
    add(p + trunk.head, "head/clf.");
    add(p + "projection_head.", "head/projection_head.");
    add(p + "prototypes.weight", "head/prototypes0.weight");
    add(p + "prototypes.", "head/");
  }
  return names;
}

std::optional<std::string> TorchNames::ours(const std::string& name) const {
  for (const auto& [theirs, ours] : heads_)
    if (name.starts_with(theirs)) return ours + name.substr(theirs.size());
  if (name.starts_with(prefix_) && is_of_trunk(name.substr(prefix_.size()), trunk_))
    return trunk_.root + name.substr(prefix_.size());
  return {};
}

std::string TorchNames::theirs(const std::string& path) const {
  if (path.starts_with(trunk_.root)) return prefix_ + path.substr(trunk_.root.size());
  for (const auto& [theirs, ours] : heads_)
    if (path.starts_with(ours)) return theirs + path.substr(ours.size());
  return path;
}

}  // namespace checkpoint
