// SPDX-License-Identifier: Apache-2.0
// Compares every optimizer with the published transformations on the same gradients
// (optimizers.h5), on several meshes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "golden_file.hpp"
#include "optim/adafactor.hpp"
#include "optim/adamw.hpp"
#include "optim/momentum.hpp"
#include "optim/sgd.hpp"
#include "rig.hpp"

namespace {

using nlohmann::json;
using rig::Tensor;
using rig::Tensors;

device::DType type_named(const json& options, const char* key, device::DType otherwise) {
  if (!options.contains(key)) return otherwise;
  return options[key] == "bfloat16" ? device::DType::bf16 : device::DType::f32;
}

optim::OptimizerOptions options_of(const std::string& variant, const json& o) {
  optim::OptimizerOptions out;
  out.learning_rate = 1;
  if (variant.starts_with("adafactor")) {
    auto m = std::make_shared<optim::AdafactorOptions>();
    m->beta2_decay = o.value("decay_rate", 0.8);
    m->beta2_cap = o.value("beta2_cap", 0.999);
    m->momentum = o.contains("momentum") && o["momentum"].is_null() ? 0 : 0.9;
    m->momentum_type = type_named(o, "dtype_momentum", device::DType::bf16);
    m->factor_min = o.value("min_dim_size_to_factor", 32);
    m->eps = o.value("eps", 1e-30);
    m->clipping_threshold = o.value("clipping_threshold", 0.0);
    out.method = m;
  } else if (variant.starts_with("adam")) {
    auto m = std::make_shared<optim::AdamwOptions>();
    m->b1 = o.value("b1", 0.9);
    m->b2 = o.value("b2", 0.999);
    m->eps = o.value("eps", 1e-8);
    m->eps_root = o.value("eps_root", 0.0);
    m->momentum_type = type_named(o, "mu_dtype", device::DType::f32);
    out.method = m;
  } else if (variant.starts_with("momentum_hp")) {
    auto m = std::make_shared<optim::MomentumOptions>();
    m->momentum = o.value("momentum", 0.9);
    m->nesterov = o.value("nesterov", false);
    out.method = m;
  } else {
    out.method = std::make_shared<optim::SgdOptions>();
    out.clip_norm = o["max_norm"];
  }
  return out;
}

// Returns the name of our state tensor for big_vision's state path, or "" if we have no such state.
std::string our_name(const std::string& variant, const std::string& place,
                     const std::string& tensor) {
  if (variant.starts_with("adafactor")) {
    if (place == "0/1") return "/optimizer/adafactor/v_row/" + tensor;
    if (place == "0/2") return "/optimizer/adafactor/v_col/" + tensor;
    if (place == "0/3") return "/optimizer/adafactor/v/" + tensor;
    if (place == "2/1") return "/optimizer/adafactor/momentum/" + tensor;
  } else if (variant.starts_with("adam")) {
    if (place == "1") return "/optimizer/adamw/mu/" + tensor;
    if (place == "2") return "/optimizer/adamw/nu/" + tensor;
  } else if (place == "0") {
    return "/optimizer/momentum/trace/" + tensor;
  }
  return "";
}

double largest_excess(const Tensor& mine, const Tensor& theirs, double tol, double& deviation) {
  for (size_t i = 0; i < mine.size(); ++i) {
    const double d = std::abs(double(mine[i]) - double(theirs[i]));
    deviation = std::isnan(d) ? INFINITY : std::max(deviation, d / std::max(tol, 1e-300));
  }
  return deviation;
}

struct Mesh {
  int fsdp;
  int64_t cuts;
  const char* sharding;
};

void run_variant(const std::string& variant, Mesh mesh) {
  golden::File file("optimizers.h5");
  SCOPED_TRACE(variant + " fsdp=" + std::to_string(mesh.fsdp) + " " + mesh.sharding);
  const auto names = file.children("/" + variant + "/step1/update");
  rig::Job job;
  for (size_t i = 0; i < names.size(); ++i) {
    auto shape = file.shape("/grads/" + names[i]);
    shape.erase(shape.begin());
    job.parameters.push_back(rig::parameter(names[i], shape, int(i % 2)));
  }
  job.options = options_of(variant, json::parse(file.text("/" + variant, "options")));
  job.fsdp = mesh.fsdp;
  job.cuts = mesh.cuts;
  job.optimizer_sharding = mesh.sharding;
  rig::Rig ranks(job);

  double of_updates = 0, of_state = 0;
  for (int step = 1; step <= 3; ++step) {
    Tensors gradients, zeros;
    for (const auto& name : names) {
      Tensor all = file.floats("/grads/" + name);
      const size_t n = all.size() / 3;
      gradients[name].assign(all.begin() + int64_t(n) * (step - 1),
                             all.begin() + int64_t(n) * step);
      zeros[name].assign(n, 0.0f);
    }
    ranks.set_weights(zeros);
    ranks.step(step, gradients);
    Tensors weights = ranks.weights();
    for (const auto& name : names) {
      const std::string path = "/" + variant + "/step" + std::to_string(step) + "/update/" + name;
      for (float& w : weights[name]) w = -w;  // weights were 0, the rate is 1
      EXPECT_LE(
          largest_excess(weights[name], file.floats(path), file.number(path, "tol"), of_updates), 1)
          << path;
    }
  }
  const Tensors state = ranks.state();
  size_t compared = 0;
  const std::string root = "/" + variant + "/step3/state";
  if (file.has(root))
    for (const auto& a : file.children(root))
      for (const std::string& b :
           {std::string(), std::string("/1"), std::string("/2"), std::string("/3")}) {
        const std::string place = a + b, group = root + "/" + place;
        for (const auto& name : names) {
          if (!file.has(group + "/" + name)) continue;
          auto it = state.find(our_name(variant, place, name));
          if (it == state.end()) {  // an unused placeholder of big_vision
            EXPECT_EQ(file.shape(group + "/" + name), std::vector<int64_t>{1}) << group << name;
            continue;
          }
          ++compared;
          EXPECT_EQ(ranks.shape(it->first), file.shape(group + "/" + name)) << it->first;
          EXPECT_LE(largest_excess(it->second, file.floats(group + "/" + name),
                                   file.number(group + "/" + name, "tol"), of_state),
                    1)
              << group << "/" << name;
        }
      }
  EXPECT_EQ(compared, state.size()) << "some state tensors were not compared";
  if (mesh.fsdp == 1)
    std::printf("%-24s largest deviation / tolerance: updates %.3f state %.3f\n", variant.c_str(),
                of_updates, of_state);
}

TEST(GoldenOptimizers, EveryVariantOnSeveralMeshes) {
  for (const char* variant :
       {"adafactor", "adafactor_pretrain", "adafactor_f32_momentum", "adafactor_options", "adam",
        "adam_options", "momentum_hp", "momentum_hp_nesterov", "clip_by_global_norm"})
    for (Mesh mesh : {Mesh{1, 1, "replicated"}, Mesh{2, 2, "sharded"}, Mesh{3, 3, "sharded"},
                      Mesh{4, 16, "sharded"}, Mesh{2, 4, "replicated"}})
      run_variant(variant, mesh);
}

// big_vision's Adafactor on 2 x 3, computed by hand, and factored although it is small.
TEST(GoldenOptimizers, AdafactorByHand) {
  rig::Job job;
  job.parameters = {rig::parameter("w", {2, 3})};
  auto m = std::make_shared<optim::AdafactorOptions>();
  m->factor_min = 2;
  job.options.method = m;
  job.options.learning_rate = 1;
  rig::Rig r(job);
  auto near = [](const Tensor& got, const Tensor& want, double tol) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], tol * std::max(1.0f, std::abs(want[i]))) << i;
  };
  auto step = [&](int64_t number, const Tensor& g) {
    r.set_weights({{"w", Tensor(6, 0.0f)}});
    r.step(number, {{"w", g}});
    Tensor out = r.weights()["w"];
    for (float& x : out) x = -x;
    return out;
  };
  near(step(1, {1, 2, 3, 4, 5, 6}),
       {.061834693f, .094686407f, .11401755f, .10546561f, .10093606f, .097234493f}, 2e-7);
  Tensors s = r.state();
  near(s["/optimizer/adafactor/v_row/w"], {4.6666665f, 25.666666f}, 2e-7);
  near(s["/optimizer/adafactor/v_col/w"], {8.5f, 14.5f, 22.5f}, 2e-7);
  near(step(2, {1, -1, 2, -2, .5f, 0}),
       {.12400501f, .024838101f, .19670945f, .023945875f, .10638174f, .08729935f}, 1e-7);
  s = r.state();
  near(s["/optimizer/adafactor/v_row/w"], {3.135069f, 11.738699f}, 3e-7);
  near(s["/optimizer/adafactor/v_col/w"], {5.053905f, 6.5309052f, 10.7258415f}, 3e-7);
  near(s["/optimizer/adafactor/momentum/w"],
       {.1240234375f, .0247802734375f, .1962890625f, .02392578125f, .1064453125f, .08740234375f},
       0);
}

}  // namespace
