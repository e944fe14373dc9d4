// SPDX-License-Identifier: Apache-2.0
#include "train/class_lists.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "data/class_list.hpp"
#include "train/changes.hpp"

namespace train {
namespace {

constexpr const char* kLabel = "label";
constexpr const char* kWays =
    "give both data sets one list of all classes, such as a file with a name per line (classes of "
    "a class_folder, or class_number(\"FILE\"))";

// Data sets whose labels mean the same classes.
using Group = std::vector<std::string>;
using Names = std::vector<std::string>;

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

std::optional<data::ClassList> list_of(const Recipe& recipe, const std::string& set) {
  return data::class_list_of(recipe.data, set, kLabel);
}

// Returns the list of a set whose labels are written; nothing if its ops leave them out.
std::optional<data::ClassList> written_list(const Recipe& recipe, const std::string& set) {
  try {
    if (!recipe.data.spec_of(set).contains(kLabel)) return {};
  } catch (const base::Error&) {
    return {};  // opening the set reports it
  }
  return list_of(recipe, set);
}

// Predictions are compared with labels, so each number must mean one class. Features of images of
// other classes are useful too, unless a class in both lists has two different numbers.
int64_t written_difference(const Recipe& recipe, const std::string& set, const Names& trained,
                           const Names& own) {
  return recipe.extract.data == set && recipe.predict.data != set
             ? data::first_moved(trained, own)
             : data::first_difference(trained, own);
}

std::string name_at(const Names& names, int64_t number) {
  return number < int64_t(names.size()) ? base::quoted(names[size_t(number)], 60) : "no class";
}

std::string difference(int64_t at, const Names& own, const std::string& set, const Names& other,
                       const std::string& where) {
  return fmt::format(
      "class {} is {} in [data.{}], and {} in {}: a class number must mean the same class in both",
      at, name_at(own, at), set, name_at(other, at), where);
}

void check_group(const Recipe& recipe, config::Deck& deck, const Group& group,
                 std::set<std::string>& reported) {
  std::string first_name;
  std::optional<data::ClassList> first;
  for (const std::string& name : group) {
    std::optional<data::ClassList> list = list_of(recipe, name);
    if (!list) continue;
    if (!first) {
      first = std::move(list);
      first_name = name;
      continue;
    }
    const int64_t at = data::first_difference(first->names.names(), list->names.names());
    if (at < 0 || !reported.insert(name).second) continue;
    deck.error(list->key, difference(at, list->names.names(), name, first->names.names(),
                                     fmt::format("[data.{}]", first_name)) +
                              "; " + kWays);
  }
}

// A set that is written is compared with the training sets, whatever the model learns from them.
void check_written(const Recipe& recipe, config::Deck& deck, const std::set<std::string>& written,
                   std::set<std::string>& reported) {
  for (const std::string& name : written) {
    const std::optional<data::ClassList> list = written_list(recipe, name);
    if (!list) continue;
    for (const auto& [part, weight] : recipe.train.parts()) {
      const std::optional<data::ClassList> trained = list_of(recipe, part);
      if (!trained) continue;
      const Names &of_run = trained->names.names(), &own = list->names.names();
      const int64_t at = written_difference(recipe, name, of_run, own);
      if (at < 0 || !reported.insert(name).second) continue;
      deck.error(list->key, difference(at, own, name, of_run, fmt::format("[data.{}]", part)) +
                                "; " + kWays + ", or leave the labels out with keep(\"image\")");
    }
  }
}

// Texts of classes need not be the names of the list, but one that is the
// name of another class shows that the order differs.
void check_texts(const Recipe& recipe, config::Deck& deck, const ClassSets& sets) {
  for (const auto& [name, e] : recipe.evals) {
    const auto texts_of = eval::row_of(e).class_texts;
    if (!texts_of) continue;
    std::set<std::string> read = {e.data};
    if (recipe.predict.evaluator == name) read.insert(sets.written.begin(), sets.written.end());
    for (const std::string& set : read) {
      if (!sets.names.contains(set)) continue;
      const std::optional<data::ClassList> list = list_of(recipe, set);
      if (!list) continue;
      const eval::ClassTexts texts = texts_of(*e.options);
      const int64_t at = data::text_of_another(texts.texts, list->names.names());
      if (at < 0) continue;
      deck.error(fmt::format("eval.{}.{}", name, texts.key),
                 fmt::format("text {0} is {1}, and class {0} of [data.{2}] is {3}: text i must "
                             "describe class i; give the texts in the order of the classes",
                             at, name_at(texts.texts, at), set, name_at(list->names.names(), at)));
      break;
    }
  }
}

Names in_lines(const Names& names) {
  Names out;
  for (const std::string& name : names) out.push_back(base::one_line(name));
  return out;
}

}  // namespace

void check_class_lists(const Recipe& recipe, config::Deck& deck, const models::Model& made,
                       const ClassSets& sets) {
  std::set<std::string> reported;
  for (const Group& group : groups_of(recipe, made, sets.names))
    check_group(recipe, deck, group, reported);
  check_written(recipe, deck, sets.written, reported);
  check_texts(recipe, deck, sets);
}

std::string class_text(const Recipe& recipe, const models::Model& made, const ClassSets& sets) {
  Names longest;
  const std::vector<Group> groups = groups_of(recipe, made, sets.names);
  for (const std::string& name : groups.front())
    if (const std::optional<data::ClassList> list = list_of(recipe, name);
        list && list->names.names().size() > longest.size())
      longest = list->names.names();
  return base::join(in_lines(longest), "\n");
}

std::string class_text_problem(const Recipe& recipe, const models::Model& made,
                               const ClassSets& sets, const std::string& trained,
                               const std::string& file, const std::vector<std::string>& allowed) {
  if (trained.empty()) return "";
  const Names of_file = base::split(trained, '\n');
  auto problem = [&](const std::string& set, bool written) -> std::string {
    const std::optional<data::ClassList> list =
        written ? written_list(recipe, set) : list_of(recipe, set);
    if (!list || allows_change(allowed, list->key)) return "";
    const Names own = in_lines(list->names.names());
    const int64_t at = written ? written_difference(recipe, set, of_file, own)
                               : data::first_difference(of_file, own);
    if (at < 0) return "";
    return fmt::format(
        "{}: {}. Give the data set the classes of the training again (the file's attribute "
        "classes); if only names of classes have changed, add --allow-change {}",
        list->key, difference(at, own, set, of_file, fmt::format("the training of {}", file)),
        list->key);
  };
  const std::vector<Group> groups = groups_of(recipe, made, sets.names);
  for (const std::string& set : groups.front())
    if (const std::string text = sets.names.contains(set) ? problem(set, false) : ""; !text.empty())
      return text;
  for (const std::string& set : sets.written)
    if (const std::string text = problem(set, true); !text.empty()) return text;
  return "";
}

}  // namespace train
