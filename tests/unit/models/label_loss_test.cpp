// SPDX-License-Identifier: Apache-2.0
// Checks losses of labels against their definitions (embedding_loss_rig.hpp).
#include "embedding_loss_rig.hpp"

namespace {
namespace label_loss_test {

using namespace embedding_rig;

TEST(LabelLoss, LabelThatPreprocessingMade) {
  constexpr int64_t kClasses = 4;
  Tensors in{.views = 1,
             .widths = {kClasses},
             .outputs = {numbers(kExamples * kClasses, "scores")},
             .labels = {0, 3, 1, 2, 2, 1, 0, 3}};
  const Subject s{"label",
                  [](auto&) {
                    return models::make_label_loss(
                        {.field = "rotation", .classes = kClasses, .key = "", .made_by = ""});
                  },
                  in,
                  [](const Tensors& t, Bench&) {
                    double loss = 0;
                    for (int64_t b = 0; b < kExamples; ++b)
                      loss -= log_softmax(row_of(t.outputs[0], b, kClasses),
                                          1)[size_t(t.labels[size_t(b)])] /
                              double(kExamples);
                    return loss;
                  }};
  check_loss(s);
  const Outcome got = run_loss(s, {});
  for (int64_t b = 0; b < kExamples; ++b) {
    const Doubles row = row_of(in.outputs[0], b, kClasses);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    EXPECT_EQ(got.terms[0][size_t(b)], best == in.labels[size_t(b)] ? 1 : 0);
  }
}

}  // namespace label_loss_test
}  // namespace
