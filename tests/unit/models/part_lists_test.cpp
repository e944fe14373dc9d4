// SPDX-License-Identifier: Apache-2.0
// Tests that --list names the parts that models can use, also those of a new model.
#include "models/part_lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/model.hpp"

namespace models {
namespace {

bool names_kind(const std::vector<NamedPart>& parts, const std::string& kind) {
  return std::ranges::any_of(parts, [&](const NamedPart& part) {
    return part.doc.find('"' + kind + '"') != std::string::npos;
  });
}

TEST(PartLists, EachModelHasALossAndMeasures) {
  const std::vector<NamedPart> losses = loss_parts(), measures = measure_parts();
  for (const Registered& model : registry()) {
    EXPECT_TRUE(names_kind(losses, model.name)) << model.name << ": add it to kOwnLosses";
    EXPECT_TRUE(names_kind(measures, model.name)) << model.name;
  }
}

TEST(PartLists, HaveADocLineEach) {
  for (const auto& parts : {head_parts(), trunk_parts(), loss_parts(), measure_parts()}) {
    EXPECT_FALSE(parts.empty());
    for (const NamedPart& part : parts) EXPECT_GT(part.doc.size(), 10u) << part.name;
  }
}

}  // namespace
}  // namespace models
