// SPDX-License-Identifier: Apache-2.0
// Owners of elements must not matter: any number of shards gives the same updates, norms and state,
// and the same bits where the tree of cuts is equal.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/adafactor.hpp"
#include "optim/adamw.hpp"
#include "optim/momentum.hpp"
#include "optim/muon.hpp"
#include "optim/registry.hpp"
#include "optim/rmsprop.hpp"
#include "optim/sgd.hpp"
#include "rig.hpp"

namespace {

using rig::Job;
using rig::Tensor;
using rig::Tensors;

Tensors random_tensors(const std::vector<shard::Parameter>& parameters, uint64_t seed) {
  Tensors out;
  for (const auto& p : parameters) {
    base::Stream s(seed, p.path);
    Tensor& t = out[p.path];
    t.resize(size_t(p.count()));
    for (size_t i = 0; i < t.size(); ++i) t[i] = float(s.normal(i) * std::exp(s.sub(1).normal(i)));
  }
  return out;
}

std::vector<shard::Parameter> model() {
  using rig::parameter;
  return {parameter("a/kernel", {70, 130}),
          parameter("a/bias", {130}),
          parameter("b/query/kernel", {36, 3, 33}, 1),
          parameter("b/out/kernel", {3, 33, 36}, 1),
          parameter("b/scale", {1}, 1),
          parameter("c/embedding", {301, 40}, 2),
          parameter("c/conv", {4, 4, 3, 40}, 2),
          parameter("pos", {1, 36, 40}, 2)};
}

Job job_for(const std::string& variant) {
  Job s;
  s.parameters = model();
  s.groups = {"a/.*", ".*kernel"};
  s.options.kind = variant.substr(0, variant.find('_'));
  if (variant == "adafactor_clipped") {
    auto m = std::make_shared<optim::AdafactorOptions>();
    m->clipping_threshold = 0.5;
    m->momentum_type = device::DType::f32;
    s.options.method = m;
  }
  // adamw for all but kernels, whose rules have optimizers of their own.
  if (variant == "adamw_by_rule") {
    auto momentum = std::make_shared<optim::SgdOptions>();
    momentum->momentum = 0.9;
    s.options.rules = {
        {.match = "a/kernel", .kind = "sgd", .method = momentum},
        {.match = ".*kernel|pos",
         .kind = "adafactor",
         .method = std::make_shared<optim::AdafactorOptions>()},
    };
  }
  // Bits of products do not depend on threads, as at level "mesh".
  s.fixed_order = variant.starts_with("muon");
  if (variant == "muon_by_rule") {
    auto m = std::make_shared<optim::MuonOptions>();
    m->momentum_type = device::DType::bf16;
    m->scaling = optim::MuonOptions::Scaling::match_adamw;
    s.options.kind = "adafactor";  // measures nothing, unlike Muon
    s.options.rules = {
        {.match = "a/kernel", .kind = "sgd", .method = std::make_shared<optim::SgdOptions>()},
        {.match = ".*kernel|pos", .kind = "muon", .method = m}};
  }
  if (variant == "rmsprop_centered") {
    auto m = std::make_shared<optim::RmspropOptions>();
    m->momentum = 0.9;
    m->centered = true;
    s.options.method = m;
  }
  if (variant.starts_with("sgd_")) {
    auto m = std::make_shared<optim::SgdOptions>();
    m->momentum = 0.9;
    s.options.method = m;
    s.options.decay_form = optim::DecayForm::gradient;
  }
  if (variant == "sgd_larc")
    s.options.trust = optim::TrustOptions{.coefficient = 0.02, .clip = true};
  if (variant == "sgd_lars") {
    s.options.trust = optim::TrustOptions{.rule = kernels::Trust::lars, .exclude_vectors = true};
    s.options.clip_type = optim::ClipType::infinity;
    for (shard::Parameter& p : s.parameters) p.unit_rows = p.path == "c/embedding";
  }
  s.options.learning_rate = 0.1;
  s.options.weight_decay = 0.02;
  s.options.clip_norm = 50;
  for (const auto& p : s.parameters) {
    optim::ParameterPolicy policy;
    policy.decay_scale = p.path.ends_with("kernel");
    policy.frozen = p.path == "b/out/kernel";
    policy.lr_scale = p.path == "pos" ? 0.3 : 1;
    if (!s.options.rules.empty())
      policy.rule = p.path == "a/kernel" ? 0 : p.path == "pos" || policy.decay_scale > 0 ? 1 : -1;
    s.policies.push_back(policy);
  }
  // Equal parts of a unit must carry equal state.
  for (size_t p = 0; p < s.parameters.size() && !s.options.rules.empty(); ++p)
    s.parameters[p].element_state_bytes =
        s.options.method_options(s.policies[p].rule).element_state_bytes(s.parameters[p].shape);
  return s;
}

struct Outcome {
  Tensors weights, state;
  std::vector<double> norms;
};

void take(const optim::Norms& n, std::vector<double>& out) {
  out.push_back(n.global);
  out.insert(out.end(), n.per_parameter.begin(), n.per_parameter.end());
  out.insert(out.end(), n.per_group.begin(), n.per_group.end());
}

Outcome run(rig::Rig& r, const std::vector<shard::Parameter>& parameters, int from, int to) {
  Outcome out;
  for (int step = from; step <= to; ++step) {
    r.step(step, random_tensors(parameters, uint64_t(100 + step)));
    for (int rank = 0; rank < r.size(); ++rank) {  // every rank must have the same norms
      std::vector<double> mine;
      take(r.inspection(rank).gradients, mine);
      take(r.report(rank).parameters, mine);
      take(r.report(rank).updates, mine);
      if (rank == 0)
        out.norms.insert(out.norms.end(), mine.begin(), mine.end());
      else
        EXPECT_TRUE(std::equal(mine.rbegin(), mine.rend(), out.norms.rbegin()));
    }
  }
  out.weights = r.weights();
  out.state = r.state();
  return out;
}

Outcome run_all(Job s, int steps = 4) {
  rig::Rig r(s);
  r.set_weights(random_tensors(s.parameters, 1));
  return run(r, s.parameters, 1, steps);
}

// Needs the norms of weights and gradients before its update: two sums of each tensor except
// biases.
struct RatioOptions : optim::MethodOptions {
  std::unique_ptr<optim::Method> make(const shard::Fabric& fabric,
                                      const optim::Chosen& chosen) const override;
};

class Ratio : public optim::Method {
 public:
  Ratio(const shard::Fabric& fabric, const optim::Chosen& chosen) : Method(fabric, chosen) {}
  int64_t measures(int parameter) const override { return is_bias(parameter) ? 0 : 2; }
  void measure(const optim::Piece& piece, device::View weights, device::View gradient,
               device::View sums) override {
    EXPECT_FALSE(is_bias(piece.parameter));
    squares_.add({sums.slice(0, 1), weights});
    squares_.add({sums.slice(1, 1), gradient});
  }
  void measured(const optim::TensorTotals& totals) override {
    ratios_.assign(fabric_.layout.parameters().size(), 1);
    for (int p = 0; p < int(ratios_.size()); ++p)
      if (chosen(p) && !is_bias(p)) {
        const double* sums = totals.of(p).f64();
        ratios_[size_t(p)] = std::sqrt(sums[0] / sums[1]);
      }
  }
  void update(const optim::Piece& piece, const kernels::Update& update) override {
    kernels::ApplyUpdate a{update};
    a.update.rate = float(double(update.rate) * ratios_[size_t(piece.parameter)]);
    updates_.add(a);
  }
  void run() override {
    Method::run();
    squares_.run(fabric_.queue);
    updates_.run(fabric_.queue);
  }
  void list_state(std::vector<shard::TensorSlice>&) override {}

 private:
  bool is_bias(int parameter) const {
    return fabric_.layout.parameters()[size_t(parameter)].path.ends_with("bias");
  }
  std::vector<double> ratios_;  // by parameter
  kernels::OpList<kernels::SquareSums> squares_;
  kernels::OpList<kernels::ApplyUpdate> updates_;
};

std::unique_ptr<optim::Method> RatioOptions::make(const shard::Fabric& fabric,
                                                  const optim::Chosen& chosen) const {
  return std::make_unique<Ratio>(fabric, chosen);
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.state.size(), b.state.size());
  for (auto& [path, t] : a.weights) EXPECT_EQ(t, b.weights.at(path)) << path;
  for (auto& [name, t] : a.state) EXPECT_EQ(t, b.state.at(name)) << name;
}

void expect_near(const Tensor& a, const Tensor& b, double relative, const std::string& name) {
  double largest = 0, deviation = 0;
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double(a[i])));
    deviation = std::max(deviation, std::abs(double(a[i]) - b[i]));
  }
  EXPECT_LE(deviation, relative * largest) << name;
}

TEST(Measures, SeveralSumsOfWeightsAndGradients) {
  Job s = job_for("sgd");
  s.kind = device::Kind::cpu;  // this method reads its sums on the host
  s.options.method = std::make_shared<RatioOptions>();
  s.options.clip_norm = s.options.weight_decay = 0;
  s.cuts = 16;
  const Outcome one = run_all(s, 1);
  const Tensors weights = random_tensors(s.parameters, 1),
                gradients = random_tensors(s.parameters, 101);
  for (const shard::Parameter& p : s.parameters) {
    const Tensor &w = weights.at(p.path), &g = gradients.at(p.path), &now = one.weights.at(p.path);
    double of_weights = 0, of_gradient = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      of_weights += double(w[i]) * double(w[i]);
      of_gradient += double(g[i]) * double(g[i]);
    }
    const bool frozen = p.path == "b/out/kernel", bias = p.path.ends_with("bias");
    const double rate = frozen ? 0
                               : 0.1 * (p.path == "pos" ? 0.3 : 1) *
                                     (bias ? 1 : std::sqrt(of_weights / of_gradient));
    for (size_t i = 0; i < w.size(); ++i)
      ASSERT_NEAR(now[i], double(w[i]) - rate * double(g[i]),
                  1e-5 * (1 + std::abs(w[i]) + rate * std::abs(g[i])))
          << p.path;
  }
  for (auto [fsdp, sharding] : {std::pair{2, "sharded"}, {4, "sharded"}, {2, "replicated"}}) {
    s.fsdp = fsdp;
    s.optimizer_sharding = sharding;
    expect_same_bits(one, run_all(s, 1));
  }
}

// A state tensor needs no policy and has no gradient, optimizer state or norm. The optimizer leaves
// it unchanged.
TEST(State, IsNoBusinessOfOptimizers) {
  for (const char* kind :
       {"adafactor", "adamw", "lion", "momentum", "muon", "rmsprop", "sgd", "sgd_lars"}) {
    Job s = job_for(kind);
    const Outcome without = run_all(s, 2);
    s.parameters.push_back(rig::parameter("a/mean", {130}));
    s.parameters.back().kind = shard::ParameterKind::state;
    s.policies.push_back({.frozen = true});
    const Tensors before = random_tensors(s.parameters, 1);
    Outcome with = run_all(s, 2);
    EXPECT_EQ(with.weights.at("a/mean"), before.at("a/mean"));
    EXPECT_EQ(with.state, without.state);
    for (const auto& [path, t] : without.weights) EXPECT_EQ(t, with.weights.at(path)) << path;
    EXPECT_EQ(without.norms.front(), with.norms.front());
    optim::OptimizerOptions options;
    options.rules = {{.match = ".*kernel|.*bias|.*scale|.*embedding|.*conv|pos"}};
    const optim::Policies found = optim::resolve_policies(options, {}, s.parameters);
    EXPECT_TRUE(found.problems.empty());
    ASSERT_EQ(found.parameters.size(), s.parameters.size());
    EXPECT_TRUE(found.parameters.back().frozen && !found.parameters.front().frozen);
  }
}

class Sharding : public testing::TestWithParam<std::string> {};

TEST_P(Sharding, SameBitsWithSixteenCuts) {
  Job s = job_for(GetParam());
  s.cuts = 16;
  const Outcome one = run_all(s);
  for (auto [fsdp, sharding, threads] : {std::tuple{2, "sharded", 1},
                                         {4, "sharded", 1},
                                         {16, "sharded", 1},
                                         {1, "sharded", 2},
                                         {1, "replicated", 1},
                                         {2, "replicated", 2},
                                         {4, "replicated", 1}}) {
    SCOPED_TRACE(testing::Message() << fsdp << " " << sharding << " " << threads);
    Job other = s;
    other.fsdp = fsdp;
    other.optimizer_sharding = sharding;
    other.threads = threads;
    expect_same_bits(one, run_all(other));
  }
}

TEST_P(Sharding, SameNumbersOnThreeRanks) {
  Job s = job_for(GetParam());
  const Outcome one = run_all(s);
  for (int fsdp : {2, 3}) {
    s.fsdp = fsdp;
    s.cuts = fsdp;
    const Outcome other = run_all(s);
    for (auto& [path, t] : one.weights) expect_near(t, other.weights.at(path), 1e-6, path);
    for (size_t i = 0; i < one.norms.size(); ++i)
      EXPECT_NEAR(one.norms[i], other.norms[i], 2e-6 * one.norms[i]);
    // A stored bfloat16 next to a rounding boundary may round the other way.
    for (auto& [name, t] : one.state)
      expect_near(t, other.state.at(name), name.find("/momentum/") != name.npos ? 4e-3 : 1e-6,
                  name);
  }
}

TEST_P(Sharding, ResumesOnAnotherMesh) {
  Job s = job_for(GetParam());
  s.cuts = 16;
  const Outcome whole = run_all(s, 6);
  s.fsdp = 2;
  rig::Rig first(s);
  first.set_weights(random_tensors(s.parameters, 1));
  const Outcome half = run(first, s.parameters, 1, 3);
  s.fsdp = 4;
  s.optimizer_sharding = "replicated";
  rig::Rig second(s);
  second.set_weights(half.weights);
  second.set_state(half.state);
  Outcome end = run(second, s.parameters, 4, 6);
  std::vector<double> norms(whole.norms.begin() + int64_t(half.norms.size()), whole.norms.end());
  EXPECT_EQ(end.norms, norms);
  end.norms = whole.norms;
  expect_same_bits(whole, end);
}

TEST_P(Sharding, PlanCountsTheSameBytes) {
  for (auto [fsdp, sharding] :
       {std::pair{1, "replicated"}, {2, "replicated"}, {4, "sharded"}, {3, "sharded"}}) {
    Job s = job_for(GetParam());
    s.fsdp = fsdp;
    s.cuts = fsdp;
    s.optimizer_sharding = sharding;
    rig::Rig real(s);
    s.kind = device::Kind::plan;
    s.paper_of = real.queue(0).kind();
    rig::Rig plan(s);
    real.step(1, random_tensors(s.parameters, 5));
    plan.step(1);
    for (int rank = 0; rank < fsdp; ++rank) {
      EXPECT_EQ(real.reduced(rank).bytes, plan.reduced(rank).bytes);
      for (const char* category : {"optimizer", "workspace"}) {
        EXPECT_EQ(real.ledger(rank).peak_of(category), plan.ledger(rank).peak_of(category))
            << category;
        EXPECT_EQ(real.ledger(rank).peak_of(category), real.ledger(0).peak_of(category))
            << category;
      }
      for (int op = 0; op < int(kernels::Op::count); ++op) {
        const device::OpCost &a = real.queue(rank).costs()[size_t(op)],
                             &b = plan.queue(rank).costs()[size_t(op)];
        EXPECT_TRUE(a.calls == b.calls && a.flops == b.flops && a.bytes == b.bytes) << "op " << op;
      }
    }
  }
}

// Adafactor's second moments of unfactored tensors stay with their weights, so a rank may hold a
// whole small tensor. They count separately, like the row and column vectors that every rank holds.
TEST_P(Sharding, StatePerRankIsItsShare) {
  Job s = job_for(GetParam());
  rig::Rig one(s);
  s.fsdp = s.cuts = 4;
  rig::Rig four(s);
  int64_t apart = 0, moments = 0;
  for (const auto& [name, t] : one.state()) {
    if (name.find("/v_row/") != name.npos || name.find("/v_col/") != name.npos)
      apart += int64_t(t.size()) * 4;
    if (name.find("/v/") != name.npos) moments += int64_t(t.size()) * 4;
  }
  const int64_t whole = one.ledger(0).peak_of("optimizer") - apart - moments;
  const int64_t part = four.ledger(0).peak_of("optimizer") - apart - moments;
  // Padding is included: each unit's cut and each tensor of each state ends on its own 64-byte
  // line.
  EXPECT_LE(part, whole / 4 + 3 * 64 * int64_t(s.parameters.size() + 3));
}

INSTANTIATE_TEST_SUITE_P(Methods, Sharding,
                         testing::Values("adafactor", "adafactor_clipped", "adamw", "adamw_by_rule",
                                         "lion", "momentum", "muon", "muon_by_rule", "rmsprop",
                                         "rmsprop_centered", "sgd", "sgd_momentum", "sgd_larc",
                                         "sgd_lars"),
                         [](const auto& test) { return test.param; });

// Without a norm that all tensors share, each tensor gets the bits that its optimizer alone gives.
TEST(ByRule, EachTensorHasItsOwnOptimizer) {
  auto outcome = [](const std::string& variant) {
    Job s = job_for(variant);
    s.options.clip_norm = 0;
    s.options.decay_form = optim::DecayForm::schedule;
    return run_all(s);
  };
  const Outcome mixed = outcome("adamw_by_rule"), adamw = outcome("adamw"),
                sgd = outcome("sgd_momentum"), adafactor = outcome("adafactor");
  std::map<std::string, int> states;
  for (const shard::Parameter& p : model()) {
    const bool by_sgd = p.path == "a/kernel", kernel = p.path.ends_with("kernel");
    const Outcome& alone = by_sgd ? sgd : kernel || p.path == "pos" ? adafactor : adamw;
    EXPECT_EQ(mixed.weights.at(p.path), alone.weights.at(p.path)) << p.path;
    for (const auto& [name, t] : alone.state)
      if (name.ends_with("/" + p.path)) {
        ASSERT_TRUE(mixed.state.contains(name)) << name;
        EXPECT_EQ(mixed.state.at(name), t) << name;
        ++states[p.path];
      }
  }
  size_t all = 0;
  for (const auto& [path, count] : states) all += size_t(count);
  EXPECT_EQ(mixed.state.size(), all);  // no tensor has a state of another optimizer
  EXPECT_EQ(states.at("a/kernel"), 1);
  EXPECT_EQ(states.at("a/bias"), 2);
}

TEST(ShardingRegistry, EveryOptimizerIsCovered) { EXPECT_EQ(optim::methods().size(), 7u); }

}  // namespace
