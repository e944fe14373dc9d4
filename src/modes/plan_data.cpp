// SPDX-License-Identifier: Apache-2.0
#include "modes/plan_data.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "base/narrow.hpp"
#include "base/text.hpp"
#include "data/sources/classes.hpp"
#include "models/embedder.hpp"

namespace modes {
namespace {

// The sizes of data sets; nothing for sets that cannot be opened here.
class Sizes {
 public:
  explicit Sizes(const train::Job& job) : job_(job) {
    if (job.data_size() == 0) return;
    for (const data::Mixture::Part& part : job.data().parts())
      known_[part.dataset->name()] = part.dataset->size();
  }
  std::optional<int64_t> of(const std::string& set) {
    auto found = known_.find(set);
    if (found == known_.end()) found = known_.emplace(set, open(set)).first;
    return found->second;
  }

 private:
  std::optional<int64_t> open(const std::string& set) const {
    try {
      return job_.open_set(set)->size();
    } catch (const base::Error&) {
      return std::nullopt;
    }
  }
  const train::Job& job_;
  std::map<std::string, std::optional<int64_t>> known_;
};

}  // namespace

std::vector<std::string> class_rows(const train::Job& job, int ranks) {
  std::vector<std::string> rows;
  if (job.data_size() == 0) return rows;
  for (const data::Mixture::Part& part : job.data().parts()) {
    const data::Classes* classes = part.order.classes();
    if (!classes) continue;
    const int64_t samples = classes->samples();
    std::string start;
    if (classes->print() != 0)
      start = "once per node, in files that are there; a start reads no label";
    else if (samples > data::kClassPiece)
      start = fmt::format(
          "once per node, in files; the first start reads {} labels on each rank, later ones none",
          base::with_commas(base::ceil_div(samples, ranks)));
    else
      start = fmt::format("on each rank; each start reads {} labels on each rank",
                          base::with_commas(samples));
    rows.push_back(fmt::format("data.{}: {} samples in {} classes: {} bytes {}",
                               part.dataset->name(), base::with_commas(samples),
                               base::with_commas(classes->count()),
                               base::with_commas(classes->bytes()), start));
  }
  return rows;
}

std::vector<std::string> feature_rows(const train::Job& job, int ranks) {
  std::vector<std::string> rows;
  Sizes sizes(job);
  const train::Recipe& recipe = job.recipe();
  const std::shared_ptr<const models::Model> model = recipe.made_model();
  for (const auto& [name, options] : recipe.evaluations()) {
    const std::unique_ptr<models::ForwardPass> pass = eval::make_pass(options, *model);
    if (!dynamic_cast<const models::EmbedPass*>(pass.get())) continue;
    std::map<std::string, int64_t> images;
    std::string unknown;
    for (const auto& [key, set] : eval::data_sets_of(options)) {
      const std::optional<int64_t> size = sizes.of(set);
      if (!size) unknown = set;
      images[key] = size.value_or(1);
    }
    const eval::FeatureNeeds needs = eval::make_evaluator(options)->needs(*pass, images);
    if (needs.rows == 0) continue;
    if (!unknown.empty()) {
      rows.push_back(
          fmt::format("eval.{}: {} features of each image; the files of data.{} cannot "
                      "be read here, so the number of images is not known",
                      name, base::with_commas(needs.features), unknown));
      continue;
    }
    rows.push_back(fmt::format(
        "eval.{}: {} x {} features: {} bytes once per node, {} bytes on each rank; the model "
        "embeds {} images, {} on each rank",
        name, base::with_commas(needs.rows), base::with_commas(needs.features),
        base::with_commas(needs.node_bytes), base::with_commas(needs.rank_bytes),
        base::with_commas(needs.images), base::with_commas(base::ceil_div(needs.images, ranks))));
  }
  return rows;
}

}  // namespace modes
