// SPDX-License-Identifier: Apache-2.0
// Evaluates retrieval among the images and captions of a set, by the scores of all pairs: the
// likelihood of each caption for each image, or the cosine of their embeddings. Image to text: the
// caption of an image is found if it is among the k best ones for this image. Text to image: an
// image is found if it is among the k images for which its caption scores best. Among equally good
// ones the first come first. The result is exact for any size of the set, number of ranks and batch
// size.
#include <algorithm>
#include <cmath>

#include "eval/captions/pair_scores.hpp"

namespace eval {
namespace {

struct RetrievalOptions : config::Table::Variant {
  std::vector<int64_t> k = {1, 5, 10};
  PairOptions pairs;
  void bind(config::Table& t) override {
    bind_k(t, k,
           "recall at K: an image's own caption, or a caption's own image, is among the K best; "
           "among equally good ones the first come first");
    pairs.bind(t);
  }
};

class Retrieval : public Evaluator {
 public:
  explicit Retrieval(const RetrievalOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no caption to find", set.name());
  }

  Result run(const Context& context) override {
    const int64_t n = context.dataset.size();
    models::TextList texts;
    PairScores scores{.texts = n};
    const bool complete =
        read_captions(context, texts) &&
        score_pairs(
            context, texts,
            [&](int64_t position, std::string_view bytes) {
              std::vector<double> of_texts(static_cast<size_t>(n));
              copy_values(bytes, std::span(of_texts));
              scores.add(position, of_texts.data());
            },
            [&](const data::Batch&, int64_t, int64_t position, const double* of_texts) {
              scores.add(position, of_texts);
              if (context.journal)
                context.journal->add(position, std::span<const double>(of_texts, size_t(n)));
            });
    if (!complete) return {.values = {}, .examples = 0, .interrupted = true};
    adjust(context, options_.pairs, texts, scores);
    const std::vector<double> to_text = ranks_of_texts(context, scores),
                              to_image = ranks_of_images(context, scores);
    Result result{{}, n, "images"};
    for (const auto& [name, ranks] : {std::pair{"i2t_r", &to_text}, {"t2i_r", &to_image}})
      for (int64_t k : options_.k)
        result.values.emplace_back(fmt::format("{}{}", name, k), recall(ranks->data(), n, k));
    return result;
  }

 private:
  // Reads the ids of all captions, each on one rank. Returns false if the run must stop.
  static bool read_captions(const Context& context, models::TextList& texts) {
    const int64_t n = context.dataset.size();
    texts.length = data::count_of(context.dataset.spec().at("labels").shape);
    std::vector<double> ids(size_t(n * texts.length), 0.0);
    auto place = [&](int64_t position, std::span<const int32_t> of_text) {
      std::ranges::copy(of_text, ids.begin() + position * texts.length);
    };
    const Rounds rounds(context, context.dataset, "captions",
                        [&](int64_t position, std::string_view bytes) {
                          std::vector<int32_t> of_text(static_cast<size_t>(texts.length));
                          copy_values(bytes, std::span(of_text));
                          place(position, of_text);
                        });
    auto loader = rounds.loader(context, [](int64_t p) { return p; });
    for (int64_t round = 0; round < rounds.count(); ++round) {
      if (context.interrupted()) return false;
      const data::BatchPtr batch = loader->next();
      const data::Array& labels = batch->array("labels");
      for (int64_t i = 0; i < context.batch && rounds.first(round) + i < n; ++i) {
        const std::span of_text(labels.i32() + i * texts.length, size_t(texts.length));
        place(rounds.first(round) + i, of_text);
        if (context.journal) context.journal->add(rounds.first(round) + i, of_text);
      }
      if (context.journal) context.journal->write();
    }
    share_values(context.world, ids);
    texts.ids.assign(ids.begin(), ids.end());
    return true;
  }

  // Returns the rank of each image's own caption among all captions.
  static std::vector<double> ranks_of_texts(const Context& context, PairScores& scores) {
    std::vector<double> ranks(size_t(scores.texts), 0.0);
    for (size_t i = 0; i < scores.positions.size(); ++i)
      ranks[size_t(scores.positions[i])] = rank_of(scores.of(i), scores.texts, scores.positions[i]);
    share_values(context.world, ranks);
    return ranks;
  }

  // Returns the rank of each caption's own image among all images. Each rank counts how many of its
  // images come before. Adding the counts is exact.
  static std::vector<double> ranks_of_images(const Context& context, PairScores& scores) {
    std::vector<double> own(size_t(scores.texts), 0.0), before(own);
    for (size_t i = 0; i < scores.positions.size(); ++i)
      own[size_t(scores.positions[i])] = scores.of(i)[scores.positions[i]];
    share_values(context.world, own);
    for (size_t i = 0; i < scores.positions.size(); ++i)
      for (int64_t t = 0; t < scores.texts; ++t) {
        const double score = scores.of(i)[t], best = own[size_t(t)];
        if (std::isnan(score) || std::isnan(best))
          before[size_t(t)] = std::nan("");
        else
          before[size_t(t)] +=
              score > best || (score == best && scores.positions[i] < t) ? 1.0 : 0.0;
      }
    share_values(context.world, before);
    return before;
  }

  RetrievalOptions options_;
};

}  // namespace

Registered retrieval_row() {
  return {
      "retrieval",
      "image to text and text to image by the likelihood of captions or the cosine of embeddings, "
      "recall at k; keeps images times captions scores in memory, 8 bytes each, divided among the "
      "ranks",
      [](const config::Table::Variant& options) {
        std::vector<Metric> out;
        const std::vector<int64_t>& all = dynamic_cast<const RetrievalOptions&>(options).k;
        for (int64_t k : all)
          out.push_back({fmt::format("i2t_r{}", k), "1",
                         fmt::format("image to text: share of the images whose own caption is "
                                     "among the {} best ones",
                                     k)});
        for (int64_t k : all)
          out.push_back({fmt::format("t2i_r{}", k), "1",
                         fmt::format("text to image: share of the captions whose own image is "
                                     "among the {} best ones of the caption",
                                     k)});
        return out;
      },
      "score captions",
      nullptr,
      [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<RetrievalOptions>()); },
      [](const config::Table::Variant& options) -> std::unique_ptr<Evaluator> {
        return std::make_unique<Retrieval>(dynamic_cast<const RetrievalOptions&>(options));
      },
      [](const models::Model& model, const config::Table::Variant& options) {
        return make_pair_pass(model, dynamic_cast<const RetrievalOptions&>(options).pairs);
      }};
}

}  // namespace eval
