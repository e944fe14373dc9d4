// SPDX-License-Identifier: Apache-2.0
// Parts for tests of evaluators that score pairs: ranks that run at the same time, and a made-up
// likelihood of texts.
#pragma once

#include <barrier>
#include <mutex>
#include <thread>

#include "models/caption_scorer.hpp"
#include "rig.hpp"

namespace rig {

// Ranks as threads. Sums are formed in the order of ranks.
class TogetherRanks {
 public:
  explicit TogetherRanks(int size) : barrier_(size), views_(size_t(size)) {}

  // Runs f(comm) on all ranks.
  template <class F>
  void run_all(const F& f) {
    std::vector<std::thread> threads;
    for (int r = 0; r < int(views_.size()); ++r)
      threads.emplace_back([this, r, &f] {
        Rank rank(*this, r);
        f(rank);
      });
    for (std::thread& t : threads) t.join();
  }

 private:
  class Rank : public Ranks {
   public:
    Rank(TogetherRanks& all, int rank) : Ranks(int(all.views_.size())), all_(all), mine_(rank) {}
    int rank() const override { return mine_; }
    comm::Ticket all_reduce(device::View view, device::Queue&) override {
      all_.views_[size_t(mine_)] = view;
      all_.barrier_.arrive_and_wait();
      std::vector<double> sum(size_t(view.count), 0.0);
      for (const device::View& v : all_.views_) {
        EXPECT_EQ(v.count, view.count) << "all ranks must exchange the same numbers";
        for (int64_t i = 0; i < std::min(v.count, view.count); ++i) sum[size_t(i)] += v.f64()[i];
      }
      all_.barrier_.arrive_and_wait();
      std::copy(sum.begin(), sum.end(), view.f64());
      all_.barrier_.arrive_and_wait();
      return {};
    }

   private:
    TogetherRanks& all_;
    int mine_;
  };

  std::barrier<> barrier_;
  std::vector<device::View> views_;
};

// Scores a text by `likelihood(image, ids)`; image 0 is the first sample of a set, -1 is padding.
class MadeUpPairs : public models::PairScorePass {
 public:
  using Likelihood = std::function<double(int64_t image, const int32_t* ids, int64_t length)>;
  explicit MadeUpPairs(Likelihood likelihood) : likelihood_(std::move(likelihood)) {}
  std::string name() const override { return "score pairs"; }
  std::vector<models::InputSpec> inputs() const override { return {}; }
  void plan(nn::Context&, const models::Inputs&) override {}
  void prepare(const models::HostBatch& batch, const models::Inputs&) const override {
    batch_ = batch;
  }
  std::vector<int64_t> tokens(const models::TextList& texts) const override {
    std::vector<int64_t> out;
    for (int64_t t = 0; t < texts.count(); ++t) {
      const int32_t* ids = texts.ids.data() + t * texts.length;
      out.push_back(texts.length - std::count(ids, ids + texts.length, 0));
    }
    return out;
  }
  void run(nn::Context&, const models::Inputs&, const models::TextList& texts,
           double* scores) override {
    ++calls;
    for (int64_t i = 0; i < batch_.examples; ++i) {
      const int64_t image = int64_t(batch_.features.at("image").f32()[i]) - 1;
      for (int64_t t = 0; t < texts.count(); ++t)
        scores[i * texts.count() + t] =
            image < 0 ? 1e9 : likelihood_(image, texts.ids.data() + t * texts.length, texts.length);
    }
  }
  int64_t examples() const { return batch_.examples; }
  int64_t calls = 0;

 private:
  Likelihood likelihood_;
  mutable models::HostBatch batch_;
};

// Scores a group of texts by the mean of such numbers, as a model with embeddings does.
class MadeUpCosines : public MadeUpPairs {
 public:
  using MadeUpPairs::MadeUpPairs;
  models::PairScore kind() const override { return models::PairScore::cosine; }
  void begin() override { ++begun; }
  void run(nn::Context& ctx, const models::Inputs& inputs, const models::TextList& texts,
           double* scores) override {
    EXPECT_EQ(begun, 1) << "one list of texts";
    std::vector<double> each(size_t(examples() * texts.count()));
    MadeUpPairs::run(ctx, inputs, texts, each.data());
    std::fill_n(scores, examples() * columns(texts), 0.0);
    for (size_t i = 0; i < each.size(); ++i)
      scores[i / size_t(texts.group)] += each[i] / double(texts.group);
  }
  int64_t begun = 0;
};

// Runs an evaluator on `size` ranks and returns their results. Each rank stops before it runs the
// model more than `most_calls` times. Rank 0 writes files to the folder, if there is one.
template <class Pass = MadeUpPairs>
std::vector<eval::Result> evaluate_pairs(const eval::EvalOptions& options, const data::Dataset& set,
                                         int64_t batch, int size,
                                         const MadeUpPairs::Likelihood& likelihood,
                                         int64_t most_calls = 1000000,
                                         const std::string& folder = "") {
  std::vector<eval::Result> out(static_cast<size_t>(size));
  TogetherRanks ranks(size);
  ranks.run_all([&](comm::Comm& world) {
    Pass pass(likelihood);
    out[size_t(world.rank())] =
        eval::make_evaluator(options)->run({.world = world,
                                            .dataset = set,
                                            .loader = {},
                                            .batch = batch,
                                            .pass = &pass,
                                            .forward = runs_of(pass),
                                            .interrupted = [&] { return pass.calls == most_calls; },
                                            .folder = world.rank() == 0 ? folder : ""});
  });
  return out;
}

}  // namespace rig
