// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/trunk_difference.hpp"

#include <fmt/format.h>

namespace checkpoint {

std::string trunk_difference(const models::TensorShapes& file, const std::vector<Wanted>& model,
                             const models::TrunkWeights& trunk) {
  if (!trunk.form) return "";
  models::TensorShapes shapes;
  for (const Wanted& w : model) shapes[w.path] = w.shape;
  const std::optional<models::TrunkForm> theirs = trunk.form(file), ours = trunk.form(shapes);
  if (!theirs || !ours || theirs->text == ours->text) return "";
  size_t i = 0;
  while (i + 1 < ours->numbers.size() && ours->numbers[i].value == theirs->numbers[i].value) ++i;
  std::string key = "model.trunk";
  if (!ours->numbers.empty()) {
    const models::TrunkForm::Number& n = ours->numbers[i];
    const bool known = n.value != models::TrunkForm::kAnyValue;
    key = known ? fmt::format("{} = {}", n.key, n.value) : n.key;
  }
  return fmt::format(
      "{}: the file holds {}, this model has {}: make model.trunk the same, or take another file",
      key, theirs->text, ours->text);
}

}  // namespace checkpoint
