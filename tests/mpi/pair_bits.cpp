// SPDX-License-Identifier: Apache-2.0
// Trains a small SigLIP on every mesh of this number of ranks (run with 1, 2 and 4), level "mesh".
// Its loss compares the examples of all ranks and passes, and owns two trained parameters. Every
// mesh, accumulation, sharding strategy, thread count and recompute policy must give identical
// bits: of losses, of every tensor of the state, and of the cosines of images and texts at the end.
// In level "run", losses must be close to those of one rank. An engine takes the memory that a plan
// counts. One rank writes the reference to a file.
//   pair_bits REFERENCE_FILE
#include <cmath>
#include <cstdio>
#include <fstream>

#include "models/pairs/siglip.hpp"
#include "models/trunks/vit_options.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

constexpr int kSteps = 6;
constexpr step::PassId kPairs{0};

// The model reads the made-up batches of the small CapPa.
step::EngineOptions options_of(const tests::Case& c) {
  const models::CappaOptions sizes = tests::small_cappa();
  auto vit = std::make_shared<models::VitTrunkOptions>();
  vit->size = sizes.encoder;
  vit->pool = models::Pool::map;
  auto model = std::make_shared<models::SiglipOptions>();
  model->image_size = sizes.image_size;
  model->vocab_size = sizes.vocab_size;
  model->seq_len = sizes.seq_len;
  model->image_head = true;
  model->dim = 24;
  model->loss = {.temperature_init = 5, .bias_init = -3};
  model->trunk.kind = "vit";
  model->trunk.options = vit;
  model->text = {.depth = 2, .width = 40, .mlp = 56, .heads = 4};
  step::EngineOptions o = tests::engine_options(c, kSteps);
  o.model = tests::made_model(c, "siglip", model);
  o.passes = {[](const models::Model& made) {
    return dynamic_cast<const models::PairScorer&>(made).make_pair_score_pass();
  }};
  o.groups = {"encoder/.*", "txt/.*"};
  return o;
}

struct Outcome {
  double first = 0, last = 0;
  uint64_t digest = 0;
};

// Returns the cosines of eight images with eight texts, which every rank computes.
std::vector<double> cosines(step::Engine& engine) {
  constexpr int64_t kAll = 8;
  const tests::MadeBatch batch(tests::small_cappa(), 0, kAll);
  const models::TextList texts{tests::small_cappa().seq_len, batch.labels, 2};
  auto& pass = engine.pass<models::PairScorePass>(kPairs);
  const int64_t n = engine.geometry().micro_batch, pixels = int64_t(batch.image.size()) / kAll,
                columns = pass.columns(texts);
  std::vector<double> out, some(size_t(n * columns));
  pass.begin();
  for (int64_t first = 0; first < kAll; first += n) {
    std::vector<float> images(size_t(n * pixels), 0.0f);
    std::copy_n(batch.image.begin() + first * pixels, std::min(n, kAll - first) * pixels,
                images.begin());
    models::HostBatch host;
    host.features["image"] = device::view(images.data(), n * pixels);
    host.examples = n;
    engine.forward(kPairs, host, [&](nn::Context& ctx, const models::Inputs& in) {
      pass.run(ctx, in, texts, some.data());
    });
    out.insert(out.end(), some.begin(), some.begin() + std::min(n, kAll - first) * columns);
  }
  return out;
}

// Checks that an engine has taken the memory that a plan counts.
void check_plan(const tests::Case& c, const step::Engine& real) {
  auto world = comm::make_plan_comm(c.mesh.ranks());
  comm::Mesh mesh = comm::make_plan_mesh(c.mesh, *world);
  const step::Engine planned(options_of(c), mesh, device::Kind::plan);
  for (const auto& [category, entry] : planned.ledger().entries())
    CHECK(real.ledger().peak_of(category) == entry.peak, "{} bytes of {}, planned {}",
          real.ledger().peak_of(category), category, entry.peak);
}

Outcome run(comm::Session& session, const tests::Case& c) {
  comm::Mesh mesh = comm::make_mesh(
      session, c.mesh, c.level == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library);
  step::Engine engine(options_of(c), mesh, device::Kind::cpu);
  engine.initialise();
  engine.publish();
  Outcome out;
  for (int step = 1; step <= kSteps; ++step) {
    const step::StepReport& r = tests::run_step(engine, mesh, step);
    CHECK(r.finite, "step {} is not finite", step);
    if (step == 1) out.first = r.loss();
    out.last = r.loss();
    for (const double v : {r.loss(), r.gradients.gradients.global, r.update.parameters.global})
      out.digest = base::xxh3(&v, sizeof v, out.digest);
  }
  check_plan(c, engine);
  for (const double v : cosines(engine)) out.digest = base::xxh3(&v, sizeof v, out.digest);
  for (const auto& [name, bytes] : tests::whole_state(engine, session.world()))
    out.digest = base::xxh3(bytes.data(), bytes.size(), out.digest);
  return out;
}

int compare(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  const int ranks = world.size();
  const std::string file = argc > 1 ? argv[1] : "pair_bits.txt";
  Outcome reference;
  if (ranks == 1) {
    reference = run(session, {.mesh = {1, 1}});
    std::ofstream(file) << reference.digest << "\n"
                        << fmt::format("{:.17g}\n{:.17g}\n", reference.first, reference.last);
    std::printf("loss %.6f -> %.6f\n", reference.first, reference.last);
  } else if (std::ifstream in(file);
             !(in >> reference.digest >> reference.first >> reference.last)) {
    std::fprintf(stderr, "no reference in %s: run with one rank first\n", file.c_str());
    return 2;
  }
  int failures = 0, cases = 0;
  auto check = [&](tests::Case c) {
    const Outcome found = run(session, c);
    ++cases;
    const double off = std::abs(found.last - reference.last) / reference.last;
    if (c.level == "mesh" ? found.digest == reference.digest : off < 1e-4) return;
    ++failures;
    if (world.rank() == 0)
      std::printf("FAILED: %s: last loss is off by %.2e\n", c.text().c_str(), off);
  };
  if (!(reference.last < reference.first)) {
    ++failures;
    if (world.rank() == 0) std::printf("FAILED: the small model does not learn\n");
  }
  const std::pair<const char*, const char*> strategies[] = {
      {"replicated", "replicated"}, {"replicated", "sharded"}, {"sharded", "sharded"}};
  for (int replica = 1; replica <= ranks; replica *= 2)
    for (int s = 0; s < 3; ++s)
      for (int a = 0; a < 3; ++a) {
        if (ranks == 4 && a != s) continue;  // these take long on few cores
        const int passes = 1 << a;
        tests::Case c{.mesh = {replica, ranks / replica},
                      .micro_batch = 48 / ranks / passes,
                      .parameters = strategies[s].first,
                      .optimizer = strategies[s].second,
                      .recompute = passes == 2 ? "block" : "none",
                      .threads = passes == 1 ? 2 : 1};
        check(c);
        c.level = "run";
        if (s == 1 && a == 1) check(c);
      }
  if (world.rank() == 0) std::printf("%d cases on %d ranks, %d failures\n", cases, ranks, failures);
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, compare); }
