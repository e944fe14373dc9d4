// SPDX-License-Identifier: Apache-2.0
// Evaluates linear probes on the model's features of a few images of each class (cappa.md 9.5): the
// share of test images whose class a probe predicts. All ranks embed both sets. The features of the
// training set are gathered by position; then each rank fits some of the probes, and each predicts
// the classes of its own test images. The result is the same on any number of ranks.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/memory_limit.hpp"
#include "data/stream/host_batch.hpp"
#include "eval/evaluator.hpp"
#include "eval/linear_probe.hpp"
#include "models/embedder.hpp"

namespace eval {
namespace {

constexpr int64_t kMaxClasses = 1'000'000;
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

struct FewshotOptions : config::Table::Variant {
  std::string train_data;
  std::vector<int64_t> shots = {1, 5, 10, 25};
  int64_t seeds = 3;
  std::vector<double> l2 = {1024};
  std::string tap = "pre_logits";
  void bind(config::Table& t) override;

  bool sweeps() const { return l2.size() > 1; }
  int64_t probes() const { return int64_t(shots.size()) * seeds; }
  // Probes are numbered by shots, then by seed.
  int64_t shots_of(int64_t probe) const { return shots[size_t(probe / seeds)]; }
  uint64_t seed_of(int64_t probe) const { return uint64_t(probe % seeds); }
};

template <class T>
std::string problem_of_list(const std::vector<T>& list) {
  if (list.empty()) return "names no number";
  for (const T& value : list)
    if (std::count(list.begin(), list.end(), value) > 1)
      return fmt::format("{} is there twice", value);
  return "";
}

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
        "features of an image: pre_logits, the vector that a head reads; encoded, all normalised "
        "tokens; blockNN, all tokens after block NN, counted from 00; blockNN_mean, their mean")
      .on_resume(may);
}

// Calls visit(position, features, label) for each example of the set that this rank embeds. `visit`
// adds the example to the journal, and `restore` gets the examples that the journal has. Returns
// false if the run must stop.
template <class Visit>
bool embed(const Context& context, const data::Dataset& set, const std::string& stage,
           const Journal::Take& restore, const Visit& visit) {
  auto& pass = dynamic_cast<models::EmbedPass&>(*context.pass);
  const Rounds rounds(context, set, stage, restore);
  const int64_t width = pass.taps().at(0).count();
  std::vector<float> features(size_t(context.batch * width));
  auto loader = rounds.loader(context, [](int64_t p) { return p; });
  for (int64_t round = 0; round < rounds.count(); ++round) {
    if (context.interrupted()) return false;
    data::BatchPtr batch = loader->next();
    const models::HostBatch host = data::host_batch(*batch, rounds.first(round));
    context.forward(
        [&](const models::Inputs& into) { pass.prepare(host, into); },
        [&](nn::Context& ctx, const models::Inputs& in) { pass.run(ctx, in, {features.data()}); });
    const device::View label = host.features.at("label");
    for (int64_t i = 0; i < host.examples && rounds.first(round) + i < set.size(); ++i) {
      const int32_t c = label.i32()[i];
      if (c < 0 || c >= kMaxClasses)
        base::fail(base::Exit::data, "[data.{}]: label {} of {} is not in [0, {})", set.name(), c,
                   set.key(rounds.first(round) + i), kMaxClasses);
      visit(rounds.first(round) + i, features.data() + i * width, c);
    }
    if (context.journal) context.journal->write();
  }
  return true;
}

// The features of all training images, on every rank.
struct Gathered {
  std::vector<float> x;
  LabelledRows rows;
};

// Refuses work that does not fit into the memory of this machine.
void need_memory(const data::Dataset& set, const std::string& tap, int64_t bytes) {
  const std::string purpose = fmt::format(
      "the features \"{}\" of {} images and the probes on them (eval.NAME.tap, eval.NAME.shots, "
      "data.{}.limit)",
      tap, set.size(), set.name());
  base::need_address_space(bytes, purpose);
  const int64_t memory = int64_t(::sysconf(_SC_PHYS_PAGES)) * int64_t(::sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    base::fail(base::Exit::mesh, "{} need {} MiB on each rank, and this machine has {} MiB",
               purpose, bytes >> 20, memory >> 20);
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
    Gathered gathered;
    std::vector<Fitted> fitted;
    std::vector<double> hits(size_t(options_.probes()) + 1, 0.0);
    if (!gather(context, train, gathered) || !fit(context, train, gathered.rows, fitted) ||
        !test(context, fitted, hits))
      return {.values = {}, .examples = 0, .interrupted = true};
    return result(context.dataset.size(), fitted, hits);
  }

 private:
  struct Fitted {
    LinearProbe probe;
    double l2 = 0;
  };

  bool gather(const Context& context, const data::Dataset& train, Gathered& out) const {
    const int64_t width = dynamic_cast<models::EmbedPass&>(*context.pass).taps().at(0).count();
    const int64_t n = train.size();
    need_memory(train, options_.tap, n * width * int64_t(sizeof(float)));
    out.x.assign(size_t(n * width), 0.0f);
    std::vector<double> labels(size_t(n), 0.0);
    // The journal keeps the features of an image and its label, whose bits are those of a float.
    std::vector<float> kept(size_t(width) + 1);
    auto place = [&](int64_t position) {
      std::copy_n(kept.begin(), width, out.x.begin() + position * width);
      labels[size_t(position)] = std::bit_cast<int32_t>(kept.back());
    };
    const bool complete = embed(
        context, train, "images for probes",
        [&](int64_t position, std::string_view bytes) {
          copy_values(bytes, std::span(kept));
          place(position);
        },
        [&](int64_t position, const float* x, int32_t label) {
          // x + 0 turns -0 into 0, as a sum over ranks does.
          for (int64_t f = 0; f < width; ++f) kept[size_t(f)] = x[f] + 0.0f;
          kept.back() = std::bit_cast<float>(label);
          place(position);
          if (context.journal) context.journal->add(position, std::span<const float>(kept));
        });
    if (!complete) return false;
    share_values(context.world, out.x);
    share_values(context.world, labels);
    out.rows = {out.x.data(), width, {labels.begin(), labels.end()}, 0};
    out.rows.classes = 1 + int64_t(*std::max_element(labels.begin(), labels.end()));
    return true;
  }

  // Fits the probes, each on one rank.
  bool fit(const Context& context, const data::Dataset& train, const LabelledRows& rows,
           std::vector<Fitted>& out) const {
    const int64_t width = rows.features, classes = rows.classes, n = options_.probes();
    const int64_t weights = (width + 1) * classes, numbers = 1 + 2 * width + weights;
    need_memory(train, options_.tap, bytes_of_fit(rows) + 2 * 8 * n * numbers);
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
        [&](int64_t position, const float* x, int32_t label) {
          of_image.back() = 0;
          for (size_t p = 0; p < fitted.size(); ++p) {
            const int64_t predicted = fitted[p].probe.predict(x, scores);
            of_image[p] = predicted == int64_t(label);
            of_image.back() += predicted < 0;
          }
          count();
          if (context.journal) context.journal->add(position, std::span<const double>(of_image));
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
        auto* embedder = dynamic_cast<const models::Embedder*>(&model);
        return embedder ? embedder->make_embed_pass({fewshot_options(options).tap}) : nullptr;
      },
      [](const config::Table::Variant& options) {
        return std::map<std::string, std::string>{
            {"train_data", fewshot_options(options).train_data}};
      },
      fewshot_features};
}

}  // namespace eval
