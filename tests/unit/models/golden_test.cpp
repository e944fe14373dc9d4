// SPDX-License-Identifier: Apache-2.0
// Compares with results of the published code: perplexity on the parameters of case_ar.h5
// (predict.h5), position tables (posemb.h5).
#include <gtest/gtest.h>

#include <cmath>

#include "rig.hpp"
#include "tests/unit/optim/golden_file.hpp"

namespace {

using golden::File;
using rig::Floats;

// Returns the model of case_ar.h5 (its /config, written out).
models::CappaOptions case_ar_options() {
  models::CappaOptions o;
  o.image_height = 24;
  o.image_width = 16;
  o.vocab_size = 37;
  o.seq_len = 7;
  o.masked_pred_prob = 0;
  o.encoder = {.variant = "", .patch = 8, .depth = 2, .width = 24, .mlp = 40, .heads = 3};
  o.decoder = {.depth = 2, .bias = true};
  return o;
}

rig::Ints ints(const Floats& v) { return {v.begin(), v.end()}; }

class Perplexity : public testing::TestWithParam<int64_t> {};

// Compares summed and per-token NLL of each example, in batches of several sizes. The perplexity
// evaluator adds them up.
TEST_P(Perplexity, OfPredict) {
  const int64_t batch = GetParam(), all = 12;
  File parameters("case_ar.h5"), expected("predict.h5");
  rig::World world(case_ar_options(), batch);
  for (const shard::Parameter& p : world.stores.layout.parameters())
    world.set(p.path, parameters.floats("params_init/" + p.path));
  const Floats image = parameters.floats("batch/image"),
               masks = parameters.floats("batch/label_masks");
  const rig::Ints labels = ints(parameters.floats("batch/labels"));
  const Floats counted = expected.floats("perplexity/mask");
  for (bool masked : {false, true}) {
    std::vector<double> nll(size_t(all), 0.0), weight(size_t(all), 0.0);
    for (int64_t first = 0; first < all; first += batch) {
      models::HostBatch host{
          .features = {{"image",
                        device::view(image.data() + first * 24 * 16 * 3, batch * 24 * 16 * 3)},
                       {"labels", device::view(labels.data() + first * 7, batch * 7)}},
          .examples = batch,
          .first_position = first};
      if (masked) host.features["label_masks"] = device::view(masks.data() + first * 7, batch * 7);
      world.prepare(host, false, base::Stream());
      world.evaluate(nll.data() + first, weight.data() + first);
    }
    for (bool per_token : {false, true}) {
      const std::string set = std::string("perplexity/") + (per_token ? "per_token" : "sum") +
                              (masked ? "_label_masks" : "");
      SCOPED_TRACE(set);
      auto near = [&](double value, const std::string& name, double recorded) {
        EXPECT_NEAR(value, recorded, expected.number(set + name, "tol")) << name;
      };
      const Floats want = expected.floats(set + "/per_example");
      double sum = 0, examples = 0;
      for (size_t b = 0; b < nll.size(); ++b) {
        const double value = per_token ? nll[b] / std::max(weight[b], 2e-38) : nll[b];
        near(value, "/per_example", double(want[b]));
        sum += value * double(counted[b]);
        examples += double(counted[b]);
      }
      near(sum, "/batch_sum", double(expected.floats(set + "/batch_sum")[0]));
      near(sum / examples, "/value", double(expected.floats(set + "/value")[0]));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Batches, Perplexity, testing::Values(12, 4, 1));

TEST(Sincos2d, OfPosemb) {
  File file("posemb.h5");
  int tables = 0;
  for (const std::string& name : file.children("/")) {
    int height = 0, width = 0, columns = 0;
    if (std::sscanf(name.c_str(), "sincos2d_%dx%dx%d", &height, &width, &columns) != 3) continue;
    ++tables;
    const Floats got = models::sincos2d(height, width, columns), want = file.floats(name);
    ASSERT_EQ(got.size(), want.size()) << name;
    const double tolerance = file.number(name, "tol");
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(double(got[i]), double(want[i]), tolerance) << name << " " << i;
  }
  EXPECT_EQ(tables, 4);
}

// The decoder's table follows the same formula on one row of seq_len columns (cappa.md 1.4).
TEST(Sincos2d, OfOneRow) {
  const Floats table = models::sincos2d(1, 6, 8);
  for (size_t x = 0; x < 6; ++x)
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_EQ(table[x * 8 + 4 + k], 0) << "sine of y = 0";
      EXPECT_EQ(table[x * 8 + 6 + k], 1) << "cosine of y = 0";
      EXPECT_FLOAT_EQ(table[x * 8 + k], float(std::sin(double(x) * (k ? 1e-4 : 1))));
    }
}

}  // namespace
