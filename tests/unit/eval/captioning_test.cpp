// SPDX-License-Identifier: Apache-2.0
// Tests the captioning evaluator with a made-up model: every image gets one caption, on any number
// of ranks, and captions.jsonl and the metrics have the model's captions.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cut_rig.hpp"
#include "eval/captions/caption_metrics.hpp"
#include "eval/captions/generated_caption.hpp"
#include "eval/input_images.hpp"
#include "models/captioner.hpp"
#include "rig.hpp"

namespace {

std::string reference_of(int64_t i) { return fmt::format("a cat number {} sits here", i % 7); }
std::string caption_of(int64_t i) {
  return i % 3 ? reference_of(i) : fmt::format("a dog \"{}\" sits", i);
}

// Sample i has its number as an image, and a text; `broken` cannot be read.
class Captioned : public data::Source {
 public:
  explicit Captioned(int64_t size, int64_t broken = -1) : size_(size), broken_(broken) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("image {}", index); }
  std::string summary() const override { return ""; }
  data::Sample read(int64_t index) const override {
    if (index == broken_) base::fail(base::Exit::data, "broken");
    data::Array image(device::DType::f32, {1});
    image.f32()[0] = float(index);
    data::Sample sample;
    sample["image"] = std::move(image);
    sample["text"] = reference_of(index);
    return sample;
  }

 private:
  int64_t size_, broken_;
};

data::Dataset captioned(int64_t size, const std::string& ops, int64_t broken = -1) {
  static const data::Tokenizers tokenizers(
      {{"b", data::tokenizer_rows().at("bytes").make_options()}});
  return {"val", std::make_unique<Captioned>(size, broken),
          data::Pipeline(ops,
                         {{"image", data::FieldSpec::array(device::DType::f32, {1})},
                          {"text", data::FieldSpec::characters()}},
                         {.tokenizers = &tokenizers, .open = true})};
}

class MadeUpCaptions : public models::CaptionPass {
 public:
  std::string name() const override { return "caption"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  void plan(nn::Context&, const models::Inputs&) override {}
  void run(nn::Context&, const models::Inputs&, const models::DecodeOptions& options,
           int64_t examples, int64_t first_position,
           std::vector<models::Caption>& captions) override {
    asked = options;
    captions.clear();
    for (int64_t b = 0; b < examples; ++b) {
      const auto image = int64_t(batch_.features.at("image").f32()[b]);
      EXPECT_EQ(image, shuffled_examples
                           ? (first_position + b + shuffled_examples / 2) % shuffled_examples
                           : first_position + b + (first_position + b == broken));
      models::Caption c{{}, -double(image), image % 2 == 0};
      for (char letter : caption_of(image)) c.ids.push_back(3 + uint8_t(letter));
      c.ids.push_back(300);  // an id that the tokenizer does not know
      if (first_position + b < options.attention) {
        c.attention.assign(c.ids.size() * 2, 0.25f);
        c.attention[0] = float(first_position + b);
      }
      captions.push_back(std::move(c));
    }
  }
  std::pair<int64_t, int64_t> grid() const override { return {2, 1}; }
  models::DecodeOptions asked;
  int64_t broken = -1;            // sample whose successor takes its place
  int64_t shuffled_examples = 0;  // the size of a set whose images are shuffled

 private:
  mutable models::HostBatch batch_;
};

// Ranks one after the other: texts of the first round are gathered for the second.
class Gathering : public rig::Ranks {
 public:
  using Ranks::Ranks;
  std::vector<std::string> gather_text(const std::string& text) override {
    texts.resize(size_t(size()));
    texts[size_t(rank())] = text;
    // In the first round, texts of later ranks are not known yet, so they are empty.
    for (size_t r = size_t(rank()) + 1; collecting && r < texts.size(); ++r) texts[r].clear();
    return texts;
  }
  std::vector<std::string> texts;
  bool collecting = true;
};

std::vector<std::pair<std::string, double>> expected(int64_t n) {
  std::vector<std::string> captions;
  std::vector<std::vector<std::string>> references;
  double likelihood = 0, ended = 0;
  for (int64_t i = 0; i < n; ++i) {
    captions.push_back(caption_of(i));
    references.push_back({reference_of(i)});
    likelihood -= double(i) / double(n);
    ended += i % 2 == 0 ? 1.0 / double(n) : 0;
  }
  const eval::CaptionScores s = eval::caption_metrics(captions, references).set;
  return {{"bleu1", s.bleu[0]},           {"bleu2", s.bleu[1]},   {"bleu3", s.bleu[2]},
          {"bleu4", s.bleu[3]},           {"rouge_l", s.rouge_l}, {"cider_d", s.cider_d},
          {"log_likelihood", likelihood}, {"ended", ended}};
}

TEST(Captioning, CutsChangeNothing) {
  rig::expect_cuts_change_nothing(
      rig::options("captioning", "attention = 3"),
      captioned(29, "tokenize('b', max_len=64, eos='sticky')|keep('image', 'labels')"),
      [] { return std::make_unique<MadeUpCaptions>(); });
}

TEST(Captioning, WritesEveryCaptionAndScoresThem) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("captioning_{}", getpid())).string();
  for (int64_t n : {1, 2, 5, 40})
    for (int64_t batch : {1, 4, 32})
      for (int ranks : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} images, batches of {}, {} ranks", n, batch, ranks));
        const data::Dataset set =
            captioned(n, "tokenize('b', max_len=64, eos='sticky')|keep('image', 'labels')");
        const auto evaluator = eval::make_evaluator(rig::options(
            "captioning", "method = \"beam\"\nbeams = 3\nlength_penalty = 0.5\nattention = 3"));
        evaluator->check(set);
        Gathering all(ranks);
        std::vector<eval::Result> results(static_cast<size_t>(ranks));
        all.run_all([&](int rank, bool first_round) {
          all.collecting = first_round;
          MadeUpCaptions pass;
          eval::Context context{.world = all,
                                .dataset = set,
                                .loader = {},
                                .batch = batch,
                                .pass = &pass,
                                .forward = rig::runs_of(pass),
                                .folder = rank == 0 && !first_round ? folder : ""};
          // In the first round not all captions are known, which caption_metrics may refuse.
          try {
            results[size_t(rank)] = evaluator->run(context);
          } catch (const base::Error& e) {
            EXPECT_TRUE(first_round) << e.what();
          }
          if (rank == 0 || n > batch) {
            EXPECT_EQ(pass.asked.places(), 3);
            EXPECT_EQ(pass.asked.end_id, 1);
          }
        });
        for (const eval::Result& r : results) {
          EXPECT_EQ(r.examples, n);
          ASSERT_EQ(r.values.size(), 8);
          const auto want = expected(n);
          for (size_t i = 0; i < 8; ++i) {
            EXPECT_EQ(r.values[i].first, want[i].first);
            EXPECT_NEAR(r.values[i].second, want[i].second, 1e-12) << want[i].first;
          }
        }
        std::ifstream file(folder + "/captions.jsonl");
        int64_t i = 0;
        for (std::string line; std::getline(file, line); ++i) {
          const auto row = nlohmann::json::parse(line);
          EXPECT_EQ(row.at("position"), i);
          EXPECT_EQ(row.at("key"), fmt::format("image {}", i));
          EXPECT_EQ(row.at("caption"), caption_of(i));
          EXPECT_EQ(row.at("references"), nlohmann::json({reference_of(i)}));
          EXPECT_EQ(row.at("log_likelihood"), -double(i));
          EXPECT_EQ(row.at("ended"), i % 2 == 0);
          EXPECT_EQ(row.contains("attention"), i < 3);
          EXPECT_EQ(row.contains("tokens"), i < 3);
          if (i < 3) {
            EXPECT_EQ(row.at("attention").size(), caption_of(i).size() + 1);
            EXPECT_EQ(row.at("attention")[0], nlohmann::json({{double(i)}, {0.25}}));
          }
        }
        EXPECT_EQ(i, n);
        std::filesystem::remove_all(folder);
      }
}

TEST(Captioning, GivesCaptionsAnotherImage) {
  const int64_t n = 5;
  const data::Dataset set =
      captioned(n, "tokenize('b', max_len=64, eos='sticky')|keep('image', 'labels')");
  const auto evaluator = eval::make_evaluator(rig::options("captioning", "shuffle_images = true"));
  evaluator->check(set);
  EXPECT_THROW(evaluator->check(
                   captioned(1, "tokenize('b', max_len=64, eos='sticky')|keep('image', 'labels')")),
               base::Error);
  Gathering alone(1);
  eval::Result result;
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("shuffled_{}", getpid())).string();
  alone.run_all([&](int, bool) {
    MadeUpCaptions pass;
    pass.shuffled_examples = n;
    eval::Context context{.world = alone,
                          .dataset = set,
                          .loader = {},
                          .batch = 2,
                          .pass = &pass,
                          .forward = rig::runs_of(pass),
                          .folder = folder};
    result = evaluator->run(context);
  });
  std::vector<std::string> captions;
  std::vector<std::vector<std::string>> references;
  for (int64_t i = 0; i < n; ++i) {
    captions.push_back(caption_of((i + 2) % n));
    references.push_back({reference_of(i)});
  }
  const eval::CaptionScores want = eval::caption_metrics(captions, references).set;
  EXPECT_NEAR(result.values.at(0).second, want.bleu[0], 1e-12);
  EXPECT_NEAR(result.values.at(5).second, want.cider_d, 1e-12);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// The image, the key and the references of a broken sample's row are those of its substitute.
TEST(Captioning, TakesTheSubstituteOfABrokenSample) {
  const int64_t n = 6, broken = 2;
  const data::Dataset set =
      captioned(n, "tokenize('b', max_len=64, eos='sticky')|keep('image', 'labels')", broken);
  const auto evaluator = eval::make_evaluator(rig::options("captioning"));
  Gathering alone(1);
  eval::Result result;
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("substitute_{}", getpid())).string();
  auto caption = [&](bool substitutes) {
    alone.run_all([&](int, bool) {
      MadeUpCaptions pass;
      pass.broken = broken;
      eval::Context context{.world = alone,
                            .dataset = set,
                            .loader = {},
                            .batch = 4,
                            .pass = &pass,
                            .forward = rig::runs_of(pass),
                            .folder = folder};
      context.loader.substitutes = substitutes;
      result = evaluator->run(context);
    });
  };
  caption(true);
  std::vector<std::string> captions;
  std::vector<std::vector<std::string>> references;
  std::ifstream file(folder + "/captions.jsonl");
  int64_t i = 0;
  for (std::string line; std::getline(file, line); ++i) {
    const int64_t used = i == broken ? 3 : i;
    const auto row = nlohmann::json::parse(line);
    EXPECT_EQ(row.at("position"), i);
    EXPECT_EQ(row.at("key"), fmt::format("image {}", used));
    EXPECT_EQ(row.at("references"), nlohmann::json({reference_of(used)}));
    EXPECT_EQ(row.at("caption"), caption_of(used));
    captions.push_back(caption_of(used));
    references.push_back({reference_of(used)});
  }
  EXPECT_EQ(i, n);
  EXPECT_NEAR(result.values.at(5).second, eval::caption_metrics(captions, references).set.cider_d,
              1e-12);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(caption(false), base::Error);
}

// "a ", "b", an unknown id and half a character, on a grid of 1 x 2 patches.
TEST(Captioning, GivesTokensAndAttention) {
  const auto bytes = data::tokenizer_rows().at("bytes").make_options()->open();
  models::Caption c;
  c.ids = {3 + 'a', 3 + ' ', 300, 3 + 0xc3, 3 + 0xa9};
  c.attention = {0.123456f, 0.876544f, 1, 0, 0.00012345f, 0.99987655f, 0.5f, 0.5f, 0.25f, 0.75f};
  const auto json = nlohmann::json::parse(eval::attention_json(c, *bytes, {1, 2}));
  EXPECT_EQ(json.at("attention"), nlohmann::json::parse("[[[0.123, 0.877]], [[1, 0]], "
                                                        "[[0.000123, 1.0]], [[0.5, 0.5]], "
                                                        "[[0.25, 0.75]]]"));
  ASSERT_EQ(json.at("tokens").size(), 5u);
  EXPECT_EQ(json.at("tokens")[0], "a");
  EXPECT_EQ(json.at("tokens")[1], " ");
  EXPECT_EQ(json.at("tokens")[2], "#300");
  EXPECT_EQ(eval::text_of(c, *bytes), "a \xc3\xa9");
  EXPECT_EQ(eval::attention_json({}, *bytes, {1, 2}), R"({"tokens":[],"attention":[]})");
}

// Images [2,3,3], whose byte i of image n is 20 n + i.
class Pixels : public data::Source {
 public:
  explicit Pixels(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("pixels:{}", index); }
  std::string summary() const override { return ""; }
  data::Sample read(int64_t index) const override {
    data::Array image(device::DType::u8, {2, 3, 3});
    for (int64_t i = 0; i < image.count(); ++i) image.u8()[i] = uint8_t(20 * index + i);
    data::Sample sample;
    sample["image"] = std::move(image);
    return sample;
  }

 private:
  int64_t size_;
};

TEST(Captioning, InputImagesAreTheBytesOfThePictures) {
  const data::Spec spec{{"image", data::FieldSpec::array(device::DType::u8, {2, 3, 3})}};
  std::vector<std::string> files;
  for (const char* ops : {"", "value_range(-1, 1)", "value_range(0, 1)", "value_range(0, 255)"}) {
    const data::Dataset set("val", std::make_unique<Pixels>(12), data::Pipeline(ops, spec, {}));
    files.push_back(eval::input_images_npy(set, 11));
    EXPECT_EQ(files.back(), files.front()) << ops;
  }
  // The header as NumPy's format defines it, then the bytes.
  const std::string& file = files.front();
  const size_t begin = 128;
  ASSERT_EQ(file.size(), begin + 11 * 18);
  EXPECT_EQ(file.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(file.substr(10, 61), "{'descr': '|u1', 'fortran_order': False, 'shape': (11, 2, 3, ");
  EXPECT_EQ(file[begin - 1], '\n');
  for (size_t i = 0; i < 11 * 18; ++i)
    EXPECT_EQ(uint8_t(file[begin + i]), 20 * (i / 18) + i % 18) << i;
}

TEST(Captioning, InputImagesOfFewOrNone) {
  const data::Spec spec{{"image", data::FieldSpec::array(device::DType::u8, {2, 3, 3})}};
  const data::Dataset set("val", std::make_unique<Pixels>(3), data::Pipeline("", spec, {}));
  EXPECT_EQ(eval::input_images_npy(set, 8).size(), 128u + 3 * 18);
  EXPECT_EQ(eval::input_images_npy(set, 0), "");
  EXPECT_EQ(eval::input_images_npy(captioned(3, ""), 8), "") << "no picture";
}

TEST(Captioning, NeedsATokenizer) {
  const auto evaluator = eval::make_evaluator(rig::options("captioning"));
  auto problem = [&](const data::Dataset& set) {
    try {
      evaluator->check(set);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::data);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(problem(captioned(3, "")).find("tokenize(...)"), std::string::npos);
  EXPECT_NE(problem(captioned(0, "")).find("no image"), std::string::npos);
  EXPECT_EQ(problem(captioned(3, "tokenize('b', max_len=9)")), "");
}

}  // namespace
