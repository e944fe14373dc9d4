// SPDX-License-Identifier: Apache-2.0
// The whole small model through the real engine (run with 1, 2, 3 and 4 ranks): gradients of every
// parameter tensor against central differences of the loss, recompute policies, frozen parameters,
// dropout on every mesh, examples without labels, Cap and CapPa. Whatever several ranks compute is
// compared with what each rank computes alone in the same process.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <regex>
#include <set>

#include "models/cappa.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

using Floats = std::vector<float>;
using models::Cappa;

comm::Session* session = nullptr;
int checks = 0, failures = 0;

void expect(bool good, const std::string& text) {
  ++checks;
  if (good) return;
  if (++failures <= 20)
    std::printf("FAILED on rank %d: %s\n", session->world().rank(), text.c_str());
}
void say(const std::string& text) {
  if (session->world().rank() == 0) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

// A mesh of this rank alone.
struct Alone {
  static std::unique_ptr<comm::Comm> one() {
    return session->split(session->world().rank(), 0, comm::SumOrder::tree);
  }
  std::unique_ptr<comm::Comm> world = one();
  comm::Mesh mesh{.shape = {1, 1}, .world = world.get(), .fsdp = one(), .replica = one()};
};

std::vector<comm::MeshShape> shapes() {
  std::vector<comm::MeshShape> out;
  int ranks = session->world().size();
  for (int replica = 1; replica <= ranks; ++replica)
    if (ranks % replica == 0) out.push_back({replica, ranks / replica});
  return out;
}
// Of four ranks the mesh with both axes: for what does not depend on the mesh, which `sums` shows.
std::vector<comm::MeshShape> few_shapes() {
  return session->world().size() == 4 ? std::vector<comm::MeshShape>{{2, 2}} : shapes();
}
bool power_of_two() { return std::has_single_bit(unsigned(session->world().size())); }

using Change = std::function<void(step::EngineOptions&, models::CappaOptions&)>;
step::EngineOptions options_of(const tests::Case& c, const Change& change) {
  step::EngineOptions o = tests::engine_options(c, 10);
  auto m = std::make_shared<models::CappaOptions>(tests::small_cappa(c.dropout));
  if (change) change(o, *m);
  o.model.options = m;
  return o;
}

// The initial head is zero, and with it almost every gradient: give everything a value.
void stir(step::Engine& engine) {
  engine.initialise();
  for (const shard::TensorSlice& s : engine.state()) {
    if (!s.name.starts_with("/params/")) continue;
    double amount = s.name.find("LogitsDense/kernel") != std::string::npos ? 0.3
                    : s.shape.size() == 1                                  ? 0.1
                                                                           : 0.02;
    for (const auto& part : s.parts)
      for (int64_t i = part.begin; i < part.end; ++i)
        static_cast<float*>(part.data)[i - part.begin] +=
            float(amount * base::Stream(99, s.name).normal(uint64_t(i)));
  }
  engine.publish();
}

// Sets elements of a tensor wherever this rank holds them.
template <class Value>
void set(const std::vector<shard::TensorSlice>& state, const std::string& name, Value value) {
  for (const shard::TensorSlice& s : state)
    if (s.name == name)
      for (const auto& part : s.parts)
        for (int64_t i = part.begin; i < part.end; ++i)
          static_cast<float*>(part.data)[i - part.begin] = value(i);
}

// Every whole gradient, by path, at every rank: each adds its part to zeros, which is exact.
std::map<std::string, Floats> whole_gradients(step::Engine& engine, const comm::Mesh& mesh) {
  const shard::Layout& layout = engine.layout();
  std::map<std::string, Floats> out;
  for (const shard::Parameter& p : layout.parameters())
    out[p.path].assign(p.trained() ? size_t(p.size) : 0, 0);
  for (int u = 0; u < int(layout.units().size()); ++u) {
    const shard::Unit& unit = layout.units()[size_t(u)];
    if (!unit.trained() || mesh.replica_index != 0 ||
        (!unit.strategy.optimizer_sharded && mesh.fsdp_index != 0))
      continue;
    device::View g = engine.owned_gradient(u);
    for (const shard::Segment& s :
         layout.segments(u, layout.owned_begin(u, mesh.fsdp_index), g.count))
      std::copy_n(g.f32() + s.offset, s.count(),
                  out[layout.parameters()[size_t(s.parameter)].path].begin() + s.begin);
  }
  for (auto& [path, g] : out)
    mesh.world->all_reduce(device::view(g.data(), int64_t(g.size()))).wait();
  return out;
}

// ---- gradients

// Predicts, from the gradient and the numbers really stored, what central differences of fourth
// order of the loss must come to, along some directions in each tensor: the gradient itself, a
// random one, the steepest element and a random element.
void check_gradients(comm::Mesh& mesh, const std::string& name, tests::Case c, const Change& change,
                     int probes) {
  c.global_batch = 12;
  c.micro_batch = 12;
  c.level = "run";
  c.kind = "sgd";
  c.mesh = mesh.shape;
  step::Engine engine(options_of(c,
                                 [&](step::EngineOptions& o, models::CappaOptions& m) {
                                   if (change) change(o, m);
                                   o.optimizer.learning_rate = 0;
                                   o.optimizer.weight_decay = 0;
                                   o.optimizer.clip_norm = 0;
                                 }),
                      mesh, device::Kind::cpu);
  stir(engine);
  // the inputs stay where the first step put them
  auto loss = [&] { return engine.step(1, {}).loss(); };
  tests::run_step(engine, mesh, 1);
  std::vector<shard::TensorSlice> state = engine.state();
  const auto gradients = whole_gradients(engine, mesh);
  const auto weights = tests::whole_state(engine, *mesh.world);
  double largest = 0, worst = 0;
  int tensors = 0;
  for (const auto& [path, g] : gradients)
    for (float v : g) largest = std::max(largest, double(std::abs(v)));
  expect(largest > 0.01, name + ": gradients are too small to be checked");
  for (const auto& [path, gradient] : gradients) {
    const auto& g = gradient;  // Clang before 16 lets no lambda capture what [path, gradient] names
    ++tensors;
    const std::string tensor = "/params/" + path;
    const float* w = reinterpret_cast<const float*>(weights.at(tensor).data());
    const int64_t n = int64_t(g.size());
    base::Stream s(8, path);
    double norm = 0;
    for (float v : g) norm += double(v) * double(v);
    norm = std::sqrt(norm);
    const int64_t steepest =
        std::max_element(g.begin(), g.end(),
                         [](float a, float b) { return std::abs(a) < std::abs(b); }) -
        g.begin();
    const int64_t any = int64_t(s.bits64(0) % uint64_t(n));
    for (int probe = 0; probe < probes; ++probe) {
      auto along = [&](int64_t i) -> double {
        if (probe == 0) return norm > 0 ? double(g[size_t(i)]) / norm : 0;
        if (probe == 1) return i == steepest;
        if (probe == 2) return (s.bits(uint64_t(i + 100)) & 1 ? 1 : -1) / std::sqrt(double(n));
        return i == any;
      };
      // A step that changes the loss by little, for the curvature, but by much more than its
      // rounding error of about 1e-7.
      double slope = 0, found = 0, predicted = 0;
      for (int64_t i = 0; i < n; ++i) slope += double(g[size_t(i)]) * along(i);
      const double h = std::min(0.05, 0.02 / std::abs(slope));
      for (auto [steps, factor] : {std::pair{1, 8.0}, {-1, -8.0}, {2, -1.0}, {-2, 1.0}}) {
        auto moved = [&, k = steps](int64_t i) { return w[i] + float(k * h * along(i)); };
        set(state, tensor, moved);
        found += factor * loss() / (12 * h);
        for (int64_t i = 0; i < n; ++i)
          predicted += factor * double(g[size_t(i)]) * (double(moved(i)) - double(w[i])) / (12 * h);
      }
      set(state, tensor, [&](int64_t i) { return w[i]; });
      double error = std::abs(found - predicted), allowed = 3e-4 * std::abs(predicted) + 1e-5;
      worst = std::max(worst, error / allowed);
      // The encoder's key biases have none: a constant added to a row of scores changes nothing.
      if (probe == 0 && !path.ends_with("key/bias"))
        expect(predicted > 1e-3, path + ": too small a gradient to be checked");
      expect(error <= allowed,
             fmt::format("{}: {} along direction {}: {:.6g} by differences, {:.6g} by backward",
                         name, path, probe, found, predicted));
    }
  }
  expect(tensors == int(engine.layout().parameters().size()),
         name + ": every tensor has a gradient");
  say(
      fmt::format("gradients: {}, mesh {}x{}, {} directions in each of {} tensors, worst error "
                  "{:.2f} of the tolerance",
                  name, mesh.shape.replica, mesh.shape.fsdp, probes, tensors, worst));
}

void gradients() {
  Alone alone;
  auto cap = [](auto&, auto& m) {
    m.masked_pred_prob = 0;
    m.decoder.bias = false;
  };
  auto fixed = [](auto&, auto& m) {
    m.learned_positions = false;
    m.masking_ratio = 1;
    m.decoder.width = m.decoder.heads = m.decoder.mlp = 0;
  };
  auto shared = [](auto& o, auto& m) {
    m.label_smoothing = 0.1;
    o.memory.recompute = models::Recompute::mlp;
  };
  if (session->world().size() == 1) {
    check_gradients(alone.mesh, "CapPa", {}, {}, 4);
    check_gradients(alone.mesh, "CapPa, dropout", {.mesh = {}, .dropout = 0.2}, shared, 4);
    check_gradients(alone.mesh, "Cap", {}, cap, 2);
    check_gradients(alone.mesh, "CapPa, fixed positions", {.mesh = {}, .dropout = 0.2}, fixed, 2);
  }
  if (session->world().size() > 1) {
    comm::Mesh mesh = comm::make_mesh(*session, few_shapes().front(), comm::SumOrder::library);
    check_gradients(mesh, "CapPa, dropout", {.mesh = {}, .dropout = 0.2}, shared, 1);
  }
}

// ---- bits

// The digest of losses, norms and state after three steps from stirred weights.
uint64_t train_a_little(comm::Mesh& mesh, tests::Case c, const Change& change = {}) {
  c.mesh = mesh.shape;
  step::Engine engine(options_of(c, change), mesh, device::Kind::cpu);
  stir(engine);
  uint64_t digest = 0;
  for (int step = 1; step <= 3; ++step) {
    const step::StepReport& r = tests::run_step(engine, mesh, step);
    expect(r.finite && std::isfinite(r.loss()), "finite");
    std::vector<double> numbers = r.measures;
    numbers.insert(numbers.end(), {r.gradients.gradients.global, r.update.parameters.global});
    for (double v : numbers) digest = base::xxh3(&v, sizeof v, digest);
  }
  for (const auto& [name, bytes] : tests::whole_state(engine, *mesh.world))
    digest = base::xxh3(bytes.data(), bytes.size(), digest);
  return digest;
}

void recompute() {
  int compared = 0;
  for (comm::MeshShape shape : few_shapes())
    for (const char* level : {"run", "mesh"}) {
      if (std::string(level) == "mesh" && !power_of_two()) continue;
      comm::Mesh mesh = comm::make_mesh(
          *session, shape,
          std::string(level) == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library);
      for (double dropout : {0.0, 0.3}) {
        tests::Case c{.mesh = shape,
                      .micro_batch = 48 / session->world().size() / 2,
                      .level = level,
                      .dropout = dropout};
        const uint64_t none = train_a_little(mesh, c);
        for (const char* policy : {"gelu", "mlp", "block"}) {
          c.recompute = policy;
          expect(train_a_little(mesh, c) == none, c.text() + ": bits differ from recompute=none");
          ++compared;
        }
      }
    }
  say(fmt::format("recompute: {} runs equal to those that keep everything", compared));
}

// With level "mesh" whatever is drawn per example must come from its global position alone.
void dropout_on_every_mesh() {
  if (!power_of_two()) return;
  Alone alone;
  int compared = 0;
  auto smoothing = [](auto&, auto& m) { m.label_smoothing = 0.1; };
  tests::Case c{.mesh = {}, .dropout = 0.25};
  const uint64_t reference = train_a_little(alone.mesh, c, smoothing);
  expect(train_a_little(alone.mesh, {.mesh = {}}, smoothing) != reference,
         "dropout changes nothing");
  for (comm::MeshShape shape : shapes()) {
    comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::tree);
    for (int accumulation : {1, 2, 4})
      for (const char* parameters : {"sharded", "replicated"}) {
        c.micro_batch = 48 / session->world().size() / accumulation;
        c.parameters = parameters;
        c.recompute = accumulation == 2 ? "block" : "none";
        c.mesh = shape;
        expect(train_a_little(mesh, c, smoothing) == reference,
               c.text() + ": bits differ from one rank");
        ++compared;
      }
  }
  say(fmt::format("dropout: {} runs equal to one rank without accumulation", compared));
}

// The gradient of a step, however it is cut into passes and ranks, against that of one pass on one
// rank.
void sums() {
  Alone alone;
  auto no_update = [](auto& o, auto&) { o.optimizer.learning_rate = o.optimizer.weight_decay = 0; };
  int compared = 0;
  for (const char* level : {"run", "mesh"}) {
    const bool bits = std::string(level) == "mesh";
    if (bits && !power_of_two()) continue;
    tests::Case c{.mesh = {}, .level = level};
    step::Engine one(options_of(c, no_update), alone.mesh, device::Kind::cpu);
    stir(one);
    const double loss = tests::run_step(one, alone.mesh, 1).loss();
    const auto expected = whole_gradients(one, alone.mesh);
    for (comm::MeshShape shape : shapes())
      for (auto [parameters, optimizer] : {std::pair{"replicated", "replicated"},
                                           {"replicated", "sharded"},
                                           {"sharded", "sharded"}})
        for (int passes : {1, 2, 3, 4}) {
          if (bits && passes == 3) continue;
          c.mesh = shape;
          c.micro_batch = 48 / shape.ranks() / passes;
          c.parameters = parameters;
          c.optimizer = optimizer;
          comm::Mesh mesh = comm::make_mesh(*session, shape,
                                            bits ? comm::SumOrder::tree : comm::SumOrder::library);
          step::Engine engine(options_of(c, no_update), mesh, device::Kind::cpu);
          stir(engine);
          double found = tests::run_step(engine, mesh, 1).loss();
          expect(bits ? found == loss : std::abs(found - loss) <= 1e-6 * loss,
                 c.text() + fmt::format(": loss {}, not {}", found, loss));
          for (const auto& [path, g] : whole_gradients(engine, mesh)) {
            const Floats& e = expected.at(path);
            // gradients of key biases are what rounding leaves of zero
            double largest = 1e-3, worst = 0;
            for (size_t i = 0; i < e.size(); ++i) {
              largest = std::max(largest, double(std::abs(e[i])));
              worst = std::max(worst, double(std::abs(g[i] - e[i])));
            }
            expect(bits ? g == e : worst <= 1e-5 * largest,
                   c.text() +
                       fmt::format(": gradient of {} is off by {} of {}", path, worst, largest));
          }
          ++compared;
        }
  }
  say(fmt::format("sums: gradients of {} cuts of the batch equal those of one pass on one rank",
                  compared));
}

// ---- frozen parameters

void frozen() {
  const std::string pattern =
      "encoder/Transformer/encoderblock_0/.*|decoder/EncDecBlock1/CrossAttn/"
      ".*|pos_embedding_decoder|.*/embedding";
  const std::regex re(pattern);
  int cases = 0;
  for (comm::MeshShape shape : few_shapes()) {
    comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::library);
    // In bf16, weights whose optimizer is sharded travel rounded, and frozen ones must arrive, too.
    for (auto [kind, parameters, optimizer, bf16] :
         {std::tuple{"adafactor", "sharded", "sharded", false},
          {"adamw", "replicated", "sharded", false},
          {"adafactor", "replicated", "replicated", false},
          {"adamw", "replicated", "sharded", true},
          {"adafactor", "sharded", "sharded", true}}) {
      tests::Case c{.mesh = shape,
                    .micro_batch = 48 / session->world().size() / 2,
                    .parameters = parameters,
                    .optimizer = optimizer,
                    .level = "run"};
      c.kind = kind;
      c.bf16 = bf16;
      step::Engine all(options_of(c, {}), mesh, device::Kind::cpu);
      c.frozen = pattern;
      step::Engine some(options_of(c, {}), mesh, device::Kind::cpu);
      stir(all);
      stir(some);
      auto before = tests::whole_state(some, *mesh.world);
      const optim::Norms norms = tests::run_step(all, mesh, 1).gradients.gradients;
      const step::StepReport& r = tests::run_step(some, mesh, 1);
      int many = 0;
      double squares = 0, global = r.gradients.gradients.global;
      for (size_t p = 0; p < some.layout().parameters().size(); ++p) {
        const shard::Parameter& parameter = some.layout().parameters()[p];
        const double norm = r.gradients.gradients.per_parameter[p], wanted = norms.per_parameter[p];
        const bool is_frozen = std::regex_match(parameter.path, re);
        many += is_frozen;
        squares += norm * norm;
        expect(parameter.trained() != is_frozen, parameter.path + ": frozen or not");
        expect(is_frozen ? norm == 0 : std::abs(norm - wanted) <= 1e-5 * wanted + 1e-9,
               fmt::format("{}: norm {} where nothing is frozen {}", parameter.path, norm, wanted));
        expect(!is_frozen || r.update.updates.per_parameter[p] == 0,
               parameter.path + ": norm of the update");
        expect(r.update.parameters.per_parameter[p] > 0,
               parameter.path + ": frozen parameters have a norm, too");
      }
      expect(std::abs(global - std::sqrt(squares)) <= 1e-9 * global,
             "the global norm leaves frozen parameters out");
      expect(many == 22 && global < 0.99 * norms.global,
             fmt::format("{} tensors are frozen, the norm is smaller for it", many));
      tests::run_step(some, mesh, 2);
      tests::run_step(some, mesh, 3);
      auto after = tests::whole_state(some, *mesh.world);
      for (const auto& [name, bytes] : after) {
        size_t slash = name.starts_with("/params/")
                           ? 7
                           : name.find('/', name.find('/', std::string("/optimizer/").size()) + 1);
        bool is_frozen = std::regex_match(name.substr(slash + 1), re);
        bool good =
            name.starts_with("/params/") ? (bytes == before.at(name)) == is_frozen : !is_frozen;
        expect(good,
               name + (is_frozen ? " is frozen, but changed or has a state" : " did not change"));
      }
      expect(some.ledger().peak_of("gradients") < all.ledger().peak_of("gradients"),
             "no memory for gradients nobody wants");
      expect(some.ledger().peak_of("optimizer") < all.ledger().peak_of("optimizer"),
             "no memory for state nobody wants");
      ++cases;
    }
  }
  say(fmt::format("frozen: {} cases", cases));
}

// ---- strategies that differ within a layer

// A norm's scale and bias, a product's kernel and bias: one is exchanged in every pass, the other
// is added to.
void mixed_strategies() {
  Alone alone;
  tests::Case c{.mesh = {},
                .micro_batch = 12,
                .parameters = "replicated",
                .optimizer = "replicated",
                .level = "run"};
  step::Engine one(options_of(c, {}), alone.mesh, device::Kind::cpu);
  stir(one);
  const std::vector<double> wanted =
      tests::run_step(one, alone.mesh, 1).gradients.gradients.per_parameter;
  int cases = 0;
  for (comm::MeshShape shape : few_shapes())
    for (const char* sharded : {".*/scale", ".*/bias", ".*/kernel"}) {
      comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::library);
      c.mesh = shape;
      c.micro_batch = 48 / session->world().size() / 4;
      auto rules = [&](auto& o, auto&) {
        o.sharding.rules = {{sharded, shard::Placement::sharded, shard::Placement::sharded}};
      };
      step::Engine engine(options_of(c, rules), mesh, device::Kind::cpu);
      stir(engine);
      const std::vector<double> found =
          tests::run_step(engine, mesh, 1).gradients.gradients.per_parameter;
      for (size_t p = 0; p < found.size(); ++p)
        expect(std::abs(found[p] - wanted[p]) <= 2e-5 * wanted[p] + 1e-7,
               fmt::format("{} sharded: norm {} of {}, not {}", sharded, found[p],
                           engine.layout().parameters()[p].path, wanted[p]));
      ++cases;
    }
  say(fmt::format("strategies that differ within a layer: {} cases", cases));
}

// ---- examples without labels

// Takes the labels (or, by masks, the weight) of the examples at positions [from, to) of a step
// away.
const step::StepReport& step_without_labels(step::Engine& engine, comm::Mesh& mesh, int64_t from,
                                            int64_t to, bool by_mask) {
  struct MaskedBatch : tests::MadeBatch {
    using MadeBatch::MadeBatch;
    Floats masks;
  };
  return engine.step(1, [&](int64_t m) {
    const step::Geometry& g = engine.geometry();
    int64_t first = g.first_example(mesh, m);
    auto made = std::make_shared<MaskedBatch>(tests::small_cappa(), first, g.micro_batch);
    MaskedBatch& batch = *made;
    Floats& masks = batch.masks;
    masks.assign(batch.labels.size(), 1.0f);
    for (int64_t i = 0; i < g.micro_batch; ++i)
      if (first + i >= from && first + i < to)
        for (int64_t l = i * 9; l < (i + 1) * 9; ++l)
          (by_mask ? masks[size_t(l)] : reinterpret_cast<float&>(batch.labels[size_t(l)])) = 0;
    if (by_mask)
      batch.host.features["label_masks"] = device::view(masks.data(), int64_t(masks.size()));
    return tests::owned(made);
  });
}

void without_labels() {
  Alone alone;
  auto no_update = [](auto& o, auto&) { o.optimizer.learning_rate = o.optimizer.weight_decay = 0; };
  auto norms_of = [&](const step::StepReport& r) { return r.gradients.gradients.per_parameter; };
  // The first half of the batch alone: its sums are what must be left.
  tests::Case c{.mesh = {}, .level = "run", .global_batch = 24};
  step::Engine half(options_of(c, no_update), alone.mesh, device::Kind::cpu);
  stir(half);
  step::StepReport expected = step_without_labels(half, alone.mesh, 0, 0, false);
  int cases = 0;
  for (comm::MeshShape shape : few_shapes())
    for (bool by_mask : {false, true})
      for (const char* level : {"run", "mesh"}) {
        if (std::string(level) == "mesh" && !power_of_two()) continue;
        comm::Mesh mesh = comm::make_mesh(
            *session, shape,
            std::string(level) == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library);
        c.mesh = shape;
        c.level = level;
        c.global_batch = 48;
        c.micro_batch = 48 / session->world().size() / 2;
        step::Engine engine(options_of(c, no_update), mesh, device::Kind::cpu);
        stir(engine);
        const step::StepReport& r = step_without_labels(engine, mesh, 24, 48, by_mask);
        expect(r.finite, "finite");
        expect(std::abs(2 * r.loss() - expected.loss()) <= 1e-5 * expected.loss(),
               fmt::format("loss {} of {}", r.loss(), expected.loss()));
        const double per_token = expected.measures[Cappa::Measures::loss_per_token];
        expect(
            std::abs(r.measures[Cappa::Measures::loss_per_token] - per_token) <= 1e-5 * per_token,
            "examples without labels have no tokens");
        expect(r.sums[Cappa::Sums::examples_ar] + r.sums[Cappa::Sums::examples_parallel] == 48,
               "they are examples, though");
        std::vector<double> found = norms_of(r), wanted = norms_of(expected);
        for (size_t p = 0; p < found.size(); ++p)
          expect(std::abs(2 * found[p] - wanted[p]) <= 2e-5 * wanted[p] + 1e-7,
                 fmt::format("{}: norm {} of {}", engine.layout().parameters()[p].path, found[p],
                             wanted[p]));
        ++cases;
      }
  // Nobody has a label: no loss, no gradient, and an update that does not spoil the weights.
  for (const char* kind : {"adafactor", "adamw", "momentum", "sgd"}) {
    c.kind = kind;
    c.level = "run";
    comm::Mesh mesh =
        comm::make_mesh(*session, {1, session->world().size()}, comm::SumOrder::library);
    step::Engine engine(options_of(c, {}), mesh, device::Kind::cpu);
    stir(engine);
    const step::StepReport& r = step_without_labels(engine, mesh, 0, 48, false);
    expect(r.finite && r.loss() == 0 && r.gradients.gradients.global == 0 &&
               std::isnan(r.measures[Cappa::Measures::loss_per_token]),
           std::string(kind) + ": a batch without labels");
    tests::run_step(engine, mesh, 2);
    expect(std::isfinite(tests::run_step(engine, mesh, 3).update.parameters.global),
           std::string(kind) + ": weights are finite afterwards");
    ++cases;
  }
  say(fmt::format("examples without labels: {} cases", cases));
}

// ---- draws, Cap, sizes

void draws() {
  models::CappaOptions m = tests::small_cappa();
  m.masked_pred_prob = 0.75;
  models::Cappa model(m, {});
  constexpr int64_t n = 4000;
  const int64_t length = m.seq_len, masked = 6;  // of 9 tokens with ratio 0.7, truncated
  tests::MadeBatch batch(m, 0, n);
  base::Stream stream(3, "draws");
  models::Cappa::Draws d = model.draw(batch.labels.data(), n, 0, true, stream);
  double parallel = 0;
  std::vector<double> where(size_t(length), 0);
  bool right = true;
  for (int64_t b = 0; b < n; ++b) {
    const int32_t *label = batch.labels.data() + b * length,
                  *ids = d.decoder_ids.data() + b * length;
    parallel += d.parallel[size_t(b)];
    if (!d.parallel[size_t(b)]) {
      right &= ids[0] == 0 && std::equal(label, label + length - 1, ids + 1);
      continue;
    }
    right &= std::count(ids, ids + length, m.vocab_size) == masked;
    for (int64_t l = 0; l < length; ++l) {
      where[size_t(l)] += ids[l] == m.vocab_size;
      right &= ids[l] == m.vocab_size || ids[l] == label[l];
    }
  }
  expect(right, "autoregressive ids are shifted, parallel ones masked in place");
  expect(std::abs(parallel / double(n) - 0.75) < 0.027,
         fmt::format("{} of {} examples are parallel", parallel, n));
  for (double w : where)
    expect(std::abs(w / parallel - 6.0 / 9) < 0.035,
           fmt::format("{} of {} masks at one place", w, parallel));
  models::Cappa::Draws later =
      model.draw(batch.labels.data() + 100 * length, 50, 100, true, stream);
  expect(std::equal(later.decoder_ids.begin(), later.decoder_ids.end(),
                    d.decoder_ids.begin() + 100 * length) &&
             std::equal(later.parallel.begin(), later.parallel.end(), d.parallel.begin() + 100),
         "draws belong to the position");
  models::Cappa::Draws calm = model.draw(batch.labels.data(), n, 0, false, stream);
  expect(std::count(calm.parallel.begin(), calm.parallel.end(), 0) == n,
         "evaluation is autoregressive");
}

void cap() {
  comm::Mesh mesh =
      comm::make_mesh(*session, {1, session->world().size()}, comm::SumOrder::library);
  tests::Case c{.mesh = mesh.shape, .micro_batch = 48 / session->world().size(), .level = "run"};
  auto as_cap = [](auto&, auto& m) { m.masked_pred_prob = 0; };
  step::Engine engine(options_of(c, as_cap), mesh, device::Kind::cpu);
  stir(engine);
  double nll[48], weight[48], sum = 0;
  const int64_t n = engine.geometry().micro_batch;
  tests::MadeBatch batch(tests::small_cappa(), engine.geometry().first_example(mesh, 0), n);
  tests::score(engine, batch.host, nll, weight);
  for (int64_t i = 0; i < n; ++i) sum += nll[i] / weight[i];
  mesh.fsdp->all_reduce({&sum, device::DType::f64, 1}).wait();
  const step::StepReport& r = tests::run_step(engine, mesh, 1);
  expect(std::abs(r.loss() - sum / 48) < 1e-6 * r.loss(),
         fmt::format("evaluation says {}, training {}", sum / 48, r.loss()));
  expect(r.sums[Cappa::Sums::examples_parallel] == 0 && r.sums[Cappa::Sums::examples_ar] == 48 &&
             std::isnan(r.measures[Cappa::Measures::loss_parallel]) &&
             r.measures[Cappa::Measures::loss_ar] == r.loss(),
         "Cap is autoregressive");
  for (const models::InputSpec& spec : engine.train_pass().inputs())
    expect(spec.name != "causal", "Cap has no flags");
}

// Evaluation is autoregressive in every model: a token is predicted from those before it and from
// no other.
void causality() {
  Alone alone;
  for (double masked : {0.0, 0.5}) {
    tests::Case c{.mesh = {}, .level = "run"};
    step::Engine engine(options_of(c, [&](auto&, auto& m) { m.masked_pred_prob = masked; }),
                        alone.mesh, device::Kind::cpu);
    stir(engine);
    // Negative log-likelihood of the tokens at [from, to), with token `changed` of every caption
    // another one.
    auto nll = [&](int64_t from, int64_t to, int64_t changed) {
      tests::MadeBatch batch(tests::small_cappa(), 0, 48);
      Floats masks(batch.labels.size());
      for (size_t i = 0; i < masks.size(); ++i) {
        int64_t l = int64_t(i % 9);
        masks[i] = l >= from && l < to;
        batch.labels[i] = l == changed ? 5 : 7 + int32_t(i % 31);
      }
      batch.host.features["label_masks"] = device::view(masks.data(), int64_t(masks.size()));
      std::vector<double> out(48), weight(48);
      tests::score(engine, batch.host, out.data(), weight.data());
      expect(weight[7] == double(to - from), "weights are the masks");
      return out;
    };
    expect(nll(0, 4, -1) == nll(0, 4, 4), "tokens before a change are as likely as they were");
    auto before = nll(5, 9, -1), after = nll(5, 9, 4);
    for (size_t i = 0; i < 48; ++i) expect(before[i] != after[i], "tokens after a change are not");
  }
}

// cappa.md 1.7 and 1.8: what the published model of size B/16 has.
void inventory() {
  auto count = [](auto change) {
    models::CappaOptions m;
    m.decoder.depth = 6;
    change(m);
    models::Cappa model(m, {});
    int64_t elements = 0;
    std::set<std::string> paths;
    for (const shard::Parameter& p : model.parameters()) {
      elements += p.count();
      paths.insert(p.path);
    }
    return std::pair(elements, int64_t(paths.size()));
  };
  expect(count([](auto&) {}) == std::pair<int64_t, int64_t>(191669504, 281),
         "parameters of CapPa B/16");
  expect(count([](auto& m) { m.masked_pred_prob = 0; }).first == 191668736,
         "parameters of Cap B/16");
  expect(count([](auto& m) { m.decoder.bias = true; }).first == 191706368,
         "parameters of CapPa B/16 with decoder biases");
}

int run(comm::Session& s, int, char**) {
  session = &s;
  draws();
  inventory();
  cap();
  causality();
  gradients();
  sums();
  recompute();
  dropout_on_every_mesh();
  frozen();
  mixed_strategies();
  without_labels();
  int64_t total = s.world().sum(int64_t{failures});
  say(fmt::format("engine: {} checks on each of {} ranks, {} failures", checks, s.world().size(),
                  total));
  return total ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
