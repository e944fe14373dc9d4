// SPDX-License-Identifier: Apache-2.0
// Parts that tests of evaluators share: numbered samples, ranks that run one after the other, and
// evaluators made from keys.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "eval/evaluator.hpp"
#include "tests/unit/silent_comm.hpp"

namespace rig {

using device::DType;

// Sample i holds its number as an image and as the field `answer`. Numbers begin at 1, so padding
// (all zero) is not a sample.
class Numbers : public data::Source {
 public:
  Numbers(std::string answer, int64_t size) : answer_(std::move(answer)), size_(size) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("numbers:{}", index); }
  std::string summary() const override { return ""; }
  data::Sample read(int64_t index) const override {
    data::Array image(DType::f32, {1}), answer(DType::i32, {1});
    image.f32()[0] = float(index + 1);
    answer.i32()[0] = int32_t(index + 1);
    data::Sample sample;
    sample["image"] = std::move(image);
    sample[answer_] = std::move(answer);
    return sample;
  }
  data::Spec spec() const {
    return {{"image", data::FieldSpec::array(DType::f32, {1})},
            {answer_, data::FieldSpec::array(DType::i32, {1})}};
  }

 private:
  std::string answer_;
  int64_t size_;
};

// Runs ranks one after the other, twice. In the first round a sum only collects the values of each
// rank. In the second round every rank gets the whole sum.
class Ranks : public SilentComm {
 public:
  explicit Ranks(int size) : SilentComm(size) {}
  comm::Ticket all_reduce(device::View view, device::Queue&) override {
    total_.resize(size_t(view.count), 0.0);
    for (int64_t i = 0; i < view.count; ++i) {
      if (collecting_) total_[size_t(i)] += view.f64()[i];
      if (!collecting_) view.f64()[i] = total_[size_t(i)];
    }
    return {};
  }

  template <class F>
  void run_all(const F& f) {
    for (bool collecting : {true, false})
      for (rank_ = 0, collecting_ = collecting; rank_ < size_; ++rank_) f(rank_, collecting);
  }

 private:
  bool collecting_ = true;
  std::vector<double> total_;
};

struct Root {
  eval::EvalOptions options;
  void bind(config::Table& t) { t.table("eval", options, ""); }
};

// Returns the options of [eval] with further keys of the kind.
inline eval::EvalOptions options(const std::string& kind, const std::string& keys = "") {
  Root root;
  config::Deck deck(
      config::DeckSource{
          "deck.toml",
          fmt::format("[eval]\nkind = \"{}\"\ndata = \"val\"\nevery_steps = 1\n{}\n", kind, keys),
          {}},
      root);
  EXPECT_TRUE(deck.problems().lines.empty());
  return root.options;
}

inline data::Dataset numbers(const std::string& answer, int64_t examples) {
  auto source = std::make_unique<Numbers>(answer, examples);
  const data::Spec spec = source->spec();
  return {"val", std::move(source), data::Pipeline("", spec, {})};
}

// Runs a made-up pass, which uses no context, on a batch.
inline void forward(const models::ForwardPass& pass, const models::HostBatch& batch,
                    const std::function<void(nn::Context&, const models::Inputs&)>& run) {
  device::Queue queue(device::Kind::plan);
  device::Ledger ledger;
  device::Arena arena;
  const shard::Layout layout({}, {}, {}, 1, 1);
  const std::unique_ptr<comm::Comm> alone = comm::make_plan_comm(1);
  comm::Mesh mesh = comm::make_plan_mesh({1, 1}, *alone);
  shard::WeightStore weights({layout, mesh, queue, ledger}, 0);
  nn::Context ctx{{.queue = queue, .arena = arena}, {.weights = weights}, {.batch = 1}, {}};
  pass.prepare(batch, {});
  run(ctx, {});
}
inline auto runs_of(const models::ForwardPass& pass) {
  return [&pass](const auto& batch, const auto& run) { forward(pass, batch, run); };
}

}  // namespace rig
