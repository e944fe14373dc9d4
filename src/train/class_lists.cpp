// SPDX-License-Identifier: Apache-2.0
#include "train/class_lists.hpp"

#include "base/text.hpp"
#include "data/class_list.hpp"

namespace train {
namespace {

constexpr const char* kLabel = "label";

// Data sets whose labels mean the same classes.
using Group = std::vector<std::string>;

void add(Group& group, const std::string& set, const std::set<std::string>& names) {
  if (names.contains(set)) group.push_back(set);
}

std::vector<Group> groups_of(const Recipe& recipe, const models::Model& made,
                             const std::set<std::string>& names) {
  std::vector<Group> groups(1);  // the first one has the model's classes
  const eval::Features features = made.features();
  const bool trains_on_labels = features.contains(kLabel);
  if (trains_on_labels)
    for (const auto& [name, weight] : recipe.train.parts()) groups[0].push_back(name);
  for (const auto& [name, e] : recipe.evals) {
    Group own;
    for (const auto& [key, set] : eval::data_sets_of(e)) {
      const std::optional<eval::Features> reads = eval::features_of(e, key, made);
      if (!reads) {
        if (trains_on_labels) add(groups[0], set, names);
        continue;
      }
      const auto label = reads->find(kLabel);
      if (label == reads->end()) continue;
      add(label->second.limit_key == "model.num_classes" ? groups[0] : own, set, names);
    }
    groups.push_back(std::move(own));
  }
  return groups;
}

}  // namespace

void check_class_lists(const Recipe& recipe, config::Deck& deck, const models::Model& made,
                       const std::set<std::string>& names) {
  std::set<std::string> reported;
  for (const Group& group : groups_of(recipe, made, names)) {
    std::string first_name;
    std::optional<data::ClassList> first;
    for (const std::string& name : group) {
      std::optional<data::ClassList> list = data::class_list_of(recipe.data, name, kLabel);
      if (!list) continue;
      if (!first) {
        first = std::move(list);
        first_name = name;
        continue;
      }
      const int64_t at = data::first_difference(first->names, list->names);
      if (at < 0 || !reported.insert(name).second) continue;
      deck.error(list->key,
                 fmt::format("class {} is {} in [data.{}], and {} in [data.{}]: numbers of classes "
                             "must mean the same; give both sets one list of all classes, such as "
                             "a file with a name per line (classes of a class_folder, or "
                             "class_number(\"FILE\"))",
                             at, base::quoted(list->names.names()[size_t(at)], 60), name,
                             base::quoted(first->names.names()[size_t(at)], 60), first_name));
    }
  }
}

}  // namespace train
