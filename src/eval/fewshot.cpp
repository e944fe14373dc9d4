// SPDX-License-Identifier: Apache-2.0
// Evaluates linear probes on the model's features of a few images of each class (cappa.md 9.5): the
// share of test images whose class a probe predicts. All ranks embed both sets. The features of the
// training set are gathered by position; then each rank fits some of the probes, and each predicts
// the classes of its own test images. The result is the same on any number of ranks.
#include <algorithm>
#include <limits>

#include "eval/labelled_features.hpp"
#include "eval/linear_probe.hpp"

namespace eval {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

struct FewshotOptions : config::Table::Variant {
  std::string train_data;
  std::vector<int64_t> shots = {1, 5, 10, 25};
  int64_t seeds = 3;
  std::vector<double> l2 = {1024};
  std::string tap;
  void bind(config::Table& t) override;

  bool sweeps() const { return l2.size() > 1; }
  int64_t probes() const { return int64_t(shots.size()) * seeds; }
  // Probes are numbered by shots, then by seed.
  int64_t shots_of(int64_t probe) const { return shots[size_t(probe / seeds)]; }
  uint64_t seed_of(int64_t probe) const { return uint64_t(probe % seeds); }
};

void FewshotOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("train_data", train_data,
        "name of a [data.NAME] table: the images that probes are fitted to; `data` holds the "
        "images that they are tested on")
      .required()
      .on_resume(may);
  t.key("shots", shots, "images of each class that a probe is fitted to; smaller classes give all")
      .min(1)
      .unit("images")
      .check([this] { return problem_of_list(shots); })
      .on_resume(may);
  t.key("seeds", seeds, "random choices of these images: seeds 0 to seeds - 1")
      .min(1)
      .max(1000)
      .on_resume(may);
  t.key("l2_reg", l2,
        "strength of the regularisation; of several the probe takes the one that is best on a "
        "fifth of its images, held out from each class (at least one), then fits to all; classes "
        "of one image hold none out, and without any the first value is taken")
      .above(0)
      .check([this] { return problem_of_list(l2); })
      .on_resume(may);
  t.key("tap", tap,
        "features of an image, as extract.taps names them; \"\" = the vector that a head reads")
      .on_resume(may);
}

class Fewshot : public Evaluator {
 public:
  explicit Fewshot(const FewshotOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no example for a probe", set.name());
  }

  Result run(const Context& context) override {
    const data::Dataset& train = *context.further.at("train_data");
    FeatureTable table;
    std::vector<Fitted> fitted;
    std::vector<double> hits(size_t(options_.probes()) + 1, 0.0);
    if (!gather_features(context, train, "images for probes", 1, answer_label, 0, table) ||
        !fit(context, train, labelled_rows(table), fitted) || !test(context, fitted, hits))
      return {.values = {}, .examples = 0, .interrupted = true};
    return result(context.dataset.size(), fitted, hits);
  }

 private:
  struct Fitted {
    LinearProbe probe;
    double l2 = 0;
  };

  // Fits the probes, each on one rank.
  bool fit(const Context& context, const data::Dataset& train, const LabelledRows& rows,
           std::vector<Fitted>& out) const {
    const int64_t width = rows.features, classes = rows.classes, n = options_.probes();
    const int64_t weights = (width + 1) * classes, numbers = 1 + 2 * width + weights;
    need_feature_memory(context, train, "eval.NAME.shots, ",
                        bytes_of_fit(rows) + 2 * 8 * n * numbers);
    std::vector<double> all(size_t(n * numbers), 0.0);
    auto part = [&](int64_t probe) {
      return std::span(all.begin() + probe * numbers, size_t(numbers));
    };
    const int64_t known = context.journal
                              ? context.journal->begin("probes", n,
                                                       [&](int64_t probe, std::string_view bytes) {
                                                         copy_values(bytes, part(probe));
                                                       })
                              : 0;
    for (int64_t first = known; first < n; first += context.world.size()) {
      if (context.interrupted()) return false;
      const int64_t probe = first + context.world.rank();
      if (probe >= n) continue;
      const Fitted one = fit_one(rows, probe);
      double* to = part(probe).data();
      *to++ = one.l2;
      for (const std::vector<double>* values :
           {&one.probe.mean, &one.probe.deviation, &one.probe.weights})
        for (double v : *values) *to++ = v + 0.0;
      if (!context.journal) continue;
      context.journal->add(probe, std::span<const double>(part(probe)));
      context.journal->write();
    }
    share_values(context.world, all);
    for (int64_t probe = 0; probe < n; ++probe) {
      const auto l2 = all.begin() + probe * numbers, mean = l2 + 1, deviation = mean + width,
                 from = deviation + width;
      out.push_back({{{mean, deviation}, {deviation, from}, {from, from + weights}}, *l2});
    }
    return true;
  }

  Fitted fit_one(const LabelledRows& rows, int64_t probe) const {
    const int64_t shots = options_.shots_of(probe);
    const auto permuted = permuted_rows(rows, options_.seed_of(probe));
    const double l2 = options_.l2[choose_l2(rows, permuted, shots, options_.l2)];
    return {fit_probes(rows, first_of_each(permuted, shots), {l2})[0], l2};
  }

  // Returns an upper bound of the memory that fitting a probe takes.
  int64_t bytes_of_fit(const LabelledRows& rows) const {
    const int64_t most = *std::max_element(options_.shots.begin(), options_.shots.end());
    const int64_t n = std::min(int64_t(rows.labels.size()),
                               rows.classes * std::min(most, int64_t(rows.labels.size())));
    const int64_t width = rows.features + 1, size = std::min(n, width);
    const int64_t fits = int64_t(options_.l2.size());
    return 8 *
           (2 * n * width + 2 * size * size + n * rows.classes + (fits + 2) * width * rows.classes);
  }

  // Counts by probe the test images whose class it predicts; the last count is of images without a
  // finite score.
  bool test(const Context& context, const std::vector<Fitted>& fitted,
            std::vector<double>& hits) const {
    std::vector<double> scores, of_image(hits.size());
    auto count = [&] {
      for (size_t i = 0; i < hits.size(); ++i) hits[i] += of_image[i];
    };
    const bool complete = embed(
        context, context.dataset, "images",
        [&](int64_t, std::string_view bytes) {
          copy_values(bytes, std::span(of_image));
          count();
        },
        [&](const Embedded& images) {
          for (int64_t i = 0; i < images.count; ++i) {
            const float* x = images.features + i * feature_count(context);
            const int64_t label = label_of(context.dataset, images.batch, i);
            of_image.back() = 0;
            for (size_t p = 0; p < fitted.size(); ++p) {
              const int64_t predicted = fitted[p].probe.predict(x, scores);
              of_image[p] = predicted == label;
              of_image.back() += predicted < 0;
            }
            count();
            if (context.journal)
              context.journal->add(images.first + i, std::span<const double>(of_image));
          }
        });
    if (complete) share_values(context.world, hits);  // whole numbers, so the sum is exact
    return complete;
  }

  Result result(int64_t images, const std::vector<Fitted>& fitted,
                const std::vector<double>& hits) const {
    Result result{{}, images, "images"};
    for (size_t s = 0; s < options_.shots.size(); ++s) {
      double sum = 0;
      for (int64_t seed = 0; seed < options_.seeds; ++seed) {
        const size_t probe = s * size_t(options_.seeds) + size_t(seed);
        const double accuracy = hits.back() > 0 ? kNotANumber : hits[probe] / double(images);
        const std::string name = fmt::format("{}shot_seed{}", options_.shots[s], seed);
        result.values.emplace_back(name, accuracy);
        if (options_.sweeps()) result.values.emplace_back(name + "_l2", fitted[probe].l2);
        sum += accuracy;
      }
      result.values.emplace_back(fmt::format("{}shot", options_.shots[s]),
                                 sum / double(options_.seeds));
    }
    return result;
  }

  FewshotOptions options_;
};

std::vector<Metric> fewshot_metrics(const FewshotOptions& options) {
  std::vector<Metric> out;
  for (int64_t shots : options.shots) {
    for (int64_t seed = 0; seed < options.seeds; ++seed) {
      const std::string name = fmt::format("{}shot_seed{}", shots, seed);
      out.push_back({name, "1",
                     fmt::format("share of the test images whose class a probe on {} images of "
                                 "each class predicts, chosen with seed {}",
                                 shots, seed)});
      if (options.sweeps()) out.push_back({name + "_l2", "1", "the l2 of this probe"});
    }
    out.push_back({fmt::format("{}shot", shots), "1",
                   fmt::format("mean over the seeds of {}shot_seed0, ...", shots)});
  }
  return out;
}

// The embed pass reads images only, and the evaluator reads labels.
std::optional<Features> fewshot_features(const models::Model& model, const config::Table::Variant&,
                                         const std::string&) {
  return labelled_images(model, "eval kind fewshot");
}

const FewshotOptions& fewshot_options(const config::Table::Variant& options) {
  return dynamic_cast<const FewshotOptions&>(options);
}

}  // namespace

Registered fewshot_row() {
  return {
      "fewshot",
      "accuracy of linear probes on the features of a few images of each class",
      [](const config::Table::Variant& options) {
        return fewshot_metrics(fewshot_options(options));
      },
      "turn images into features",
      nullptr,
      [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<FewshotOptions>()); },
      [](const config::Table::Variant& options) -> std::unique_ptr<Evaluator> {
        return std::make_unique<Fewshot>(fewshot_options(options));
      },
      [](const models::Model& model,
         const config::Table::Variant& options) -> std::unique_ptr<models::ForwardPass> {
        return make_tap_pass(model, fewshot_options(options).tap);
      },
      [](const config::Table::Variant& options) {
        return std::map<std::string, std::string>{
            {"train_data", fewshot_options(options).train_data}};
      },
      fewshot_features};
}

}  // namespace eval
