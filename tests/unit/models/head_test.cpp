// SPDX-License-Identifier: Apache-2.0
// Checks every kind of head: outputs and gradients of inputs and parameters, against a reference in
// double from the text of ssl.md 2 and its differences; names, shapes and slices.
#include "embedding_rig.hpp"
#include "models/heads/head_kinds.hpp"

namespace {
namespace head_test {

using namespace embedding_rig;
using Named = std::map<std::string, Doubles>;

constexpr int64_t kExamples = 4, kRows = 8, kIn = 6;  // two views of an example

// y [rows, out] = x . weight^T + bias
Doubles product(const Doubles& x, const Doubles& weight, const Doubles* bias, int64_t out) {
  const int64_t in = int64_t(weight.size()) / out, rows = int64_t(x.size()) / in;
  Doubles y;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias ? (*bias)[size_t(o)] : 0;
      for (int64_t i = 0; i < in; ++i) sum += x[size_t(r * in + i)] * weight[size_t(o * in + i)];
      y.push_back(sum);
    }
  return y;
}

constexpr double kEps = 1e-5;

Doubles batch_norm(const Doubles& x, const Doubles& scale, const Doubles& bias, double eps = kEps) {
  const size_t width = scale.size(), rows = x.size() / width;
  Doubles y(x.size());
  for (size_t c = 0; c < width; ++c) {
    double mean = 0, variance = 0;
    for (size_t r = 0; r < rows; ++r) mean += x[r * width + c] / double(rows);
    for (size_t r = 0; r < rows; ++r)
      variance += (x[r * width + c] - mean) * (x[r * width + c] - mean) / double(rows);
    for (size_t r = 0; r < rows; ++r)
      y[r * width + c] = (x[r * width + c] - mean) / std::sqrt(variance + eps) * scale[c] + bias[c];
  }
  return y;
}

Doubles activated(Doubles x, kernels::Activation kind) {
  for (double& v : x)
    v = kind == kernels::Activation::relu ? std::max(v, 0.0) : v / 2 * std::erfc(-v / std::sqrt(2));
  return x;
}

Doubles unit_rows(Doubles x, int64_t width) {
  for (size_t r = 0; r < x.size(); r += size_t(width)) {
    double square = 0;
    for (size_t i = r; i < r + size_t(width); ++i) square += x[i] * x[i];
    for (size_t i = r; i < r + size_t(width); ++i) x[i] /= std::sqrt(square);
  }
  return x;
}

// The products of a head, with the operations between them.
Doubles chain(const Named& p, const std::string& path, Doubles x, bool bare_last,
              std::optional<kernels::Activation> activation, double eps = kEps) {
  int number = 0;
  const bool alone = p.count(path + ".weight") > 0;
  auto name = [&] { return alone ? path : fmt::format("{}.{}", path, number); };
  while (p.count(name() + ".weight")) {
    const Doubles& weight = p.at(name() + ".weight");
    const Doubles* bias = p.count(name() + ".bias") ? &p.at(name() + ".bias") : nullptr;
    const int64_t in = int64_t(x.size()) / kRows, out = int64_t(weight.size()) / in;
    x = product(x, weight, bias, out);
    ++number;
    bool last = true;  // no later layer is a product
    for (int k = number; k < number + 4; ++k) {
      const auto later = p.find(fmt::format("{}.{}.weight", path, k));
      last = last && (later == p.end() || later->second.size() == size_t(out));
    }
    if (last && bare_last) break;
    if (p.count(name() + ".weight") && p.at(name() + ".weight").size() == size_t(out)) {
      x = batch_norm(x, p.at(name() + ".weight"), p.at(name() + ".bias"), eps);
      ++number;
    }
    if (activation) {
      x = activated(x, *activation);
      ++number;
    }
  }
  return x;
}

struct Subject {
  std::string name;
  models::HeadOptions options;
  std::function<Doubles(const Named&, const Doubles& x)> reference;  // all outputs in a row
};

Named values_of(Bench& bench) {
  Named out;
  for (const shard::Parameter& p : bench.layout().parameters())
    out[p.path] = doubles(bench.weight(p.path));
  return out;
}

struct Run {
  Doubles outputs, dx;
  Named gradients;
};

Run run_head(const Subject& s, const Named& values, const Doubles& x, const Doubles& dy,
             int64_t slices) {
  models::ParameterList list;
  const auto head = models::make_head(s.options, "head", kIn, list);
  Bench bench(list, kExamples, {1, slices});
  for (const auto& [path, v] : values) std::copy(v.begin(), v.end(), bench.weight(path).f32());
  bench.begin_step();
  nn::Context ctx = bench.context(1);
  Floats input = floats(x), dx(x.size(), NAN), d = floats(dy), y(dy.size(), NAN);
  std::vector<View> outputs, gradients;
  int64_t at = 0;
  for (const int64_t width : head->widths()) {
    outputs.push_back(view(y).slice(at, kRows * width));
    gradients.push_back(view(d).slice(at, kRows * width));
    at += kRows * width;
  }
  const auto pass = head->make_pass();
  const int64_t low = ctx.arena.low().bytes;
  head->forward(ctx, view(input), kRows, outputs, -1, *pass);
  head->backward(ctx, gradients, view(dx), -1, *pass);
  EXPECT_EQ(ctx.arena.low().bytes, low);
  EXPECT_EQ(ctx.arena.high().bytes, 0);
  bench.finish_step();
  Run out{{y.begin(), y.end()}, {dx.begin(), dx.end()}, {}};
  for (const shard::Parameter& p : bench.layout().parameters())
    if (p.trained()) out.gradients[p.path] = doubles(bench.gradient(p.path));
  return out;
}

void check_head(const Subject& s) {
  SCOPED_TRACE(s.name);
  models::ParameterList list;
  const auto head = models::make_head(s.options, "head", kIn, list);
  int64_t outputs = 0;
  for (const int64_t width : head->widths()) outputs += kRows * width;
  Bench start(list, kExamples, {});
  Named values = values_of(start);
  for (auto& [path, v] : values)  // scales and shifts that matter
    if (path.find("running_") == path.npos && path.find("batches") == path.npos &&
        start.parameter(path).trained())
      for (size_t i = 0; i < v.size(); ++i)
        v[i] = double(float(v[i] + 0.3 * numbers(int64_t(i) + 1, path).back()));
  Doubles x = numbers(kRows * kIn, "x");
  const Doubles dy = numbers(outputs, "dy");
  const Run got = run_head(s, values, x, dy, 1);
  expect_close(got.outputs, s.reference(values, x), 3e-6, "outputs");
  auto objective = [&] {
    const Doubles y = s.reference(values, x);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  expect_close(got.dx, differences(x, objective, 1e-4), 2e-5, "gradient of the input");
  for (const auto& [path, g] : got.gradients)
    expect_close(g, differences(values[path], objective, 1e-4), 2e-5, "gradient of " + path, 0.1);
  const Run sliced = run_head(s, values, x, dy, 4);
  expect_close(sliced.dx, got.dx, 1e-5, "sliced input");
  // The gradient of a bias before a norm is 0 up to rounding.
  for (const auto& [path, g] : got.gradients)
    expect_close(sliced.gradients.at(path), g, 2e-5, "sliced " + path, 0.1);
}

template <class Options>
models::HeadOptions head_of(const std::string& kind, Options options) {
  models::HeadOptions out;
  out.kind = kind;
  out.options = std::make_shared<Options>(std::move(options));
  return out;
}

TEST(Head, Mlp) {
  for (const bool norm : {false, true})
    for (const bool bare : {true, false})
      for (const bool relu : {true, false}) {
        models::MlpHeadOptions o;
        o.layers = {5, 7, 4};
        o.batch_norm.on = norm;
        o.relu = relu;
        o.bias = !norm;
        o.bare_last = bare;
        const auto activation = relu ? std::optional(kernels::Activation::relu) : std::nullopt;
        check_head({fmt::format("mlp, norm {}, bare {}, relu {}", norm, bare, relu),
                    head_of("mlp", o), [=](const Named& p, const Doubles& x) {
                      return chain(p, "head/clf", x, bare, activation);
                    }});
      }
}

// Of every kind that has norms. An epsilon as large as the variances changes every value.
TEST(Head, NormsHaveTheEpsilonOfTheDeck) {
  constexpr double kWide = 0.5;
  const auto gelu = kernels::Activation::gelu_erf;
  models::MlpHeadOptions mlp;
  mlp.layers = {5, 4};
  mlp.batch_norm.on = true;
  mlp.batch_norm.eps = kWide;
  mlp.bias = false;
  check_head({"mlp", head_of("mlp", mlp), [](const Named& p, const Doubles& x) {
                return chain(p, "head/clf", x, true, {}, kWide);
              }});
  models::SwavHeadOptions swav;
  swav.layers = {5, 9};
  swav.prototypes = {3};
  swav.batch_norm.eps = kWide;
  swav.activation = gelu;
  swav.return_embedding = false;
  check_head({"swav", head_of("swav", swav), [=](const Named& p, const Doubles& x) {
                const Doubles u =
                    unit_rows(chain(p, "head/projection_head", x, true, gelu, kWide), 9);
                return product(u, p.at("head/prototypes0.weight"), nullptr, 3);
              }});
  models::EvalMlpHeadOptions eval_mlp;
  eval_mlp.channels = kIn;
  eval_mlp.mlp.layers = {5};
  eval_mlp.mlp.batch_norm.eps = kWide;
  check_head({"eval_mlp", head_of("eval_mlp", eval_mlp), [](const Named& p, const Doubles& x) {
                const Doubles n = batch_norm(x, p.at("head/channel_bn.weight"),
                                             p.at("head/channel_bn.bias"), kWide);
                return chain(p, "head/clf.clf", n, true, {});
              }});
}

// Weights and biases are uniform by the fan-in, times the multiplier of an mlp. Those of dino are
// normal, and its biases 0 (ssl.md 2).
TEST(Head, DrawsProductsAsPublished) {
  models::MlpHeadOptions mlp;
  mlp.layers = {9, 4};
  mlp.multiplier = 0.25;
  models::SwavHeadOptions swav;
  swav.layers = {9, 4};
  swav.prototypes = {7};
  models::ParameterList list;
  models::make_head(head_of("mlp", mlp), "mlp", kIn, list);
  models::make_head(head_of("swav", swav), "swav", kIn, list);
  models::make_head(head_of("dino", models::DinoHeadOptions{}), "dino", kIn, list);
  std::map<std::string, shard::Init> drawn;
  for (const shard::Parameter& p : list.parameters()) drawn[p.path] = p.init;
  using Kind = shard::Init::Kind;
  for (const auto& [path, limit] : {std::pair{"mlp/clf.0.weight", 0.25 / std::sqrt(6)},
                                    {"mlp/clf.0.bias", 0.25 / std::sqrt(6)},
                                    {"mlp/clf.1.weight", 0.25 / std::sqrt(9)},
                                    {"mlp/clf.1.bias", 0.25 / std::sqrt(9)},
                                    {"swav/projection_head.0.weight", 1 / std::sqrt(6)},
                                    {"swav/projection_head.3.bias", 1 / std::sqrt(9)},
                                    {"swav/prototypes0.weight", 1 / std::sqrt(4)}}) {
    ASSERT_TRUE(drawn.contains(path)) << path;
    EXPECT_EQ(drawn[path].kind, Kind::uniform) << path;
    EXPECT_NEAR(drawn[path].value, limit, 1e-12) << path;
  }
  EXPECT_EQ(drawn.at("dino/mlp.0.weight").kind, Kind::normal);
  EXPECT_EQ(drawn.at("dino/mlp.0.weight").std, 0.02);
  EXPECT_EQ(drawn.at("dino/mlp.0.bias").kind, Kind::zeros);
}

TEST(Head, Swav) {
  for (const bool norm : {false, true})
    for (const auto kind : {kernels::Activation::relu, kernels::Activation::gelu_erf})
      for (const bool embedding : {true, false}) {
        const bool bare = embedding || !norm;
        models::SwavHeadOptions o;
        o.layers = {5, 9};  // after ReLU, no row is all zero
        o.prototypes = {7, 3};
        o.batch_norm.on = norm;
        o.activation = kind;
        o.return_embedding = embedding;
        o.bare_last = bare;
        check_head({fmt::format("swav, norm {}, embedding {}", norm, embedding), head_of("swav", o),
                    [=](const Named& p, const Doubles& x) {
                      const Doubles u =
                          unit_rows(chain(p, "head/projection_head", x, bare, kind), 9);
                      Doubles y = embedding ? u : Doubles{};
                      for (const auto& [h, k] : {std::pair{0, 7}, {1, 3}}) {
                        const Doubles s = product(
                            u, p.at(fmt::format("head/prototypes{}.weight", h)), nullptr, k);
                        y.insert(y.end(), s.begin(), s.end());
                      }
                      return y;
                    }});
      }
}

TEST(Head, Dino) {
  for (const int64_t layers : {1, 3})
    for (const bool norm : {false, true})
      for (const bool constant : {false, true}) {
        models::DinoHeadOptions o;
        o.prototypes = 9;
        o.layers = layers;
        o.hidden = 5;
        o.bottleneck = 4;
        o.batch_norm.on = norm;
        o.normalize_last_layer = constant;
        check_head({fmt::format("dino, {} layers, norm {}, g constant {}", layers, norm, constant),
                    head_of("dino", o), [](const Named& p, const Doubles& x) {
                      Doubles w = unit_rows(p.at("head/prototypes0.weight_v"), 4);
                      for (size_t i = 0; i < w.size(); ++i)
                        w[i] *= p.at("head/prototypes0.weight_g")[i / 4];
                      const Doubles u = unit_rows(
                          chain(p, "head/mlp", x, true, kernels::Activation::gelu_erf), 4);
                      return product(u, w, nullptr, 9);
                    }});
      }
}

TEST(Head, EvalMlp) {
  for (const int64_t channels : {6, 3, 2}) {
    models::EvalMlpHeadOptions o;
    o.channels = channels;
    o.mlp.layers = {5};
    check_head({fmt::format("eval_mlp, {} channels", channels), head_of("eval_mlp", o),
                [=](const Named& p, const Doubles& x) {
                  const Doubles n =
                      batch_norm(x, p.at("head/channel_bn.weight"), p.at("head/channel_bn.bias"));
                  Doubles flat(n.size());  // channels first
                  const int64_t positions = kIn / channels;
                  for (int64_t r = 0; r < kRows; ++r)
                    for (int64_t i = 0; i < kIn; ++i)
                      flat[size_t(r * kIn + i % channels * positions + i / channels)] =
                          n[size_t(r * kIn + i)];
                  return chain(p, "head/clf.clf", flat, true, {});
                }});
  }
}

TEST(Head, ConcatOfTowers) {
  models::ConcatHeadOptions o;
  o.towers = 2;
  models::ParameterList list;
  const auto head = models::make_head(head_of("siamese_concat_view", o), "head", kIn, list);
  EXPECT_EQ(head->widths(), std::vector<int64_t>{12});
  EXPECT_TRUE(list.parameters().empty());
}

TEST(Head, AFactorOfAllInitialValues) {
  struct HeadDeck {
    models::MlpHeadOptions head;
    void bind(config::Table& t) { head.bind(t); }
  };
  std::vector<double> limits;
  for (const char* text : {"layers = [5, 4]\n", "layers = [5, 4]\nmultiplier = 0.25\n"}) {
    HeadDeck root;
    config::Deck({"deck.toml", text, {}}, root).throw_if_any();
    models::ParameterList list;
    models::make_head(head_of("mlp", root.head), "head", kIn, list);
    for (const auto& p : list.parameters()) limits.push_back(p.init.value);
  }
  ASSERT_EQ(limits.size(), 8u);  // weights and biases of two products, twice
  for (size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(limits[i + 4], 0.25 * limits[i]);
  EXPECT_DOUBLE_EQ(limits[0], 1 / std::sqrt(double(kIn)));
}

TEST(Head, NamesCountAllLayers) {
  models::MlpHeadOptions o;
  o.layers = {5, 4};
  o.batch_norm.on = o.relu = true;
  o.dropout = 0.5;
  models::ParameterList list;
  models::make_head(head_of("mlp", o), "head", kIn, list);
  std::vector<std::string> names;
  for (const auto& p : list.parameters()) names.push_back(p.path);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "head/clf.0.weight", "head/clf.0.bias", "head/clf.1.weight",
                       "head/clf.1.bias", "head/clf.1.running_mean", "head/clf.1.running_var",
                       "head/clf.1.num_batches_tracked", "head/clf.4.weight", "head/clf.4.bias"}));
  EXPECT_EQ(list.parameters()[0].shape, (std::vector<int64_t>{5, 6}));
}

}  // namespace head_test
}  // namespace
