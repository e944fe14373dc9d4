// SPDX-License-Identifier: Apache-2.0
// Tests the perplexity evaluator with a made-up likelihood: the counted examples, their divisors,
// and the pairs of images and captions.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "models/caption_scorer.hpp"
#include "rig.hpp"

namespace {

// The made-up model gives these values for caption c. Their sums are exact.
double nll_of(int64_t caption) { return 1 + 0.25 * double(caption); }
double tokens_of(int64_t caption) { return double(1 + caption % 5); }

struct Setting {
  int64_t examples = 40, batch = 6;
  int ranks = 1;
  bool shuffle_images = false, normalize = false;
  double tokens = 1;             // factor of the weights; 0: a model that predicts nothing
  int64_t interrupt_after = -1;  // batches of a rank
};

struct Outcome {
  std::vector<eval::Result> results;               // by rank
  std::map<int64_t, std::vector<int64_t>> images;  // by caption, counted from 0
  std::vector<int64_t> calls;                      // of the model, by rank
};

std::unique_ptr<eval::Evaluator> perplexity(bool shuffle_images, bool normalize = false) {
  return eval::make_evaluator(rig::options(
      "perplexity",
      fmt::format("shuffle_images = {}\nnormalize_by_seqlen = {}", shuffle_images, normalize)));
}

// Scores the last prepared batch with made-up values.
class MadeUpPass : public models::ScorePass {
 public:
  using Score = std::function<void(const models::HostBatch& batch, double* nll, double* weight)>;
  explicit MadeUpPass(Score score) : score_(std::move(score)) {}
  std::string name() const override { return "score"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, double* nll, double* weight) override {
    score_(batch_, nll, weight);
  }

 private:
  Score score_;
  mutable models::HostBatch batch_;
};

Outcome evaluate(const Setting& s) {
  const data::Dataset set = rig::numbers("labels", s.examples);
  const std::unique_ptr<eval::Evaluator> evaluator = perplexity(s.shuffle_images, s.normalize);
  rig::Ranks ranks(s.ranks);
  Outcome out;
  out.results.resize(size_t(s.ranks));
  out.calls.resize(size_t(s.ranks));
  ranks.run_all([&](int rank, bool first_round) {
    int64_t& calls = out.calls[size_t(rank)] = 0;
    MadeUpPass pass([&](const models::HostBatch& batch, double* nll, double* weight) {
      ++calls;
      EXPECT_EQ(batch.examples, s.batch);
      for (int64_t i = 0; i < batch.examples; ++i) {
        const int64_t caption = batch.features.at("labels").i32()[i] - 1;
        const bool padding = batch.first_position + i >= s.examples;
        EXPECT_EQ(caption, padding ? -1 : batch.first_position + i);
        nll[i] = padding ? 1e9 : nll_of(caption);
        weight[i] = padding ? 1e6 : s.tokens * tokens_of(caption);
        if (!padding && first_round)
          out.images[caption].push_back(int64_t(batch.features.at("image").f32()[i]) - 1);
      }
    });
    out.results[size_t(rank)] =
        evaluator->run({.world = ranks,
                        .dataset = set,
                        .loader = {},
                        .batch = s.batch,
                        .pass = &pass,
                        .forward = rig::runs_of(pass),
                        .interrupted = [&] { return calls == s.interrupt_after; }});
  });
  return out;
}

double value(const eval::Result& result, const std::string& name) {
  for (const auto& [metric, number] : result.values)
    if (metric == name) return number;
  return NAN;
}

// Sets that fill the last batch of all ranks or a part of it, or leave ranks without any example.
const Setting kSettings[] = {{.examples = 40},
                             {.examples = 36},
                             {.examples = 40, .ranks = 2},
                             {.examples = 40, .ranks = 3},
                             {.examples = 7, .ranks = 3},
                             {.examples = 1, .ranks = 2},
                             {.examples = 1, .batch = 1}};

TEST(Perplexity, IsAMeanOverCaptionsAndOverTokens) {
  for (const Setting& s : kSettings) {
    SCOPED_TRACE(fmt::format("{} examples, {} ranks", s.examples, s.ranks));
    double sum = 0, tokens = 0;
    for (int64_t i = 0; i < s.examples; ++i) {
      sum += nll_of(i);
      tokens += tokens_of(i);
    }
    const Outcome out = evaluate(s);
    for (const eval::Result& result : out.results) {
      EXPECT_EQ(value(result, "perplexity"), sum / double(s.examples));
      EXPECT_EQ(value(result, "perplexity_per_token"), sum / tokens);
      EXPECT_EQ(result.examples, s.examples);
      EXPECT_EQ(result.counted, "captions");
      EXPECT_FALSE(result.interrupted);
    }
    EXPECT_EQ(int64_t(out.images.size()), s.examples) << "every caption counts";
    for (const auto& [caption, images] : out.images)
      EXPECT_EQ(images, std::vector<int64_t>{caption});
    for (int64_t calls : out.calls)
      EXPECT_EQ(calls, out.calls[0]) << "ranks gather weights together, in every batch";
  }
}

TEST(Perplexity, MayBeAMeanOfEachCaptionsMean) {
  for (Setting s : kSettings) {
    s.normalize = true;
    double sum = 0, tokens = 0, means = 0;
    for (int64_t i = 0; i < s.examples; ++i) {
      sum += nll_of(i);
      tokens += tokens_of(i);
      means += nll_of(i) / tokens_of(i);
    }
    for (const eval::Result& result : evaluate(s).results) {
      EXPECT_EQ(value(result, "perplexity"), means / double(s.examples));
      EXPECT_EQ(value(result, "perplexity_per_token"), sum / tokens);
    }
  }
  EXPECT_EQ(eval::metrics_of(rig::options("perplexity", "normalize_by_seqlen = true"))[0].unit,
            "nats/token");
  EXPECT_EQ(eval::metrics_of(rig::options("perplexity"))[0].unit, "nats/caption");
}

// A deck may use exactly the names of a result.
TEST(Perplexity, ValuesHaveTheNamesOfTheRegistry) {
  const eval::Result result = evaluate({}).results[0];
  std::vector<std::string> names;
  for (const auto& [name, number] : result.values) names.push_back(name);
  std::vector<std::string> declared;
  for (const eval::Metric& m : eval::metrics_of(rig::options("perplexity"))) {
    declared.push_back(m.name);
    EXPECT_FALSE(m.unit.empty() || m.doc.empty()) << m.name;
  }
  EXPECT_EQ(declared, names);
}

// shuffle_images pairs a caption with the image half a set away, so neighbours do not swap their
// images.
TEST(Perplexity, ShuffledImagesAreHalfASetAway) {
  for (Setting s : kSettings) {
    if (s.examples < 2) continue;
    s.shuffle_images = true;
    SCOPED_TRACE(fmt::format("{} examples, {} ranks", s.examples, s.ranks));
    const Outcome out = evaluate(s);
    std::set<int64_t> given;
    for (const auto& [caption, images] : out.images) {
      ASSERT_EQ(images.size(), 1u);
      EXPECT_EQ(images[0], (caption + s.examples / 2) % s.examples);
      EXPECT_NE(images[0], caption);
      given.insert(images[0]);
    }
    EXPECT_EQ(int64_t(given.size()), s.examples) << "every image is given once";
    // Only the images differ: captions and divisors are those of the plain evaluation.
    Setting plain = s;
    plain.shuffle_images = false;
    EXPECT_EQ(out.results[0].values, evaluate(plain).results[0].values);
  }
}

TEST(Perplexity, ShuffledImagesNeedTwoExamples) {
  const data::Dataset one = rig::numbers("labels", 1), two = rig::numbers("labels", 2);
  perplexity(true)->check(two);
  perplexity(false)->check(one);
  try {
    perplexity(true)->check(one);
    ADD_FAILURE() << "one image was accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::data);
    for (const char* part : {"shuffle_images", "[data.val]", "holds 1 example"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Perplexity, HasNoValueWithoutTokens) {
  const eval::Result result = evaluate({.examples = 5, .tokens = 0}).results[0];
  EXPECT_TRUE(result.values.empty());
  EXPECT_EQ(result.examples, 5);
}

TEST(Perplexity, AnInterruptedEvaluationHasNoValue) {
  for (int64_t after : {0, 1, 3}) {
    const Outcome out = evaluate({.examples = 40, .ranks = 2, .interrupt_after = after});
    for (const eval::Result& result : out.results) {
      EXPECT_TRUE(result.interrupted);
      EXPECT_TRUE(result.values.empty());
    }
    EXPECT_EQ(out.calls, (std::vector<int64_t>{after, after}));
  }
}

}  // namespace
