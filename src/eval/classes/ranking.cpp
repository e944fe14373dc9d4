// SPDX-License-Identifier: Apache-2.0
#include "eval/classes/ranking.hpp"

#include <algorithm>

#include "data/stream/host_batch.hpp"
#include "eval/class_metrics.hpp"
#include "eval/features/labelled_features.hpp"

namespace eval {
namespace {

// The columns of an image's numbers. Losses and ranks have a column for each head. Hits have a
// column for each K of precision_at, then of recall_at. Columns from `counted` on exist only if the
// keys need them.
struct Places {
  size_t loss, rank, counted, known, shown, hits;
  explicit Places(size_t heads)
      : loss(0),
        rank(heads),
        counted(2 * heads),
        known(counted + 1),
        shown(counted + 2),
        hits(counted + 3) {}
};
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

class Ranking : public Evaluator {
 public:
  explicit Ranking(const RankingKeys& keys)
      : keys_(keys), heads_(std::max<size_t>(1, keys.heads.size())), at_(heads_) {
    CHECK(heads_ == 1 || (!keys.scores() && !keys.masked()), "{} heads have other numbers", heads_);
    hits_ = keys.precision_at;
    hits_.insert(hits_.end(), keys.recall_at.begin(), keys.recall_at.end());
  }

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no example to classify", set.name());
  }

  Result run(const Context& context) override {
    const int64_t n = context.dataset.size();
    const size_t columns = keys_.scores()   ? at_.hits + hits_.size()
                           : keys_.masked() ? at_.known
                                            : at_.counted;
    std::vector<double> values(columns * size_t(n), 0.0), numbers(columns);
    OwnScores own;
    if (keys_.mean_ap) own.classes = size_t(context.pass_as<ClassPass>().classes());
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
    if (keys_.mean_ap)
      if (const std::optional<double> mean = mean_average_precision(context, own))
        result.values.insert(result.values.begin() + at_mean_ap(), {"mean_ap", *mean});
    return result;
  }

 private:
  int64_t at_mean_ap() const { return int64_t(keys_.k.size()) + keys_.targets.empty(); }

  // Runs the model on a batch. Also keeps the scores that average precision needs.
  Columns classify(const Context& context, const data::Batch& batch, int64_t first,
                   OwnScores& own) const {
    const auto n = size_t(batch.size());
    Columns out(at_.hits + hits_.size(), std::vector<double>(n, 0.0));
    models::HostBatch host = data::host_batch(batch, first);
    std::vector<int32_t> labels(n, 0);
    for (size_t i = 0; i < n; ++i) {
      const int32_t label = keys_.targets.empty() ? batch.array("label").i32()[i] : 0;
      const bool labelled = !keys_.skip_unlabelled || label != -1;
      labels[i] = labelled ? label : 0;
      out[at_.counted][i] =
          labelled && (keys_.mask.empty() || batch.array(keys_.mask).i32()[i] != 0);
    }
    if (keys_.masked() || !keys_.targets.empty())
      host.features["label"] = device::view(labels.data(), int64_t(n));
    auto& pass = context.pass_as<ClassPass>();
    const auto classes = size_t(pass.classes());
    std::vector<double> loss(heads_ * n), rank(loss);
    std::vector<float> scores(keys_.scores() ? n * classes : 0), targets(scores.size(), 0.0f);
    context.forward(host, [&](nn::Context& ctx, const models::Inputs& in) {
      pass.run(ctx, in, {loss.data(), rank.data(), scores.data()});
    });
    for (size_t h = 0; h < heads_; ++h) {
      std::copy_n(loss.begin() + int64_t(h * n), n, out[at_.loss + h].begin());
      std::copy_n(rank.begin() + int64_t(h * n), n, out[at_.rank + h].begin());
    }
    if (!keys_.scores()) return out;
    if (!keys_.targets.empty())
      std::copy_n(batch.array(keys_.targets).f32(), targets.size(), targets.begin());
    for (size_t i = 0; i < n; ++i) {
      if (keys_.targets.empty()) targets[i * classes + size_t(labels[i])] = 1;
      if (out[at_.counted][i] == 0)
        std::fill_n(targets.begin() + int64_t(i * classes), classes, -1);
      count(scores.data() + i * classes, targets.data() + i * classes, i, int64_t(classes), out);
    }
    const std::span<const float> scored(scores), wanted(targets);
    for (size_t i = 0; keys_.mean_ap && i < n; ++i)
      if (first + int64_t(i) < context.dataset.size())
        own.add(first + int64_t(i), scored.subspan(i * classes, classes),
                wanted.subspan(i * classes, classes));
    return out;
  }

  void count(const float* scores, const float* targets, size_t image, int64_t classes,
             Columns& out) const {
    const ClassCounts counts = count_classes(scores, targets, classes, hits_);
    out[at_.known][image] = counts.known;
    out[at_.shown][image] = counts.shown;
    for (size_t i = 0; i < hits_.size(); ++i) out[at_.hits + i][image] = counts.hits[i];
    if (!keys_.targets.empty()) out[at_.rank][image] = counts.first;
  }

  // all: [columns] of [n], the numbers of all images.
  Result result_of(const std::vector<const double*>& all, int64_t n) const {
    // Sums over the images that count, in the order of positions.
    auto sum = [&](auto of_image) {
      double total = 0;
      for (int64_t i = 0; i < n; ++i)
        if (!keys_.masked() || all[at_.counted][i] != 0) total += double(of_image(i));
      return total;
    };
    const double counted = sum([](int64_t) { return 1; });
    Result result{{}, int64_t(counted), "images"};
    if (counted == 0) return result;
    for (size_t h = 0; h < heads_; ++h) {
      const std::string name = keys_.heads.empty() ? "" : keys_.heads[h] + "_";
      const double* const rank = all[at_.rank + h];
      for (int64_t k : keys_.k)
        result.values.emplace_back(fmt::format("{}top{}", name, k),
                                   sum([&](int64_t i) { return rank[i] < double(k); }) / counted);
      if (keys_.targets.empty())
        result.values.emplace_back(name + "loss",
                                   sum([&](int64_t i) { return all[at_.loss + h][i]; }) / counted);
    }
    for (size_t h = 0; h < hits_.size(); ++h) {
      const bool precision = h < keys_.precision_at.size();
      const double of = sum([&](int64_t i) {
        return precision ? std::min(all[at_.known][i], double(hits_[h])) : all[at_.shown][i];
      });
      if (of > 0)
        result.values.emplace_back(
            fmt::format("{}_at_{}", precision ? "precision" : "recall", hits_[h]),
            sum([&](int64_t i) { return all[at_.hits + h][i]; }) / of);
    }
    return result;
  }

  // Returns the mean over the classes that any image shows. The ranks exchange the scores of some
  // classes at a time, and share the work on them.
  static std::optional<double> mean_average_precision(const Context& context,
                                                      const OwnScores& own) {
    const int64_t n = context.dataset.size(), classes = context.pass_as<ClassPass>().classes(),
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

  RankingKeys keys_;
  size_t heads_;
  Places at_;
  std::vector<int64_t> hits_;  // each K of precision_at, then of recall_at
};

}  // namespace

std::unique_ptr<Evaluator> make_ranking(const RankingKeys& keys) {
  return std::make_unique<Ranking>(keys);
}

}  // namespace eval
