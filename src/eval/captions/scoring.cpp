// SPDX-License-Identifier: Apache-2.0
// Evaluates zero-shot classification: the class of an image is the one whose texts score best. The
// score is the likelihood of captions (cappa.md 2.3, 9.4), or the cosine with the mean direction of
// a class's texts (siglip.md 4). The result is exact for any size of the set, number of ranks and
// batch size. Writes confusions.json.
#include <algorithm>
#include <cmath>
#include <span>

#include "base/elementary.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "data/sources/plain_text.hpp"
#include "eval/captions/pair_scores.hpp"
#include "eval/confusions.hpp"
#include "io/waiting.hpp"

namespace eval {
namespace {

constexpr const char* kPlace = "{}";  // in a prompt, where the class goes

struct ScoringOptions : config::Table::Variant {
  std::vector<std::string> classes, prompts = {kPlace};
  std::string classes_file, text_data;
  std::vector<int64_t> k = {1, 5};
  PairOptions pairs;
  void bind(config::Table& t) override;
  std::vector<std::string> names() const;
  // Returns the texts of all prompts of each class, class after class.
  models::TextList texts_of(const data::Dataset& set, const std::vector<std::string>& names) const;
};

// Reads the file of the classes, if there is one. Unlike names of folders, captions of two classes
// may be equal: CLIP's names of the ImageNet classes have two such pairs.
std::vector<std::string> ScoringOptions::names() const {
  if (classes_file.empty()) return classes;
  if (!io::exists(classes_file))
    base::fail(base::Exit::data, "classes_file: there is no file '{}'", classes_file);
  std::vector<std::string> names = data::read_list(classes_file, "classes");
  if (names.empty())
    base::fail(base::Exit::data, "classes_file: '{}' holds no class; give one per line",
               classes_file);
  return names;
}

models::TextList ScoringOptions::texts_of(const data::Dataset& set,
                                          const std::vector<std::string>& names) const {
  std::vector<std::string> texts;
  for (const std::string& name : names)
    for (const std::string& prompt : prompts)
      texts.push_back(std::string(prompt).replace(prompt.find(kPlace), 2, name));
  models::TextList list = tokenized(set, texts);
  list.group = int64_t(prompts.size());
  return list;
}

// Writes the scores of the classes to of_class. scores: one for each class, or log-likelihoods
// [classes, prompts], whose likelihoods are added up: logsumexp. All classes have the same number
// of prompts, so the sum of likelihoods ranks classes as the mean does.
void add_prompts(const double* scores, int64_t prompts, std::span<double> of_class) {
  if (prompts == 1) {
    std::copy_n(scores, of_class.size(), of_class.begin());
    return;
  }
  for (double& all : of_class) {
    const double *end = scores + prompts, largest = *std::max_element(scores, end);
    double sum = 0;
    for (const double* s = scores; s < end; ++s) sum += base::math::exp(*s - largest);
    all = largest + base::math::log(sum);
    scores = end;
  }
}

std::string prompt_problem(const std::vector<std::string>& prompts) {
  if (prompts.empty()) return "names no prompt; [\"{}\"] is the class alone";
  for (const std::string& prompt : prompts)
    if (const size_t at = prompt.find(kPlace);
        at == prompt.npos || prompt.find(kPlace, at + 1) != prompt.npos)
      return fmt::format("{} must have {{}} exactly once, in the place of the class",
                         base::quoted(prompt));
  return "";
}

void ScoringOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("classes", classes, "captions of the classes, in the order of the numbers in field label")
      .on_resume(may);
  t.key("classes_file", classes_file,
        "instead of classes: a file with one caption per line; empty lines do not count")
      .unit("path")
      .on_resume(may);
  t.key("prompts", prompts,
        "texts with {} in place of the class; the likelihood of a class is the mean of its "
        "prompts' likelihoods, and its cosine is taken with the mean of their embeddings")
      .check([this] { return prompt_problem(prompts); })
      .on_resume(may);
  bind_k(t, k,
         "an image counts for topK if its class is among the K best ones; among equally good ones "
         "the first come first");
  t.key("text_data", text_data,
        "the data set whose tokenize turns captions of classes into ids; \"\" = `data`. With it, "
        "`data` needs the fields image and label alone")
      .on_resume(may);
  pairs.bind(t);
  const bool refused = classes_file.empty() && t.has("classes_file");  // with its own message
  if (classes.empty() == classes_file.empty() && !refused)
    t.error(classes.empty() ? "classes" : "classes_file",
            classes.empty() ? "missing; give the captions of the classes, or classes_file"
                            : "classes is set, too: give one of the two");
}

// Predicts the class with the best score, as the evaluator ranks them.
class ScoringPredictor : public Predictor {
 public:
  ScoringPredictor(const ScoringOptions& options, const data::Dataset& set,
                   models::PairScorePass& pass)
      : options_(options),
        pass_(pass),
        names_(options.names()),
        texts_(options.texts_of(set, names_)) {
    pass_.begin();
    if (options_.pairs.normalize_by_length)
      for (int64_t n : pass_.tokens(texts_)) lengths_.push_back(double(std::max<int64_t>(n, 1)));
  }

  std::vector<PredictedColumn> columns() const override {
    const bool likelihoods = pass_.kind() == models::PairScore::log_likelihood;
    return {{"score",
             device::DType::f64,
             {int64_t(names_.size())},
             likelihoods ? "nats" : "1",
             likelihoods ? "log-likelihood of each class, as the evaluator ranks them"
                         : "cosine of the image with each class, as the evaluator ranks them"},
            {"prediction",
             device::DType::i32,
             {},
             "1",
             "the class of the largest score; of equal ones the first"}};
  }
  std::vector<std::string> classes() const override { return names_; }
  std::map<std::string, std::string> made_from() const override {
    const auto* ids = reinterpret_cast<const char*>(texts_.ids.data());
    return {{"classes", base::join(names_, "\n")},
            {"prompts", base::join(options_.prompts, "\n")},
            {"tokens", fmt::format("{:016x}", base::xxh3(ids, texts_.ids.size() * 4))},
            {"normalize_by_length", options_.pairs.normalize_by_length ? "true" : "false"}};
  }

  void run(nn::Context& ctx, const models::Inputs& inputs,
           std::span<const device::View> columns) override {
    const int64_t texts = pass_.columns(texts_);
    const size_t classes = names_.size();
    scores_.resize(size_t(ctx.batch * texts));
    pass_.run(ctx, inputs, texts_, scores_.data());
    for (int64_t i = 0; i < ctx.batch; ++i) {
      double* const of_texts = scores_.data() + i * texts;
      for (size_t t = 0; t < lengths_.size(); ++t) of_texts[t] /= lengths_[t];
      const std::span<double> row(columns[0].f64() + i * int64_t(classes), classes);
      add_prompts(of_texts, texts / int64_t(classes), row);
      columns[1].i32()[i] = int32_t(std::max_element(row.begin(), row.end()) - row.begin());
    }
  }

 private:
  ScoringOptions options_;
  models::PairScorePass& pass_;
  std::vector<std::string> names_;
  models::TextList texts_;
  std::vector<double> lengths_;  // tokens of each text; [] unless scores are divided by them
  std::vector<double> scores_;   // [batch, texts, or classes]
};

const Predicts kScoringPredicts = {
    [](const config::Table::Variant& options) {
      std::map<std::string, std::string> problems;
      if (dynamic_cast<const ScoringOptions&>(options).pairs.subtract_prior)
        problems["subtract_prior"] =
            "needs the scores of all images before the first prediction; --mode predict writes "
            "them one by one. Set it to false there, and subtract the column means of `score`";
      return problems;
    },
    [](const models::Model& model, const config::Table::Variant& options) {
      return make_pair_pass(model, dynamic_cast<const ScoringOptions&>(options).pairs);
    },
    [](const config::Table::Variant& options, const data::Dataset& set, models::ForwardPass& pass,
       int64_t) -> std::unique_ptr<Predictor> {
      return std::make_unique<ScoringPredictor>(dynamic_cast<const ScoringOptions&>(options), set,
                                                dynamic_cast<models::PairScorePass&>(pass));
    }};

class Scoring : public Evaluator {
 public:
  explicit Scoring(const ScoringOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no image to score", set.name());
    if (set.name() == options_.text_data) {
      texts_of(set, options_.names());
      return;
    }
    const auto label = set.spec().find("label");
    if (label == set.spec().end() || label->second.kind != data::FieldSpec::Kind::array ||
        label->second.type != device::DType::i32 || !label->second.fixed() ||
        data::count_of(label->second.shape) != 1)
      base::fail(base::Exit::data,
                 "[data.{}] yields {}; scoring needs the field label, the i32 number of the "
                 "image's class (class_number makes it from text)",
                 set.name(), data::text_of(set.spec()));
    const std::vector<std::string> names = options_.names();
    if (const int64_t classes = label->second.limit;
        classes > 0 && classes != int64_t(names.size()))
      base::fail(base::Exit::data,
                 "[data.{}] has {} classes, but there are captions of {}: caption i describes "
                 "class i; give this data set the list of all classes (classes of a class_folder, "
                 "or class_number(\"FILE\"))",
                 set.name(), classes, names.size());
    if (options_.text_data.empty()) texts_of(set, names);
  }

  uint64_t fingerprint(const data::Dataset& set) const override {
    const std::vector<std::string> names = options_.names();
    if (!options_.text_data.empty()) return base::xxh3(base::join(names, "\n"));
    const models::TextList texts = texts_of(set, names);
    return base::xxh3(texts.ids.data(), texts.ids.size() * sizeof texts.ids[0]);
  }

  Result run(const Context& context) override {
    const std::vector<std::string> names = options_.names();
    const auto text_data = context.further.find("text_data");
    const models::TextList texts =
        texts_of(text_data == context.further.end() ? context.dataset : *text_data->second, names);
    const int64_t n = context.dataset.size();
    const int64_t columns = context.pass_as<models::PairScorePass>().columns(texts);
    PairScores scores{.texts = columns};
    std::vector<int64_t> labels;
    // Three parts with a number for each position: the rank of the image's class, this class, and
    // the most likely class.
    std::vector<double> found(size_t(3 * n), 0.0);
    // Without a prior an image's scores need not be kept.
    const bool keep = options_.pairs.subtract_prior;
    std::vector<double> of_class(names.size());
    auto rank = [&] {
      adjust(context, options_.pairs, texts, scores);
      for (size_t i = 0; i < labels.size(); ++i) {
        add_prompts(scores.of(i), columns / int64_t(names.size()), of_class);
        double* at = found.data() + scores.positions[i];
        at[0] = rank_of(of_class.data(), int64_t(names.size()), labels[i]);
        at[n] = double(labels[i]);
        at[2 * n] = double(std::ranges::max_element(of_class) - of_class.begin());
      }
      scores = {.texts = columns};
      labels.clear();
    };
    // The journal keeps the label and the scores of an image, or its numbers in `found`.
    std::vector<double> kept(keep ? size_t(columns) + 1 : 3);
    const bool complete = score_pairs(
        context, texts,
        [&](int64_t position, std::string_view bytes) {
          copy_values(bytes, std::span(kept));
          for (int64_t part = 0; !keep && part < 3; ++part)
            found[size_t(part * n + position)] = kept[size_t(part)];
          if (!keep) return;
          labels.push_back(int64_t(kept[0]));
          scores.add(position, kept.data() + 1);
        },
        [&](const data::Batch& batch, int64_t row, int64_t position, const double* of_texts) {
          const int64_t label = label_of(batch, row, position, int64_t(names.size()));
          labels.push_back(label);
          scores.add(position, of_texts);
          if (!keep) rank();
          if (keep) {
            kept[0] = double(label);
            std::copy_n(of_texts, columns, kept.begin() + 1);
          } else {
            for (int64_t part = 0; part < 3; ++part)
              kept[size_t(part)] = found[size_t(part * n + position)];
          }
          if (context.journal) context.journal->add(position, std::span<const double>(kept));
        });
    if (!complete) return {.values = {}, .examples = 0, .interrupted = true};
    if (keep) rank();
    share_values(context.world, found);
    if (!context.folder.empty()) write(context.folder, names, found);
    Result result{{}, n, "images"};
    for (int64_t k : options_.k)
      result.values.emplace_back(fmt::format("top{}", k), recall(found.data(), n, k));
    return result;
  }

 private:
  models::TextList texts_of(const data::Dataset& set, const std::vector<std::string>& names) const {
    return options_.texts_of(set, names);
  }

  static int64_t label_of(const data::Batch& batch, int64_t row, int64_t position,
                          int64_t classes) {
    const int64_t label = batch.array("label").i32()[row];
    if (label < 0 || label >= classes)
      base::fail(base::Exit::data,
                 "label {} of the image at position {} is not in [0, {}), the classes that have "
                 "captions",
                 label, position, classes);
    return label;
  }

  // Writes the confusions. A broken model, whose scores are NaN, predicts no class and has no
  // confusions.
  static void write(const std::string& folder, const std::vector<std::string>& names,
                    const std::vector<double>& found) {
    const auto n = int64_t(found.size() / 3);
    if (std::any_of(found.begin(), found.begin() + n, [](double r) { return std::isnan(r); }))
      return;
    io::write_or_wait(folder + "/confusions.json",
                      confusions_json(names, {found.begin() + n, found.begin() + 2 * n},
                                      {found.begin() + 2 * n, found.end()}));
  }

  ScoringOptions options_;
};

const ScoringOptions& scoring_options(const config::Table::Variant& options) {
  return dynamic_cast<const ScoringOptions&>(options);
}

}  // namespace

Registered scoring_row() {
  return {
      "scoring",
      "zero-shot: share of the images whose class is one of the k whose texts score best, by their "
      "likelihood or by cosine; writes confusions.json",
      [](const config::Table::Variant& options) {
        std::vector<Metric> out;
        for (int64_t k : scoring_options(options).k)
          out.push_back(
              {fmt::format("top{}", k), "1",
               fmt::format(
                   "share of the images whose class is among the {} whose texts score best{}", k,
                   k == 1 ? " (the published code's prec@1)" : "")});
        return out;
      },
      "score captions",
      nullptr,
      [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<ScoringOptions>()); },
      [](const config::Table::Variant& options) -> std::unique_ptr<Evaluator> {
        return std::make_unique<Scoring>(scoring_options(options));
      },
      [](const models::Model& model, const config::Table::Variant& options) {
        return make_pair_pass(model, scoring_options(options).pairs);
      },
      [](const config::Table::Variant& options) {
        std::map<std::string, std::string> sets;
        if (const std::string& name = scoring_options(options).text_data; !name.empty())
          sets["text_data"] = name;
        return sets;
      },
      [](const models::Model& model, const config::Table::Variant& options,
         const std::string& key) -> std::optional<Features> {
        if (key != "data" || scoring_options(options).text_data.empty()) return {};
        return labelled_images(model, "eval kind scoring");
      },
      &kScoringPredicts,
      [](const config::Table::Variant& options) {
        const ScoringOptions& own = scoring_options(options);
        return ClassTexts{own.classes_file.empty() ? "classes" : "classes_file", own.names()};
      }};
}

}  // namespace eval
