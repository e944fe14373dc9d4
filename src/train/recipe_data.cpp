// SPDX-License-Identifier: Apache-2.0
// The data sets that a recipe reads: their fields, the limits of ids, and pixels as bytes.
#include "train/class_lists.hpp"
#include "train/input.hpp"
#include "train/recipe.hpp"

namespace train {

void TrainOptions::check_order(config::Table& t) const {
  const bool stratified = shuffle == data::Shuffle::stratified;
  if (until_input_ends() && (stratified || shuffle == data::Shuffle::classes))
    t.error("shuffle",
            fmt::format(
                "\"{}\" draws samples forever, so the input has no end: give another train.total_*",
                base::name_of(data::kShuffleNames, shuffle)));
  if (stratified && (classes_per_batch == 0 || global_batch % classes_per_batch))
    t.error("classes_per_batch",
            classes_per_batch == 0
                ? "missing; shuffle = \"stratified\" needs the number of classes of a batch"
                : fmt::format("train.global_batch = {} is not divisible by {}", global_batch,
                              classes_per_batch));
  if (stratified && !mixture.empty())
    t.error("mixture",
            "shuffle = \"stratified\" makes whole batches of one data set: name it in "
            "train.data");
}

std::set<std::string> Recipe::evaluated_sets() const { return data_sets_of(evals); }

std::set<std::string> Recipe::image_sets() const {
  std::set<std::string> names;
  for (const std::string& name : {extract.data, predict.data})
    if (data.data.contains(name)) names.insert(name);
  return names;
}

Recipe::Features Recipe::image_features(const models::Model& made) {
  return {{"image", made.single_image()}};
}

Recipe::Features Recipe::features_of(const models::Model& made, const std::string& set) const {
  Features own;
  const bool of_images = image_sets().contains(set);
  bool of_model = (!of_images && !evaluated_sets().contains(set)) || train.parts().contains(set);
  if (of_images) own = image_features(made);
  for (const auto& [name, e] : evals)
    for (const auto& [key, one] : eval::data_sets_of(e)) {
      if (one != set) continue;
      if (std::optional<Features> features = eval::features_of(e, key, made))
        own.merge(*features);
      else
        of_model = true;
    }
  if (!of_model) return own;
  Features all = made.features();
  all.merge(own);  // the model's rule for a field comes first
  return all;
}

std::map<std::string, data::ValueLimit> Recipe::value_limits(const std::string& set) const {
  std::map<std::string, data::ValueLimit> found;
  for (const auto& [feature, wanted] : features_of(*made_model(), set))
    if (wanted.below > 0) found[feature] = {wanted.below, wanted.limit_key};
  return found;
}

std::vector<std::string> Recipe::pixel_fields() const {
  std::vector<std::string> fields;
  for (const auto& [feature, wanted] : made_model()->features())
    if (wanted.pixels) fields.push_back(feature);
  return fields;
}

std::set<std::string> Recipe::sets_in_use() const {
  std::set<std::string> names = evaluated_sets();
  names.merge(image_sets());
  for (const auto& [name, weight] : train.parts()) names.insert(name);
  return names;
}

std::optional<Recipe::BytePixels> Recipe::byte_pixels() const {
  const std::vector<std::string> fields = pixel_fields();
  if (fields.empty()) return {};
  std::optional<BytePixels> all;
  for (const std::string& name : sets_in_use()) {
    try {
      const data::Spec spec = data.spec_of(name);
      for (const std::string& field : fields) {
        if (field != fields.front() && !spec.contains(field)) continue;  // further views
        const std::optional<data::ByteScale> one = data.byte_scale_of(name, field);
        if (!one || (all && all->scale != *one)) return {};
        all = BytePixels{fields, *one};
      }
    } catch (const base::Error&) {
      return {};  // a needed file is missing; opening the set reports it
    }
  }
  return all;
}

std::vector<std::string> Recipe::bytes_fields(device::Kind kind) const {
  const std::optional<BytePixels> bytes = kind == device::Kind::cuda ? byte_pixels() : std::nullopt;
  return bytes ? bytes->fields : std::vector<std::string>();
}

void Recipe::check_opened(config::Deck& deck, const DataLength& length,
                          const std::map<std::string, data::Spec>& specs,
                          const std::set<std::string>& written) const {
  const std::shared_ptr<const models::Model> made = made_model();
  std::set<std::string> names;
  for (const auto& [name, spec] : specs) {
    check_limits(deck, features_of(*made, name), name, spec);
    names.insert(name);
  }
  check_class_lists(*this, deck, *made, {names, written});
  if (length.epoch > 0) check_lengths(deck, length);
  deck.throw_if_any();
}

}  // namespace train
