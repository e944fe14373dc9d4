// SPDX-License-Identifier: Apache-2.0
#include "eval/confusions.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace eval {
namespace {

constexpr size_t kMostWrong = 10;  // keeps the file of a thousand classes at about 150 KiB

struct OfClass {
  int64_t images = 0, correct = 0, predicted = 0;
  std::map<int64_t, int64_t> wrong;  // images by the class that they are taken for
};

std::vector<std::pair<int64_t, int64_t>> most_frequent(const std::map<int64_t, int64_t>& counts) {
  std::vector<std::pair<int64_t, int64_t>> out(counts.begin(), counts.end());
  std::ranges::stable_sort(out, [](const auto& a, const auto& b) { return a.second > b.second; });
  out.resize(std::min(out.size(), kMostWrong));
  return out;
}

}  // namespace

std::string confusions_json(const std::vector<std::string>& names,
                            const std::vector<int64_t>& labels,
                            const std::vector<int64_t>& predicted) {
  std::vector<OfClass> classes(names.size());
  int64_t correct = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    OfClass& c = classes.at(size_t(labels[i]));
    const bool hit = labels[i] == predicted[i];
    c.images += 1;
    c.correct += hit;
    correct += hit;
    if (!hit) c.wrong[predicted[i]] += 1;
    classes.at(size_t(predicted[i])).predicted += 1;
  }
  using Json = nlohmann::ordered_json;
  Json all{{"images", labels.size()}, {"correct", correct}, {"classes", Json::array()}};
  for (size_t c = 0; c < names.size(); ++c) {
    Json wrong = Json::array();
    for (const auto& [other, images] : most_frequent(classes[c].wrong))
      wrong.push_back(Json::array({other, images}));
    all["classes"].push_back(Json{{"name", names[c]},
                                  {"images", classes[c].images},
                                  {"correct", classes[c].correct},
                                  {"predicted", classes[c].predicted},
                                  {"wrong", std::move(wrong)}});
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace eval
