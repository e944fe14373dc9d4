// SPDX-License-Identifier: Apache-2.0
// Trains one small model on every mesh of this number of ranks (run with 1, 2, 3 and 4). In level
// "mesh", every mesh, accumulation, sharding strategy, thread count and recompute policy must give
// identical bits: of every loss and of every tensor of the state, including a moving average of the
// weights. In level "run", losses must be close to those of one rank. All this holds for bf16
// products as well: ranks then exchange rounded weights if they are sharded, and none if they are
// replicated. One rank writes the reference to a file, and other rank counts compare with it.
//   mesh_bits REFERENCE_FILE
#include <cmath>
#include <cstdio>
#include <fstream>

#include "models/captions/cappa.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

constexpr int kSteps = 12;

struct Outcome {
  std::vector<double> losses;
  uint64_t digest = 0;
};

Outcome run(comm::Session& session, const tests::Case& c) {
  comm::Mesh mesh = comm::make_mesh(
      session, c.mesh, c.level == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library);
  step::EngineOptions options = tests::engine_options(c, kSteps);
  options.ema.emplace();
  options.ema->decay = 0.75;
  options.ema->every = 3;
  step::Engine engine(options, mesh, device::Kind::cpu);
  engine.initialise();
  engine.publish();
  Outcome out;
  for (int step = 1; step <= kSteps; ++step) {
    const step::StepReport& r = tests::run_step(engine, mesh, step);
    std::vector<double> numbers = r.measures;
    numbers.insert(numbers.end(), {r.gradients.gradients.global, r.update.parameters.global,
                                   r.update.updates.global});
    for (double v : numbers) out.digest = base::xxh3(&v, sizeof v, out.digest);
    out.losses.push_back(r.loss());
  }
  for (const auto& [name, bytes] : tests::whole_state(engine, session.world()))
    out.digest = base::xxh3(bytes.data(), bytes.size(), out.digest);
  return out;
}

int failures = 0;
void expect(bool good, comm::Comm& world, const std::string& text) {
  if (good) return;
  ++failures;
  if (world.rank() == 0) std::printf("FAILED: %s\n", text.c_str());
}

// Writes the losses of every step and the digest of all state, one number a line.
void write(std::ofstream& file, const Outcome& o) {
  file << o.digest << "\n";
  for (double l : o.losses) file << fmt::format("{:.17g}\n", l);
}
Outcome read(std::ifstream& file) {
  Outcome o;
  file >> o.digest;
  o.losses.resize(kSteps);
  for (double& l : o.losses) file >> l;
  return o;
}

double worst(const std::vector<double>& a, const std::vector<double>& b) {
  double w = 0;
  for (size_t i = 0; i < a.size(); ++i) w = std::max(w, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return w;
}

// What one rank computes. A job of one rank writes it to a file, and others compare with it.
struct References {
  Outcome mesh, f32_momentum, bf16;
};

bool find_references(comm::Session& session, const std::string& file, References& r) {
  if (session.world().size() == 1) {
    r.mesh = run(session, {.mesh = {1, 1}});
    r.f32_momentum = run(session, {.mesh = {1, 1}, .level = "run", .momentum_type = "f32"});
    r.bf16 = run(session, {.mesh = {1, 1}, .bf16 = true});
    std::ofstream out(file);
    for (const Outcome& o : {r.mesh, r.f32_momentum, r.bf16}) write(out, o);
    return true;
  }
  std::ifstream in(file);
  for (Outcome* o : {&r.mesh, &r.f32_momentum, &r.bf16}) *o = read(in);
  if (!in) std::fprintf(stderr, "no reference in %s: run with one rank first\n", file.c_str());
  return bool(in);
}

int compare(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  int ranks = world.size();
  bool power = ranks != 3;
  References references;
  if (!find_references(session, argc > 1 ? argv[1] : "mesh_bits.txt", references)) return 2;
  const auto& [reference, f32_momentum, bf16] = references;
  if (world.rank() == 0)
    std::printf("loss %.6f -> %.6f\n", reference.losses.front(), reference.losses.back());
  expect(reference.losses.back() < 0.97 * reference.losses.front(), world,
         "the small model does not learn");

  int cases = 0;
  for (int replica = 1; replica <= ranks; ++replica) {
    if (ranks % replica) continue;
    comm::MeshShape mesh{replica, ranks / replica};
    for (auto [parameters, optimizer] : {std::pair{"replicated", "replicated"},
                                         {"replicated", "sharded"},
                                         {"sharded", "sharded"}}) {
      for (int accumulation : {1, 2, 4}) {
        tests::Case c{.mesh = mesh,
                      .micro_batch = 48 / ranks / accumulation,
                      .parameters = parameters,
                      .optimizer = optimizer};
        for (int threads : {1, 2}) {
          if (!power) continue;
          c.threads = threads;
          c.recompute = threads == 1 ? "none" : accumulation == 1 ? "block" : "mlp";
          Outcome o = run(session, c);
          ++cases;
          expect(o.digest == reference.digest, world,
                 c.text() + fmt::format(": bits differ; losses off by {:.2e}",
                                        worst(o.losses, reference.losses)));
        }
        c.threads = 1;
        c.recompute = "mlp";
        c.bf16 = true;
        if (power) {
          Outcome o = run(session, c);
          ++cases;
          expect(o.digest == bf16.digest, world,
                 c.text() + fmt::format(": bits differ; losses off by {:.2e}",
                                        worst(o.losses, bf16.losses)));
        }
        c.level = "run";
        c.recompute = "none";
        c.bf16 = false;
        for (const char* type : {"f32", "bf16"}) {
          c.momentum_type = type;
          Outcome o = run(session, c);
          ++cases;
          bool f32 = c.momentum_type == "f32";
          double off = worst(o.losses, f32 ? f32_momentum.losses : reference.losses);
          expect(off <= (f32 ? 1e-5 : 1e-4), world,
                 c.text() + fmt::format(": losses off by {:.2e}", off));
          // Gradients of one unit, some units or all of them are exchanged together.
          if (!f32 || c.optimizer == "sharded") continue;
          for (int64_t bytes : {0, 1 << 30}) {
            tests::Case other = c;
            other.bucket_bytes = bytes;
            ++cases;
            expect(run(session, other).digest == o.digest, world, other.text() + ": bits differ");
          }
          // Exchanges of gradients may begin during the backward pass or after it.
          tests::Case after = c;
          after.reduces_after = true;
          ++cases;
          expect(run(session, after).digest == o.digest, world, after.text() + ": bits differ");
        }
      }
    }
  }
  if (world.rank() == 0) std::printf("%d cases on %d ranks, %d failures\n", cases, ranks, failures);
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, compare); }
