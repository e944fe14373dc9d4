// SPDX-License-Identifier: Apache-2.0
// Measures the seconds of scoring: all pairs of images and texts, with the model of
// inputs/bench_s16.toml or a small one. The last line is a JSON object: the median of several jobs,
// and the time that their products take.
// Usage: score_bench [S16|emoji] [f32|bf16] [THREADS] [IMAGES] [BATCH] [TEXTS] [TOKENS] [JOBS]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "comm/mesh.hpp"
#include "models/cappa.hpp"

namespace {

using device::Kind;
using device::View;

models::CappaOptions options_of(const std::string& workload) {
  models::CappaOptions o;
  if (workload == "S16") {
    o.encoder = {.variant = "", .patch = 16, .depth = 12, .width = 384, .mlp = 1536, .heads = 6};
    return o;
  }
  o.image_size = 64;
  o.vocab_size = 2048;
  o.seq_len = 24;
  o.encoder = {.variant = "", .patch = 8, .depth = 6, .width = 192, .mlp = 768, .heads = 3};
  o.decoder.depth = 3;
  return o;
}

double product_seconds() {
  double sum = 0;
  for (const kernels::GemmUse& use : kernels::gemm_uses()) sum += use.seconds;
  return sum;
}

int run(int argc, char** argv) {
  auto word = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  auto number = [&](int i, const char* otherwise) {
    return int64_t(std::atoll(word(i, otherwise).c_str()));
  };
  const std::string workload = word(1, "S16"), type = word(2, "f32");
  const int threads = int(number(3, "2"));
  const int64_t images = number(4, "64"), batch = number(5, "32"), texts = number(6, "100"),
                tokens = number(7, "8"), jobs = number(8, "3");
  const models::CappaOptions options = options_of(workload);
  const models::Cappa model(options, {});
  const std::unique_ptr<comm::Comm> alone = comm::make_plan_comm(1);
  comm::Mesh mesh = comm::make_plan_mesh({1, 1}, *alone);
  device::Queue queue(Kind::cpu, threads, false), paper(Kind::plan, threads, false);
  paper.set_prepares(true);
  device::Ledger ledger;
  const shard::Layout layout(model.parameters(), model.blocks(), {}, 1, 1);
  shard::WeightStore weights({layout, mesh, queue, ledger, false,
                              type == "bf16" ? device::DType::bf16 : device::DType::f32},
                             0);
  weights.initialise(1);
  const View head = weights.weight(layout.find("decoder/LogitsDense/kernel"));
  const base::Stream draw(1, "score_bench");
  for (int64_t i = 0; i < head.count; ++i) head.f32()[i] = float(0.05 * draw.normal(uint64_t(i)));
  weights.publish();

  const std::unique_ptr<models::PairScorePass> pass = model.make_pair_score_pass();
  const int64_t pixels = options.height() * options.width() * 3;
  std::vector<float> image(size_t(batch * pixels));
  for (size_t i = 0; i < image.size(); ++i) image[i] = 2 * draw.sub(1).uniform(uint64_t(i)) - 1;
  models::Inputs inputs;
  inputs["image"] = device::view(image.data(), int64_t(image.size()));
  models::TextList list{tokens, {}};
  for (int64_t i = 0; i < texts * tokens; ++i)
    list.ids.push_back(i % tokens == tokens - 1 ? 1
                                                : 2 + int32_t(draw.sub(2).bits(uint64_t(i)) %
                                                              uint32_t(options.vocab_size - 2)));
  auto context = [&](device::Queue& of, device::Arena& arena) {
    return nn::Context{.queue = of,
                       .arena = arena,
                       .weights = weights,
                       .gradients = nullptr,
                       .batch = batch,
                       .keep = false};
  };
  device::Arena measure;
  nn::Context planned = context(paper, measure);
  base::Stopwatch planning;
  pass->plan(planned, inputs);
  const double plan_s = planning.seconds();
  device::Arena arena(Kind::cpu, ledger, "activations", measure.peak());
  nn::Context ctx = context(queue, arena);
  std::vector<double> scores(size_t(batch * texts)), seconds, products;
  for (int64_t j = 0; j <= jobs; ++j) {
    kernels::reset_gemm_uses();
    base::Stopwatch watch;
    for (int64_t first = 0; first < images; first += batch)
      pass->run(ctx, inputs, list, scores.data());
    if (j == 0) continue;  // warm-up
    seconds.push_back(watch.seconds());
    products.push_back(product_seconds());
  }
  for (const kernels::GemmUse& use : kernels::gemm_uses())
    fmt::print("m {:5} n {:6} k {:5}  {:6} calls {:8.1f} ms {:7.1f} GFLOP/s\n", use.m, use.n, use.k,
               use.calls, use.seconds * 1e3,
               2e-9 * double(use.m * use.n * use.k) * double(use.calls) / use.seconds);
  std::ranges::sort(seconds);
  std::ranges::sort(products);
  fmt::print(
      "{{\"workload\": \"{}\", \"dtype\": \"{}\", \"threads\": {}, \"images\": {}, \"texts\": {}, "
      "\"tokens\": {}, \"ms_per_step\": {:.1f}, \"products_ms\": {:.1f}, \"plan_ms\": {:.1f}, "
      "\"arena_mib\": {}, \"first_score\": {:.6f}}}\n",
      workload, type, threads, images, texts, tokens, seconds[seconds.size() / 2] * 1e3,
      products[products.size() / 2] * 1e3, plan_s * 1e3, measure.peak() >> 20, scores[0]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "score_bench: {}\n", e.what());
    return 1;
  }
}
