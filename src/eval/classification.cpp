// SPDX-License-Identifier: Apache-2.0
// Evaluates the share of images whose own class is among the k most likely ones, and the mean loss
// without label smoothing. Optional numbers are mean average precision, precision at k and recall
// at k, also for images with several classes. The result is exact for any size of the set, number
// of ranks and batch size. An example's numbers depend only on the example and are added in the
// order of positions.
#include <algorithm>

#include "data/stream/host_batch.hpp"
#include "eval/class_metrics.hpp"
#include "eval/class_predictor.hpp"
#include "eval/evaluator.hpp"
#include "models/probe_classifier.hpp"

namespace eval {
namespace {

struct ClassificationOptions : config::Table::Variant {
  std::vector<int64_t> k = {1, 5}, precision_at, recall_at;
  bool mean_ap = false, skip_unlabelled = false;
  std::string targets, mask, probe;
  void bind(config::Table& t) override;
  // True if the evaluator needs the scores of all classes.
  bool scores() const {
    return mean_ap || !precision_at.empty() || !recall_at.empty() || !targets.empty();
  }
  // True if some images may not count.
  bool masked() const { return skip_unlabelled || !mask.empty(); }
};

std::string repeated(const std::vector<int64_t>& k) {
  for (int64_t one : k)
    if (std::ranges::count(k, one) > 1) return fmt::format("{} is there twice", one);
  return "";
}

void ClassificationOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("k", k,
        "an image counts for topK if its class is among the K most likely ones; among equally "
        "likely ones the first come first")
      .min(1)
      .check([this] { return k.empty() ? "names no number" : repeated(k); })
      .on_resume(may);
  t.key("mean_ap", mean_ap,
        "also give the mean over classes of the average precision; needs 8 bytes of memory for "
        "each image and class, divided among the ranks")
      .on_resume(may);
  t.key("precision_at", precision_at,
        "numbers K: also give the share of right ones among the K most likely classes of all "
        "images")
      .min(1)
      .check([this] { return repeated(precision_at); })
      .on_resume(may);
  t.key("recall_at", recall_at,
        "numbers K: also give the share of all shown classes that are among the K most likely "
        "ones of their image")
      .min(1)
      .check([this] { return repeated(recall_at); })
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
    t.error("skip_unlabelled", "there is targets too, which is read instead of label");
}

// Numbers of images, by column: loss, rank, and as far as the options ask, the next ones. The hits
// have a column for each K of precision_at, then of recall_at.
enum Column : size_t { kLoss, kRank, kCounted, kKnown, kShown, kHits };
using Columns = std::vector<std::vector<double>>;

template <class T>
std::string bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// The scores and targets of this rank's images. Without classes it stays empty.
struct OwnScores {
  size_t classes = 0;
  std::vector<int64_t> positions;
  std::vector<float> scores, targets;  // [positions, classes]

  void add(int64_t position, std::span<const float> of_classes, std::span<const float> wanted) {
    positions.push_back(position);
    scores.insert(scores.end(), of_classes.begin(), of_classes.end());
    targets.insert(targets.end(), wanted.begin(), wanted.end());
  }
  // Returns scores and targets of an image for the journal.
  std::string of(int64_t position) const {
    if (classes == 0) return "";
    size_t row = positions.size() - 1;
    while (positions[row] != position) --row;  // it is one of the last
    return bytes_of(std::span(scores).subspan(row * classes, classes)) +
           bytes_of(std::span(targets).subspan(row * classes, classes));
  }
  // Adds an image of the journal.
  void take(int64_t position, std::string_view bytes) {
    std::vector<float> both(2 * classes);
    copy_values(bytes, std::span(both));
    if (classes > 0) add(position, std::span(both).first(classes), std::span(both).last(classes));
  }
};

class Classification : public Evaluator {
 public:
  explicit Classification(const ClassificationOptions& options) : options_(options) {
    hits_ = options.precision_at;
    hits_.insert(hits_.end(), options.recall_at.begin(), options.recall_at.end());
  }

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no example to classify", set.name());
  }

  Result run(const Context& context) override {
    const int64_t n = context.dataset.size();
    const size_t columns = options_.scores()   ? kHits + hits_.size()
                           : options_.masked() ? size_t(kKnown)
                                               : size_t(kCounted);
    std::vector<double> values(columns * size_t(n), 0.0), numbers(columns);
    OwnScores own;
    if (options_.mean_ap)
      own.classes = size_t(dynamic_cast<models::ClassScorePass&>(*context.pass).classes());
    auto store = [&](int64_t position) {
      for (size_t c = 0; c < columns; ++c) values[c * size_t(n) + size_t(position)] = numbers[c];
    };
    // The journal keeps the numbers of an image and, for average precision, scores and targets.
    const Rounds rounds(context, context.dataset, "images",
                        [&](int64_t position, std::string_view bytes) {
                          const size_t head = columns * sizeof(double);
                          copy_values(bytes.substr(0, head), std::span(numbers));
                          store(position);
                          own.take(position, bytes.substr(head));
                        });
    auto loader = rounds.loader(context, [](int64_t p) { return p; });
    for (int64_t round = 0; round < rounds.count(); ++round) {
      if (context.interrupted()) return {.values = {}, .examples = 0, .interrupted = true};
      const int64_t first = rounds.first(round);
      const Columns of_batch = classify(context, *loader->next(), first, own);
      for (int64_t i = 0; i < context.batch && first + i < n; ++i) {
        for (size_t c = 0; c < columns; ++c) numbers[c] = of_batch[c][size_t(i)];
        store(first + i);
        if (context.journal)
          context.journal->add(first + i,
                               bytes_of(std::span<const double>(numbers)) + own.of(first + i));
      }
      if (context.journal) context.journal->write();
    }
    share_values(context.world, values);
    std::vector<const double*> all;
    for (size_t c = 0; c < columns; ++c) all.push_back(values.data() + c * size_t(n));
    Result result = result_of(all, n);
    if (options_.mean_ap)
      if (const std::optional<double> mean = mean_average_precision(context, own))
        result.values.insert(result.values.begin() + at_mean_ap(), {"mean_ap", *mean});
    return result;
  }

 private:
  int64_t at_mean_ap() const { return int64_t(options_.k.size()) + options_.targets.empty(); }

  // Runs the model on a batch. Also keeps the scores that average precision needs.
  Columns classify(const Context& context, const data::Batch& batch, int64_t first,
                   OwnScores& own) const {
    const auto n = size_t(batch.size());
    Columns out(kHits + hits_.size(), std::vector<double>(n, 0.0));
    models::HostBatch host = data::host_batch(batch, first);
    std::vector<int32_t> labels(n, 0);
    for (size_t i = 0; i < n; ++i) {
      const int32_t label = options_.targets.empty() ? batch.array("label").i32()[i] : 0;
      const bool labelled = !options_.skip_unlabelled || label != -1;
      labels[i] = labelled ? label : 0;
      out[kCounted][i] =
          labelled && (options_.mask.empty() || batch.array(options_.mask).i32()[i] != 0);
    }
    if (options_.masked() || !options_.targets.empty())
      host.features["label"] = device::view(labels.data(), int64_t(n));
    if (!options_.scores()) {
      auto& pass = dynamic_cast<models::ClassifyPass&>(*context.pass);
      context.forward([&](const models::Inputs& into) { pass.prepare(host, into); },
                      [&](nn::Context& ctx, const models::Inputs& in) {
                        pass.run(ctx, in, out[kLoss].data(), out[kRank].data());
                      });
      return out;
    }
    auto& pass = dynamic_cast<models::ClassScorePass&>(*context.pass);
    const auto classes = size_t(pass.classes());
    std::vector<float> scores(n * classes), targets(n * classes, 0.0f);
    context.forward([&](const models::Inputs& into) { pass.prepare(host, into); },
                    [&](nn::Context& ctx, const models::Inputs& in) {
                      pass.run(ctx, in, out[kLoss].data(), out[kRank].data(), scores.data());
                    });
    if (!options_.targets.empty())
      std::copy_n(batch.array(options_.targets).f32(), targets.size(), targets.begin());
    for (size_t i = 0; i < n; ++i) {
      if (options_.targets.empty()) targets[i * classes + size_t(labels[i])] = 1;
      if (out[kCounted][i] == 0) std::fill_n(targets.begin() + int64_t(i * classes), classes, -1);
      count(scores.data() + i * classes, targets.data() + i * classes, i, int64_t(classes), out);
    }
    const std::span<const float> scored(scores), wanted(targets);
    for (size_t i = 0; options_.mean_ap && i < n; ++i)
      if (first + int64_t(i) < context.dataset.size())
        own.add(first + int64_t(i), scored.subspan(i * classes, classes),
                wanted.subspan(i * classes, classes));
    return out;
  }

  void count(const float* scores, const float* targets, size_t image, int64_t classes,
             Columns& out) const {
    const ClassCounts counts = count_classes(scores, targets, classes, hits_);
    out[kKnown][image] = counts.known;
    out[kShown][image] = counts.shown;
    for (size_t i = 0; i < hits_.size(); ++i) out[kHits + i][image] = counts.hits[i];
    if (!options_.targets.empty()) out[kRank][image] = counts.first;
  }

  // all: [columns] of [n], the numbers of all images.
  Result result_of(const std::vector<const double*>& all, int64_t n) const {
    // Adds over the images that count, by position.
    auto sum = [&](auto of_image) {
      double total = 0;
      for (int64_t i = 0; i < n; ++i)
        if (!options_.masked() || all[kCounted][i] != 0) total += double(of_image(i));
      return total;
    };
    const double counted = sum([](int64_t) { return 1; });
    Result result{{}, int64_t(counted), "images"};
    if (counted == 0) return result;
    for (int64_t k : options_.k)
      result.values.emplace_back(fmt::format("top{}", k), sum([&](int64_t i) {
                                                            return all[kRank][i] < double(k);
                                                          }) / counted);
    if (options_.targets.empty())
      result.values.emplace_back("loss", sum([&](int64_t i) { return all[kLoss][i]; }) / counted);
    for (size_t h = 0; h < hits_.size(); ++h) {
      const bool precision = h < options_.precision_at.size();
      const double of = sum([&](int64_t i) {
        return precision ? std::min(all[kKnown][i], double(hits_[h])) : all[kShown][i];
      });
      if (of > 0)
        result.values.emplace_back(
            fmt::format("{}_at_{}", precision ? "precision" : "recall", hits_[h]),
            sum([&](int64_t i) { return all[kHits + h][i]; }) / of);
    }
    return result;
  }

  // Returns the mean over the classes that any image shows. The ranks exchange the scores of some
  // classes at a time, and share the work on them.
  static std::optional<double> mean_average_precision(const Context& context,
                                                      const OwnScores& own) {
    const int64_t n = context.dataset.size(),
                  classes = dynamic_cast<models::ClassScorePass&>(*context.pass).classes(),
                  part = std::clamp<int64_t>((1 << 22) / n, 1, classes);
    std::vector<double> of_class(size_t(classes), 0.0);  // -1: no image shows it
    for (int64_t begin = 0; begin < classes; begin += part) {
      const int64_t end = std::min(begin + part, classes);
      std::vector<float> scores(size_t((end - begin) * n), 0.0f), targets(scores);
      for (size_t i = 0; i < own.positions.size(); ++i)
        for (int64_t c = begin; c < end; ++c) {
          const auto to = size_t((c - begin) * n + own.positions[i]),
                     from = i * size_t(classes) + size_t(c);
          scores[to] = own.scores[from];
          targets[to] = own.targets[from];
        }
      share_values(context.world, scores);
      share_values(context.world, targets);
      for (int64_t c = begin; c < end; ++c)
        if (c % context.world.size() == context.world.rank())
          of_class[size_t(c)] = average_precision(scores.data() + (c - begin) * n,
                                                  targets.data() + (c - begin) * n, n)
                                    .value_or(-1);
    }
    share_values(context.world, of_class);
    double sum = 0, shown = 0;
    for (double ap : of_class)
      if (ap != -1) {
        sum += ap;
        ++shown;
      }
    return shown > 0 ? std::optional(sum / shown) : std::nullopt;
  }

  ClassificationOptions options_;
  std::vector<int64_t> hits_;  // each K of precision_at, then of recall_at
};

std::vector<Metric> metrics(const ClassificationOptions& options) {
  std::vector<Metric> out;
  for (int64_t k : options.k)
    out.push_back({fmt::format("top{}", k), "1",
                   fmt::format("share of the images whose class is among the {} most likely", k)});
  if (options.targets.empty())
    out.push_back({"loss", "nats",
                   "mean over images of the model's loss, without label smoothing; plain numbers "
                   "for mse and smooth_l1"});
  if (options.mean_ap)
    out.push_back({"mean_ap", "1",
                   "mean over the classes that any image shows of the average precision, with the "
                   "largest precision at each recall or a larger one"});
  for (int64_t k : options.precision_at)
    out.push_back({fmt::format("precision_at_{}", k), "1",
                   fmt::format("share of right ones among the {} most likely classes of all "
                               "images",
                               k)});
  for (int64_t k : options.recall_at)
    out.push_back({fmt::format("recall_at_{}", k), "1",
                   fmt::format("share of all shown classes that are among the {} most likely ones "
                               "of their image",
                               k)});
  return out;
}

// Returns the number of classes that the model ranks; none if it ranks no classes.
std::optional<int64_t> classes_of(const models::Model& model) {
  if (auto* classifier = dynamic_cast<const models::Classifier*>(&model))
    return classifier->num_classes();
  if (auto* probes = dynamic_cast<const models::ProbeClassifier*>(&model))
    return probes->num_classes();
  return std::nullopt;
}

// Checks that `probe` names a probe exactly if the model has several.
void check_probe(const models::ProbeClassifier* probes, const std::string& probe) {
  if (!probes && !probe.empty())
    base::fail(base::Exit::config, "probe: the model has one classifier; leave out \"{}\"", probe);
  if (!probes) return;
  const std::vector<std::string> known = probes->probe_names();
  if (std::ranges::count(known, probe) == 0)
    base::fail(base::Exit::config, "probe: {}; the model has the probes {}",
               probe.empty() ? "missing" : fmt::format("there is no \"{}\"", probe),
               fmt::join(known, ", "));
}

std::unique_ptr<models::ForwardPass> make_class_pass(const models::Model& model,
                                                     const ClassificationOptions& options) {
  const std::optional<int64_t> classes = classes_of(model);
  if (!classes) return nullptr;
  for (const auto& [key, all] :
       {std::pair{"precision_at", &options.precision_at}, {"recall_at", &options.recall_at}})
    for (int64_t k : *all)
      if (k > *classes)
        base::fail(base::Exit::config, "{}: {} is more than the {} classes of the model", key, k,
                   *classes);
  const auto* probes = dynamic_cast<const models::ProbeClassifier*>(&model);
  check_probe(probes, options.probe);
  if (probes && options.scores()) return probes->make_class_score_pass(options.probe);
  if (probes) return probes->make_classify_pass(options.probe);
  const auto& classifier = dynamic_cast<const models::Classifier&>(model);
  if (options.scores()) return classifier.make_class_score_pass();
  return classifier.make_classify_pass();
}

std::unique_ptr<models::ForwardPass> make_logits_pass(const models::Model& model,
                                                      const config::Table::Variant& options) {
  const std::string& probe = dynamic_cast<const ClassificationOptions&>(options).probe;
  if (!classes_of(model)) return nullptr;
  const auto* probes = dynamic_cast<const models::ProbeClassifier*>(&model);
  check_probe(probes, probe);
  if (probes) return probes->make_logits_pass(probe);
  return dynamic_cast<const models::Classifier&>(model).make_logits_pass();
}

// For --mode predict.
const Predicts kClassPredicts = {
    [](const config::Table::Variant&) { return std::map<std::string, std::string>(); },
    make_logits_pass,
    [](const config::Table::Variant& options, const data::Dataset&, models::ForwardPass& pass,
       int64_t top_k) {
      return make_class_predictor(dynamic_cast<models::LogitsPass&>(pass),
                                  dynamic_cast<const ClassificationOptions&>(options).probe, top_k);
    }};

// Returns the fields of the data set, unless they are those that the model is trained on: images,
// and labels or targets.
std::optional<Features> class_features(const models::Model& model,
                                       const ClassificationOptions& options) {
  const std::optional<int64_t> classes = classes_of(model);
  if (!classes) return std::nullopt;
  Features features = model.features();
  const bool trains_on_labels = features.contains("label") && features["label"].below > 0;
  if (trains_on_labels && options.targets.empty() && !options.masked()) return std::nullopt;
  std::erase_if(features, [](const auto& feature) { return feature.first != "image"; });
  if (!options.targets.empty())
    features[options.targets] = {
        .type = device::DType::f32, .shape = {*classes}, .key = "model.num_classes"};
  else
    features["label"] = {.type = device::DType::i32,
                         .shape = {},
                         .key = "model.kind",
                         .below = options.skip_unlabelled ? 0 : *classes,
                         .limit_key = "model.num_classes"};
  if (!options.mask.empty())
    features[options.mask] = {.type = device::DType::i32, .shape = {}, .key = "mask"};
  return features;
}

}  // namespace

Registered classification_row() {
  using Options = ClassificationOptions;
  using Variant = config::Table::Variant;
  return {"classification",
          "share of the images whose class is among the k most likely ones, and mean loss; on "
          "request mean average precision, precision and recall at k",
          [](const Variant& options) { return metrics(dynamic_cast<const Options&>(options)); },
          "rank classes",
          nullptr,
          [] { return std::shared_ptr<Variant>(std::make_shared<Options>()); },
          [](const Variant& options) -> std::unique_ptr<Evaluator> {
            return std::make_unique<Classification>(dynamic_cast<const Options&>(options));
          },
          [](const models::Model& model, const Variant& options) {
            return make_class_pass(model, dynamic_cast<const Options&>(options));
          },
          nullptr,
          [](const models::Model& model, const Variant& options, const std::string&) {
            return class_features(model, dynamic_cast<const Options&>(options));
          },
          &kClassPredicts};
}

}  // namespace eval
