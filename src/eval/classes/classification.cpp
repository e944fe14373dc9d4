// SPDX-License-Identifier: Apache-2.0
// The evaluators of models that rank classes: keys, numbers, passes and predictions.
// `classification` is of the only head, or of one probe; `probes` is of several, whose images pass
// through the trunk once. Results are exact for any size of the set, number of ranks and batch
// size. An example's numbers depend only on the example and are added in the order of positions.
#include <algorithm>

#include "eval/classes/class_predictor.hpp"
#include "eval/classes/ranking.hpp"
#include "eval/features/labelled_features.hpp"

namespace eval {
namespace {

struct RankingOptions : config::Table::Variant, RankingKeys {
 protected:
  void bind_k(config::Table& t) {
    t.key("k", k,
          "an image counts for topK if its class is among the K most likely ones; among equally "
          "likely ones the first come first")
        .min(1)
        .check([this] { return problem_of_list(k); })
        .on_resume(config::OnResume::may_change);
  }
};

struct ClassificationOptions : RankingOptions {
  std::string probe;
  void bind(config::Table& t) override;
};

struct ProbesOptions : RankingOptions {
  void bind(config::Table& t) override {
    t.key("probes", heads, "names of the model's probes whose numbers are given")
        .required()
        .check([this] { return problem_of_list(heads); })
        .on_resume(config::OnResume::may_change);
    bind_k(t);
  }
};

std::string problem_of(const std::vector<int64_t>& k) {
  return k.empty() ? "" : problem_of_list(k);
}

void ClassificationOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  bind_k(t);
  t.key("mean_ap", mean_ap,
        "also give the mean over classes of the average precision; needs 8 bytes of memory for "
        "each image and class, divided among the ranks")
      .on_resume(may);
  t.key("precision_at", precision_at,
        "numbers K: also give precision at K: of the K most likely classes of each image, the "
        "share that the image shows, over all images")
      .min(1)
      .check([this] { return problem_of(precision_at); })
      .on_resume(may);
  t.key("recall_at", recall_at,
        "numbers K: also give the share of all shown classes that are among the K most likely "
        "ones of their image")
      .min(1)
      .check([this] { return problem_of(recall_at); })
      .on_resume(may);
  t.key("targets", targets,
        "for images that show several classes: f32 field [num_classes] that is read instead of "
        "label; positive = shown, 0 = not, negative = not known, which counts nowhere. An image "
        "counts for topK if one of its classes is among the K; there is no loss")
      .on_resume(may);
  t.key("skip_unlabelled", skip_unlabelled, "true: images with the label -1 do not count")
      .on_resume(may);
  t.key("mask", mask, "i32 field of one number; images that hold 0 there do not count")
      .on_resume(may);
  t.key("probe", probe,
        "model.kind = \"linear_probe\": the name of the probe that ranks the classes")
      .on_resume(may);
  if (skip_unlabelled && !targets.empty())
    t.error("skip_unlabelled", "targets is set, too, and is read instead of label; leave one out");
}

std::vector<Metric> metrics_of_heads(const RankingKeys& keys) {
  std::vector<Metric> out;
  for (const std::string& name : keys.heads) {
    for (int64_t k : keys.k)
      out.push_back({fmt::format("{}_top{}", name, k), "1",
                     fmt::format("share of the images whose class is among the {} most likely "
                                 "ones of probe {}",
                                 k, name)});
    out.push_back({name + "_loss", "nats", "mean cross-entropy of probe " + name});
  }
  return out;
}

std::vector<Metric> ranking_metrics(const config::Table::Variant& variant) {
  const RankingKeys& options = dynamic_cast<const RankingOptions&>(variant);
  std::vector<Metric> out = metrics_of_heads(options);
  if (!out.empty()) return out;
  for (int64_t k : options.k)
    out.push_back({fmt::format("top{}", k), "1",
                   fmt::format("share of the images whose class is among the {} most likely", k)});
  if (options.targets.empty())
    out.push_back({"loss", "nats",
                   "mean over images of the model's loss, without label smoothing; plain numbers "
                   "for mse and smooth_l1"});
  if (options.mean_ap)
    out.push_back(
        {"mean_ap", "1",
         "mean, over the classes that at least one image shows, of the average precision; the "
         "precision at a recall is the largest at this or a larger recall"});
  for (int64_t k : options.precision_at)
    out.push_back({fmt::format("precision_at_{}", k), "1",
                   fmt::format("of the {} most likely classes of each image, the share that the "
                               "image shows, over all images",
                               k)});
  for (int64_t k : options.recall_at)
    out.push_back({fmt::format("recall_at_{}", k), "1",
                   fmt::format("share of all shown classes that are among the {} most likely ones "
                               "of their image",
                               k)});
  return out;
}

const models::ClassRanker* ranker_of(const models::Model& model) {
  return dynamic_cast<const models::ClassRanker*>(&model);
}

// Makes the pass of the only head, or of the one that `probe` names; null if the model ranks no
// classes.
std::unique_ptr<ClassPass> make_pass_of(const models::Model& model, const std::string& probe,
                                        ClassRequest request) {
  const models::ClassRanker* ranker = ranker_of(model);
  if (!ranker) return nullptr;
  const std::vector<std::string> known = ranker->head_names();
  if (known.empty() && !probe.empty())
    base::fail(base::Exit::config, "probe: the model has one classifier; leave out \"{}\"", probe);
  if (!known.empty() && std::ranges::count(known, probe) == 0)
    base::fail(base::Exit::config, "probe: {}; the model has the probes {}",
               probe.empty() ? "missing" : fmt::format("there is no \"{}\"", probe),
               fmt::join(known, ", "));
  if (!known.empty()) request.heads = {probe};
  return make_class_pass(*ranker, request);
}

std::unique_ptr<models::ForwardPass> make_ranking_pass(const models::Model& model,
                                                       const config::Table::Variant& variant) {
  const auto& options = dynamic_cast<const ClassificationOptions&>(variant);
  std::unique_ptr<ClassPass> pass =
      make_pass_of(model, options.probe, {.scores = options.scores()});
  if (!pass) return nullptr;
  for (const auto& [key, all] :
       {std::pair{"precision_at", &options.precision_at}, {"recall_at", &options.recall_at}})
    for (int64_t k : *all)
      if (k > pass->classes())
        base::fail(base::Exit::config, "{}: {} is more than the {} classes of the model", key, k,
                   pass->classes());
  return pass;
}

std::unique_ptr<models::ForwardPass> make_probes_pass(const models::Model& model,
                                                      const config::Table::Variant& variant) {
  const auto& options = dynamic_cast<const ProbesOptions&>(variant);
  const models::ClassRanker* ranker = ranker_of(model);
  const std::vector<std::string> known = ranker ? ranker->head_names() : std::vector<std::string>();
  if (known.empty()) return nullptr;
  for (const std::string& name : options.heads)
    if (std::ranges::count(known, name) == 0)
      base::fail(base::Exit::config, "probes: the model has no probe \"{}\"; it has {}", name,
                 fmt::join(known, ", "));
  return make_class_pass(*ranker, {.heads = options.heads});
}

std::unique_ptr<models::ForwardPass> make_score_pass(const models::Model& model,
                                                     const config::Table::Variant& options) {
  const std::string& probe = dynamic_cast<const ClassificationOptions&>(options).probe;
  return make_pass_of(model, probe, {.ranks = false, .scores = true});
}

// For --mode predict.
const Predicts kClassPredicts = {
    [](const config::Table::Variant&) { return std::map<std::string, std::string>(); },
    make_score_pass,
    [](const config::Table::Variant& options, const data::Dataset&, models::ForwardPass& pass,
       int64_t top_k) {
      return make_class_predictor(dynamic_cast<ClassPass&>(pass),
                                  dynamic_cast<const ClassificationOptions&>(options).probe, top_k);
    }};

// Returns the fields that the data set must have: images, and labels or targets. Returns nothing if
// the model is trained on these fields.
std::optional<Features> class_features(const models::Model& model,
                                       const config::Table::Variant& variant, const std::string&) {
  const auto& options = dynamic_cast<const ClassificationOptions&>(variant);
  const models::ClassRanker* ranker = ranker_of(model);
  if (!ranker) return std::nullopt;
  const int64_t classes = ranker->num_classes();
  Features features = model.features();
  const bool trains_on_labels = features.contains("label") && features["label"].below > 0;
  if (trains_on_labels && options.targets.empty() && !options.masked()) return std::nullopt;
  std::erase_if(features, [](const auto& feature) { return feature.first != "image"; });
  if (!options.targets.empty())
    features[options.targets] = {
        .type = device::DType::f32, .shape = {classes}, .key = "model.num_classes"};
  else
    features["label"] = {.type = device::DType::i32,
                         .shape = {},
                         .key = "model.kind",
                         .below = options.skip_unlabelled ? 0 : classes,
                         .limit_key = "model.num_classes"};
  if (!options.mask.empty())
    features[options.mask] = {.type = device::DType::i32, .shape = {}, .key = "mask"};
  return features;
}

std::unique_ptr<Evaluator> make_of_keys(const config::Table::Variant& options) {
  return make_ranking(dynamic_cast<const RankingOptions&>(options));
}

template <class Options>
std::shared_ptr<config::Table::Variant> make_ranking_options() {
  return std::make_shared<Options>();
}

}  // namespace

Registered classification_row() {
  return {"classification",
          "share of the images whose class is among the k most likely ones, and mean loss; on "
          "request mean average precision, precision and recall at k",
          ranking_metrics,
          "rank classes",
          nullptr,
          make_ranking_options<ClassificationOptions>,
          make_of_keys,
          make_ranking_pass,
          nullptr,
          class_features,
          &kClassPredicts};
}

Registered probes_row() {
  return {"probes",
          "for each probe of a frozen trunk, the share of images whose class is among the k most "
          "likely ones, and mean loss",
          ranking_metrics,
          "rank classes with several heads",
          nullptr,
          make_ranking_options<ProbesOptions>,
          make_of_keys,
          make_probes_pass};
}

}  // namespace eval
