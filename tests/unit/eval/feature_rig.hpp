// SPDX-License-Identifier: Apache-2.0
// Made-up features of labelled images, and evaluators on them, for evaluators that fit something to
// one set and test it on another.
#pragma once

#include <cmath>

#include "base/random.hpp"
#include "models/embedder.hpp"
#include "rig.hpp"
#include "thread_ranks.hpp"

namespace feature_rig {

constexpr int64_t kWidth = 5;
constexpr int32_t kClasses = 3;

// Sets of labelled images. The pixels of an image are its number, from 1, and the number of its
// set.
struct Images {
  std::string name;
  int64_t size;
  float set = 1;
  int32_t label_of(int64_t i) const {
    return int32_t(base::Stream(3, name).bits(uint64_t(i)) % kClasses);
  }
  // Returns 1 if image i shows class c (its label, perhaps others), 0 if not, -1 if not known.
  float target_of(int64_t i, int32_t c) const {
    const uint32_t bits = base::Stream(6, name).bits(uint64_t(i * kClasses + c));
    return bits % 7 == 0 ? -1.0f : float(c == label_of(i) || bits % 5 == 0);
  }
  // Images of a class are alike, and the views of an image more so.
  float feature_of(int64_t i, int64_t f, int64_t view = 0) const {
    const base::Stream noise(4, name), of_view(7, name);
    const double own = base::Stream(5, "centre").normal(uint64_t(label_of(i) * kWidth + f)) +
                       noise.normal(uint64_t(i * kWidth + f));
    return float(own + (view ? of_view.normal(uint64_t((view * size + i) * kWidth + f)) / 4 : 0));
  }
};

class ImageSource : public data::Source {
 public:
  explicit ImageSource(Images images, int32_t bad_label = 0)
      : images_(std::move(images)), bad_label_(bad_label) {}
  int64_t size() const override { return images_.size; }
  std::string key(int64_t index) const override { return fmt::format("image:{}", index); }
  std::string summary() const override { return ""; }
  data::Sample read(int64_t index) const override {
    data::Array image(rig::DType::f32, {2}), label(rig::DType::i32, {}),
        targets(rig::DType::f32, {kClasses});
    image.f32()[0] = float(index + 1);
    image.f32()[1] = images_.set;
    *label.i32() = bad_label_ ? bad_label_ : images_.label_of(index);
    for (int32_t c = 0; c < kClasses; ++c) targets.f32()[c] = images_.target_of(index, c);
    data::Sample sample;
    sample["image"] = std::move(image);
    sample["label"] = std::move(label);
    sample["targets"] = std::move(targets);
    return sample;
  }

 private:
  Images images_;
  int32_t bad_label_;
};

inline data::Dataset data_set(const Images& images, int32_t bad_label = 0) {
  return {images.name, std::make_unique<ImageSource>(images, bad_label),
          data::Pipeline("",
                         {{"image", data::FieldSpec::array(rig::DType::f32, {2})},
                          {"label", data::FieldSpec::array(rig::DType::i32, {})},
                          {"targets", data::FieldSpec::array(rig::DType::f32, {kClasses})}},
                         {})};
}

// Gives the images of two sets their features.
class MadeUpFeatures : public models::EmbedPass {
 public:
  // The features of the last image of the set `broken` are NaN.
  MadeUpFeatures(Images first, Images second, std::string broken = {})
      : sets_{std::move(first), std::move(second)},
        broken_(std::move(broken)),
        taps_{{"pre_logits", {kWidth}, ""}} {}
  std::string name() const override { return "embed(pre_logits)"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  const std::vector<models::Tap>& taps() const override { return taps_; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void run(nn::Context&, const models::Inputs&, const std::vector<float*>& features) override {
    ++calls;
    for (int64_t i = 0; i < batch_.examples; ++i) {
      const float* pixels = batch_.features.at("image").f32() + 2 * i;
      const bool padding = pixels[0] == 0;
      const Images& images = sets_[pixels[1] == sets_[0].set ? 0 : 1];
      const int64_t e = int64_t(pixels[0]) - 1, position = batch_.first_position + i;
      EXPECT_TRUE(padding || e == position % images.size) << images.name;
      for (int64_t f = 0; f < kWidth; ++f)
        features.at(0)[i * kWidth + f] = padding ? 1e9f
                                         : images.name == broken_ && e + 1 == images.size
                                             ? NAN
                                             : images.feature_of(e, f, position / images.size);
    }
  }
  int64_t calls = 0;

 private:
  Images sets_[2];
  std::string broken_;
  std::vector<models::Tap> taps_;
  mutable models::HostBatch batch_;
};

struct Work {
  int64_t train = 40, test = 23, batch = 6;
  int ranks = 1;
  std::string keys = {};
  int64_t interrupt_after = -1;  // questions of a rank
  std::string broken = {};       // a set with an image whose features are NaN: "few" or "val"
  int threads = 1;
  std::string journal = {};  // folder; none: nothing is kept
  int of_node = 1;           // ranks that share memory
};

// True for kinds that read no training set.
inline bool reads_one_set(const std::string& kind) { return kind == "rankme" || kind == "lidar"; }

inline eval::EvalOptions options(const std::string& kind, const std::string& keys) {
  return rig::options(kind, (reads_one_set(kind) ? "" : "train_data = \"few\"\n") + keys);
}

// Returns the result of each rank.
inline std::vector<eval::Result> evaluate(const std::string& kind, const Work& w) {
  const Images train{"few", w.train}, test{"val", w.test, 2};
  const data::Dataset train_set = data_set(train), test_set = data_set(test);
  const std::unique_ptr<eval::Evaluator> evaluator = eval::make_evaluator(options(kind, w.keys));
  std::vector<eval::Result> out(static_cast<size_t>(w.ranks));
  rig::ThreadRanks(w.ranks, w.of_node).run_all([&](comm::Comm& world) {
    device::Ledger ledger;
    MadeUpFeatures pass(train, test, w.broken);
    std::unique_ptr<eval::Journal> journal;
    if (!w.journal.empty())
      journal =
          std::make_unique<eval::Journal>(world, w.journal, "test", eval::Journal::Identity{});
    int64_t questions = 0;
    out[size_t(world.rank())] =
        evaluator->run({.world = world,
                        .dataset = test_set,
                        .loader = {},
                        .batch = w.batch,
                        .pass = &pass,
                        .forward = rig::runs_of(pass),
                        .interrupted = [&] { return questions++ == w.interrupt_after; },
                        .further = {{"train_data", &train_set}},
                        .journal = journal.get(),
                        .threads = w.threads,
                        .ledger = &ledger});
    const bool first = world.rank() % w.of_node == 0;
    EXPECT_EQ(ledger.peak_of("features") > 0, first) << "the first rank of a node counts";
    EXPECT_EQ(ledger.entries().at("features").now, 0);
  });
  return out;
}

}  // namespace feature_rig
