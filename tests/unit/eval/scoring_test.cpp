// SPDX-License-Identifier: Apache-2.0
// Tests zero-shot classification with a made-up likelihood of texts: ranks of classes, prompts,
// lengths and priors, for every set size and number of ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cut_rig.hpp"
#include "eval/confusions.hpp"
#include "io/files.hpp"
#include "pair_rig.hpp"

namespace {

constexpr int64_t kNames = 7, kTextLength = 9;
const std::vector<std::string> kClasses = {"cat", "a dog", "cow", "ox", "hen", "cow", "yak"};
const char* const kClassKeys =
    "classes = [\"cat\", \"a dog\", \"cow\", \"ox\", \"hen\", \"cow\", \"yak\"]\n";

// Images with labels, whose texts are tokenized to bytes.
class Labelled : public data::Source {
 public:
  explicit Labelled(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("labelled:{}", index); }
  std::string summary() const override { return ""; }
  static int64_t label(int64_t index) { return index * 5 % kNames; }
  data::Sample read(int64_t index) const override {
    data::Array image(device::DType::f32, {1}), label(device::DType::i32, {});
    image.f32()[0] = float(index + 1);
    *label.i32() = int32_t(Labelled::label(index));
    data::Sample sample;
    sample["image"] = std::move(image);
    sample["label"] = std::move(label);
    sample["text"] = std::string("x");
    return sample;
  }
  data::Spec spec() const {
    return {{"image", data::FieldSpec::array(device::DType::f32, {1})},
            {"label", data::FieldSpec::array(device::DType::i32, {})},
            {"text", data::FieldSpec::characters()}};
  }

 private:
  int64_t size_;
};

data::Dataset labelled(int64_t examples, const std::string& keep =
                                             "keep(\"image\", \"label\", "
                                             "\"labels\")") {
  auto source = std::make_unique<Labelled>(examples);
  const data::Spec spec = source->spec();
  const data::Tokenizers tokenizers({{"bytes", data::tokenizer_rows().at("bytes").make_options()}});
  const std::string ops =
      fmt::format("tokenize(\"bytes\", max_len={}, eos=\"yes\") | {}", kTextLength, keep);
  return {"val", std::move(source), data::Pipeline(ops, spec, {.tokenizers = &tokenizers})};
}

// Returns the likelihood of a text with these ids: a different number for almost each pair. Longer
// texts are less likely.
double pair_likelihood(int64_t image, const int32_t* ids, int64_t length) {
  double sum = 0;
  for (int64_t l = 0; l < length && ids[l]; ++l)
    sum -= 1 + double((uint32_t(ids[l]) * 37u + uint32_t(image * 11 + l) * 101u) % 64u) / 64;
  return sum;
}

// The published tokens of a text: its bytes, the end, padding.
std::vector<int32_t> ids_of(const std::string& text) {
  std::vector<int32_t> ids;
  for (char c : text) ids.push_back(3 + int32_t(uint8_t(c)));
  ids.push_back(1);
  ids.resize(size_t(kTextLength), 0);
  return ids;
}

struct Rules {
  std::vector<std::string> prompts = {"{}"};
  bool by_length = false, prior = false;
  std::string keys() const {
    std::string list;
    for (const std::string& p : prompts)
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", p);
    return fmt::format(
        "{}prompts = [{}]\nnormalize_by_length = {}\nsubtract_prior = {}\nk = [1, 3]\n", kClassKeys,
        list, by_length, prior);
  }
};

// Returns each image's classes by their likelihoods, the most likely one first, from all pairs.
std::vector<std::vector<int>> expected_orders(int64_t examples, const Rules& rules) {
  auto score = [&](int64_t image, const std::string& text) {
    const std::vector<int32_t> ids = ids_of(text);
    const double s = pair_likelihood(image, ids.data(), kTextLength);
    return rules.by_length ? s / double(text.size() + 1) : s;
  };
  std::vector<std::vector<int>> orders;
  for (int64_t e = 0; e < examples; ++e) {
    std::vector<double> of_class;
    for (const std::string& name : kClasses) {
      double likelihood = 0;
      for (const std::string& prompt : rules.prompts) {
        const std::string text = std::string(prompt).replace(prompt.find("{}"), 2, name);
        double prior = 0;
        for (int64_t other = 0; rules.prior && other < examples; ++other)
          prior += score(other, text) / double(examples);
        likelihood += std::exp(score(e, text) - prior);
      }
      of_class.push_back(std::log(likelihood / double(rules.prompts.size())));
    }
    std::vector<int> order(size_t(kNames), 0);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return of_class[size_t(a)] > of_class[size_t(b)] + 1e-12;
    });
    orders.push_back(order);
  }
  return orders;
}

// Returns top1 and top3 as their definitions say.
std::vector<double> expected_tops(int64_t examples, const Rules& rules) {
  const std::vector<std::vector<int>> orders = expected_orders(examples, rules);
  std::vector<double> hits(2, 0.0);
  for (int64_t e = 0; e < examples; ++e) {
    const std::vector<int>& order = orders[size_t(e)];
    const auto place =
        std::find(order.begin(), order.end(), int(Labelled::label(e))) - order.begin();
    hits[0] += place < 1;
    hits[1] += place < 3;
  }
  return {hits[0] / double(examples), hits[1] / double(examples)};
}

TEST(Scoring, CountsClassesWithTheMostLikelyCaptions) {
  const Rules all[] = {{},
                       {.by_length = true},
                       {.prior = true},
                       {.prompts = {"my {}", "{}!"}},
                       {.prompts = {"a {}", "{}!"}, .by_length = true, .prior = true}};
  for (const Rules& rules : all)
    for (int64_t examples : {1, 2, 3, 5, 7, 40}) {
      const data::Dataset set = labelled(examples);
      const std::vector<double> want = expected_tops(examples, rules);
      const eval::EvalOptions options = rig::options("scoring", rules.keys());
      eval::make_evaluator(options)->check(set);
      for (int64_t batch : {1, 4, 32})
        for (int size : {1, 2, 3})
          for (const eval::Result& r :
               rig::evaluate_pairs(options, set, batch, size, pair_likelihood)) {
            ASSERT_EQ(r.values.size(), 2u);
            EXPECT_EQ(r.values[0], (std::pair<std::string, double>("top1", want[0])))
                << rules.keys() << examples << " examples, batch " << batch << ", " << size;
            EXPECT_EQ(r.values[1], (std::pair<std::string, double>("top3", want[1])));
            EXPECT_EQ(r.examples, examples);
          }
    }
  EXPECT_NE(expected_tops(40, all[0]), expected_tops(40, all[1]));
  EXPECT_NE(expected_tops(40, all[0]), expected_tops(40, all[2]));
  EXPECT_NE(expected_tops(40, all[0]), expected_tops(40, all[3]));
}

// Checks confusions.json against counts over all pairs of a class and another one.
void expect_confusions(const nlohmann::json& got, int64_t examples, const Rules& rules) {
  const std::vector<std::vector<int>> orders = expected_orders(examples, rules);
  auto count = [&](int64_t label, int64_t predicted) {  // -1: any class
    int64_t n = 0;
    for (int64_t e = 0; e < examples; ++e)
      n += (label < 0 || Labelled::label(e) == label) &&
           (predicted < 0 || orders[size_t(e)][0] == predicted);
    return n;
  };
  int64_t correct = 0;
  ASSERT_EQ(got.at("classes").size(), kClasses.size());
  for (int64_t c = 0; c < kNames; ++c) {
    const nlohmann::json& row = got.at("classes").at(size_t(c));
    EXPECT_EQ(row.at("name"), kClasses[size_t(c)]);
    EXPECT_EQ(row.at("images"), count(c, -1));
    EXPECT_EQ(row.at("correct"), count(c, c));
    EXPECT_EQ(row.at("predicted"), count(-1, c));
    correct += count(c, c);
    nlohmann::json wrong = nlohmann::json::array();
    for (int64_t images = examples; images > 0; --images)
      for (int64_t other = 0; other < kNames; ++other)
        if (other != c && count(c, other) == images) wrong.push_back({other, images});
    EXPECT_EQ(row.at("wrong"), wrong) << "class " << c;
  }
  EXPECT_EQ(got.at("images"), examples);
  EXPECT_EQ(got.at("correct"), correct);
}

TEST(Scoring, WritesConfusions) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("scoring_{}", getpid())).string();
  for (const Rules& rules :
       {Rules{.by_length = true}, Rules{.prompts = {"a {}", "{}!"}, .prior = true}})
    for (int64_t examples : {1, 2, 3, 5, 7, 40, 402})
      for (const auto& [batch, size] : {std::pair<int64_t, int>{1, 1}, {4, 2}, {32, 3}, {7, 4}}) {
        SCOPED_TRACE(fmt::format("{} images, batches of {}, {} ranks", examples, batch, size));
        rig::evaluate_pairs(rig::options("scoring", rules.keys()), labelled(examples), batch, size,
                            pair_likelihood, 1000000, folder);
        expect_confusions(nlohmann::json::parse(io::read_file(folder + "/confusions.json")),
                          examples, rules);
        std::filesystem::remove_all(folder);
      }
  // A broken model has none.
  auto broken = [](int64_t image, const int32_t*, int64_t) { return image == 3 ? NAN : -1.0; };
  rig::evaluate_pairs(rig::options("scoring", kClassKeys), labelled(5), 2, 2, broken, 1000000,
                      folder);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// Class 0 is taken for class c in c images, so the ten most frequent ones are the last ten.
TEST(Scoring, ConfusionsOfAThousandClassesStaySmall) {
  std::vector<std::string> names;
  for (int64_t c = 0; c < 1000; ++c) names.push_back(fmt::format("a class with number {}", c));
  std::vector<int64_t> labels, predicted;
  for (int64_t c = 1; c < 1000; ++c) {
    labels.insert(labels.end(), size_t(c), 0);
    predicted.insert(predicted.end(), size_t(c), c);
    for (int64_t other = 0; other < 50; ++other) {
      labels.push_back(c);
      predicted.push_back(other);
    }
  }
  const std::string text = eval::confusions_json(names, labels, predicted);
  EXPECT_LT(text.size(), 200u << 10);
  const auto rows = nlohmann::json::parse(text).at("classes");
  nlohmann::json wrong = nlohmann::json::array();
  for (int64_t c = 999; c > 989; --c) wrong.push_back({c, c});
  EXPECT_EQ(rows.at(0).at("wrong"), wrong);
  EXPECT_EQ(rows.at(0).at("correct"), 0);
  EXPECT_EQ(rows.at(7).at("correct"), 1);
  EXPECT_EQ(rows.at(999).at("wrong").size(), 10u);
  EXPECT_EQ(rows.at(999).at("wrong").at(0), (nlohmann::json{0, 1}));
}

// "cow" occurs twice: class 2 comes before class 5, which can only be second.
TEST(Scoring, AmongEqualClassesTheFirstWins) {
  const data::Dataset set = labelled(7);
  auto cow = [](int64_t, const int32_t* ids, int64_t length) {
    return ids_of("cow") == std::vector<int32_t>(ids, ids + length) ? -1.0 : -5.0;
  };
  const auto results = rig::evaluate_pairs(
      rig::options("scoring", std::string(kClassKeys) + "k = [1, 2]"), set, 2, 1, cow);
  EXPECT_EQ(results[0].values[0].second, 1.0 / 7) << "class 2";
  EXPECT_EQ(results[0].values[1].second, 2.0 / 7) << "classes 2 and 5";
}

// A model with embeddings scores the prompts of a class together.
TEST(Scoring, CosinesAreThoseOfWholeClasses) {
  for (const bool prior : {false, true}) {
    const Rules rules{.prompts = {"my {}", "{}!"}, .prior = prior};
    constexpr int64_t kImages = 40;
    std::vector<std::vector<double>> scores;
    for (int64_t e = 0; e < kImages; ++e)
      for (const std::string& name : kClasses) {
        double mean = 0;
        for (const std::string& prompt : rules.prompts)
          mean += pair_likelihood(
                      e, ids_of(std::string(prompt).replace(prompt.find("{}"), 2, name)).data(),
                      kTextLength) /
                  2;
        if (name == kClasses[0]) scores.emplace_back();
        scores.back().push_back(mean);
      }
    std::vector<double> priors(size_t(kNames), 0.0);
    for (const auto& row : scores)
      for (size_t c = 0; prior && c < row.size(); ++c) priors[c] += row[c] / double(kImages);
    double hits = 0;
    for (int64_t e = 0; e < kImages; ++e) {
      size_t best = 0;
      for (size_t c = 1; c < priors.size(); ++c)
        if (scores[size_t(e)][c] - priors[c] > scores[size_t(e)][best] - priors[best] + 1e-12)
          best = c;
      hits += best == size_t(Labelled::label(e));
    }
    for (const int size : {1, 3})
      for (const eval::Result& r : rig::evaluate_pairs<rig::MadeUpCosines>(
               rig::options("scoring", rules.keys()), labelled(kImages), 4, size, pair_likelihood))
        EXPECT_EQ(r.values[0].second, hits / double(kImages)) << "prior " << prior;
  }
}

TEST(Scoring, CutsChangeNothing) {
  for (const Rules& rules : {Rules{}, Rules{.prompts = {"{}", "a {}"}, .prior = true}})
    rig::expect_cuts_change_nothing(rig::options("scoring", rules.keys()), labelled(29), [] {
      return std::make_unique<rig::MadeUpPairs>(pair_likelihood);
    });
}

TEST(Scoring, PredictsTheFirstOfEqualClasses) {
  const data::Dataset set = labelled(1);
  const eval::EvalOptions options = rig::options("scoring", kClassKeys);
  for (const auto& [best, wanted] : {std::pair{"cow", 2}, {"yak", 6}, {"none", 0}}) {
    rig::MadeUpPairs pass([best = best](int64_t, const int32_t* ids, int64_t length) {
      return ids_of(best) == std::vector<int32_t>(ids, ids + length) ? -1.0 : -5.0;
      return ids_of(best) == std::vector<int32_t>(ids, ids + length) ? -1.0 : -5.0;
    });
    const auto predictor = eval::row_of(options).predicts->make(*options.options, set, pass, 3);
    const float number = 1;
    const models::HostBatch batch{
        .features = {{"image", device::view(&number, 1)}}, .examples = 1, .first_position = 0};
    std::vector<double> scores(size_t(kNames), NAN);
    int32_t prediction = -1;
    const device::View columns[] = {{scores.data(), device::DType::f64, kNames},
                                    device::view(&prediction, 1)};
    rig::forward(pass, batch, [&](nn::Context& ctx, const models::Inputs& in) {
      predictor->run(ctx, in, columns);
    });
    EXPECT_EQ(prediction, wanted) << best;
    EXPECT_EQ(scores[5], scores[2]);
  }
}

TEST(Scoring, ABrokenModelHasNoValue) {
  auto broken = [](int64_t image, const int32_t*, int64_t) { return image == 3 ? NAN : -1.0; };
  for (const eval::Result& r :
       rig::evaluate_pairs(rig::options("scoring", kClassKeys), labelled(5), 2, 2, broken))
    for (const auto& [name, value] : r.values) EXPECT_TRUE(std::isnan(value)) << name;
  // One class of one image is enough, whether it is the image's own or another one.
  for (const std::string& name : kClasses)
    for (const bool prior : {false, true}) {
      auto one = [&](int64_t image, const int32_t* ids, int64_t length) {
        return image == 3 && ids_of(name) == std::vector<int32_t>(ids, ids + length) ? NAN : -1.0;
      };
      const Rules rules{.prior = prior};
      for (const eval::Result& r :
           rig::evaluate_pairs(rig::options("scoring", rules.keys()), labelled(5), 2, 2, one))
        for (const auto& [value_name, value] : r.values)
          EXPECT_TRUE(std::isnan(value)) << value_name << " without " << name;
    }
}

TEST(Scoring, AnInterruptedEvaluationHasNoValue) {
  for (const eval::Result& r : rig::evaluate_pairs(rig::options("scoring", kClassKeys),
                                                   labelled(40), 4, 2, pair_likelihood, 2)) {
    EXPECT_TRUE(r.interrupted);
    EXPECT_TRUE(r.values.empty());
  }
}

TEST(Scoring, ReadsClassesFromAFile) {
  const std::string path = testing::TempDir() + "scoring_classes.txt";
  std::ofstream(path) << "\xEF\xBB\xBF"
                         "cat\r\na dog\n\ncow\nox\nhen\ncow\n yak \n";
  const data::Dataset set = labelled(40);
  const auto of = [&](const std::string& keys) {
    return rig::evaluate_pairs(rig::options("scoring", keys), set, 8, 1, pair_likelihood)[0].values;
  };
  EXPECT_EQ(of(fmt::format("classes_file = \"{}\"", path)), of(kClassKeys));
}

TEST(Scoring, RefusesWhatItCannotScore) {
  auto refuses = [](const data::Dataset& set, const std::string& keys, const std::string& part) {
    try {
      eval::make_evaluator(rig::options("scoring", keys))->check(set);
      ADD_FAILURE() << part;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::data);
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refuses(labelled(3, "keep(\"image\", \"labels\")"), kClassKeys, "needs the field label");
  refuses(rig::numbers("label", 3), kClassKeys, "no op tokenize makes the field \"labels\"");
  refuses(labelled(3), "classes = [\"cat\", \"hippopotamus\"]", "\"hippopotamus\" has 13 tokens");
  refuses(labelled(3), "classes_file = \"/no/such/file\"", "no file '/no/such/file'");
  // Sample 1 has label 5, and there are captions of two classes.
  rig::Ranks alone(1);
  rig::MadeUpPairs pass(pair_likelihood);
  const data::Dataset two = labelled(2);
  try {
    eval::make_evaluator(rig::options("scoring", "classes = [\"cat\", \"ox\"]"))
        ->run({.world = alone,
               .dataset = two,
               .loader = {},
               .batch = 1,
               .pass = &pass,
               .forward = rig::runs_of(pass)});
    ADD_FAILURE() << "label 5 was accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::data);
    EXPECT_NE(std::string(e.what()).find("label 5 of the image at position 1"), std::string::npos)
        << e.what();
  }
}

TEST(Scoring, RefusesKeysThatMeanNothing) {
  for (const auto& [keys, part] :
       {std::pair<std::string, const char*>{"", "missing"},
        {std::string(kClassKeys) + "classes_file = \"a\"", "give one of the two"},
        {std::string(kClassKeys) + "prompts = []", "names no prompt"},
        {std::string(kClassKeys) + "prompts = [\"a\"]", "must have {} exactly once"},
        {std::string(kClassKeys) + "prompts = [\"{} {}\"]", "must have {} exactly once"},
        {std::string(kClassKeys) + "k = [2, 2]", "2 is listed twice"}}) {
    rig::Root root;
    config::Deck deck(
        config::DeckSource{
            "deck.toml",
            fmt::format("[eval]\nkind = \"scoring\"\ndata = \"val\"\nevery_steps = 1\n{}\n", keys),
            {}},
        root);
    EXPECT_NE(fmt::format("{}", fmt::join(deck.problems().lines, " ")).find(part),
              std::string::npos)
        << part << ": " << fmt::format("{}", fmt::join(deck.problems().lines, " "));
  }
}

}  // namespace
