// SPDX-License-Identifier: Apache-2.0
// Saves on N ranks and continues on M, as separate jobs:
//   mpirun -np N continue_test save FOLDER        one checkpoint per mesh, sharding strategy and
//     level, after step 10
//   mpirun -np M continue_test load FOLDER [all]  each of them on each mesh and strategy of M ranks
// The restored state must always equal the saved state, bit by bit. In level "mesh" the 20 steps
// after it must have the bits of a run without a stop. In level "run" their losses must be within
// 1e-5 of that run. Without `all`, only some of the pairs take the steps.
#include <cmath>
#include <cstdio>
#include <sstream>

#include "checkpoint/checkpoint.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

constexpr int kSaved = 10, kSteps = 30;
const std::pair<const char*, const char*> kStrategies[] = {
    {"replicated", "replicated"}, {"replicated", "sharded"}, {"sharded", "sharded"}};

std::vector<tests::Case> cases(const std::string& level, int ranks) {
  std::vector<tests::Case> list;
  if (level == "mesh" && ranks == 3) return list;  // level "mesh" needs powers of two
  for (int replica = 1; replica <= ranks; ++replica)
    if (ranks % replica == 0)
      for (auto [parameters, optimizer] : kStrategies)
        list.push_back({.mesh = {replica, ranks / replica},
                        .micro_batch = 48 / ranks / (replica % 2 + 1),
                        .parameters = parameters,
                        .optimizer = optimizer,
                        .level = level,
                        .momentum_type = level == "mesh" ? "bf16" : "f32"});
  return list;
}

struct Run {
  comm::Mesh mesh;
  step::Engine engine;
  Run(comm::Session& session, const tests::Case& c)
      : mesh(comm::make_mesh(session, c.mesh,
                             c.level == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library)),
        engine(tests::engine_options(c, kSteps), mesh, device::Kind::cpu) {}
  std::vector<double> steps(int from, int to) {
    std::vector<double> losses;
    for (int step = from; step <= to; ++step)
      losses.push_back(tests::run_step(engine, mesh, step).loss());
    return losses;
  }
  uint64_t digest() {
    uint64_t value = 0;
    for (const auto& [name, bytes] : tests::whole_state(engine, *mesh.world))
      value = base::xxh3(bytes.data(), bytes.size(), base::xxh3(name.data(), name.size(), value));
    return value;
  }
};

void write_numbers(const std::string& file, uint64_t digest, const std::vector<double>& losses) {
  std::string text = fmt::format("{}\n", digest);
  for (double loss : losses) text += fmt::format("{:.17g}\n", loss);
  io::write_file_atomically(file, text, false);
}
std::pair<uint64_t, std::vector<double>> read_numbers(const std::string& file) {
  std::istringstream in(io::read_file(file));
  std::pair<uint64_t, std::vector<double>> out;
  in >> out.first;
  for (double loss; in >> loss;) out.second.push_back(loss);
  return out;
}

int save_all(comm::Session& session, const std::string& folder) {
  comm::Comm& world = session.world();
  for (const char* level : {"mesh", "run"})
    for (const tests::Case& c : cases(level, world.size())) {
      Run run(session, c);
      run.engine.initialise();
      run.engine.publish();
      run.steps(1, kSaved);
      std::string directory = fmt::format("{}/{}/{}_{}_{}", folder, level, c.mesh.replica,
                                          c.mesh.fsdp, c.parameters + "_" + c.optimizer);
      if (world.rank() == 0) io::make_directories(directory);
      world.barrier();
      checkpoint::State state;
      state.step = kSaved;
      state.tensors = run.engine.state();
      state.texts = {{"deck", "x"}};
      checkpoint::save(world, directory, state, {});
      uint64_t digest = run.digest();
      if (world.rank() == 0) write_numbers(directory + "/digest", digest, {});
      // One case also runs on without a stop, as the reference.
      if (world.size() == 1 && c.parameters == std::string("replicated") &&
          c.optimizer == std::string("replicated")) {
        auto losses = run.steps(kSaved + 1, kSteps);
        write_numbers(fmt::format("{}/{}_straight", folder, level), run.digest(), losses);
      }
    }
  return 0;
}

int load_all(comm::Session& session, const std::string& folder, bool all) {
  comm::Comm& world = session.world();
  int failures = 0, restored = 0, continued = 0;
  double worst = 0;
  auto expect = [&](bool good, const std::string& text) {
    if (good) return;
    ++failures;
    if (world.rank() == 0) std::printf("FAILED: %s\n", text.c_str());
  };
  for (const std::string level : {"mesh", "run"}) {
    auto [straight_digest, straight] = read_numbers(fmt::format("{}/{}_straight", folder, level));
    expect(straight.size() == size_t(kSteps - kSaved), level + ": no straight run");
    std::vector<std::string> saved = io::list_directory(folder + "/" + level);
    expect(saved.size() == (level == "mesh" ? 18 : 24),
           fmt::format("{} checkpoints of level {}", saved.size(), level));
    int pair = 0;
    for (const std::string& from : saved)
      for (const tests::Case& c : cases(level, world.size())) {
        Run run(session, c);
        checkpoint::State state{
            .step = 0, .tensors = run.engine.state(), .numbers = {}, .texts = {}};
        checkpoint::CheckpointOptions options;
        options.resume = "must";
        std::string name = fmt::format("saved by {}/{}, continued by {}", level, from, c.text());
        checkpoint::restore(world, fmt::format("{}/{}/{}", folder, level, from), state, options);
        ++restored;
        expect(state.step == kSaved, name + ": another step");
        expect(
            run.digest() == read_numbers(fmt::format("{}/{}/{}/digest", folder, level, from)).first,
            name + ": the restored state has other bits");
        if (!all && pair++ % 13 != 0) continue;
        ++continued;
        run.engine.publish();
        std::vector<double> losses = run.steps(kSaved + 1, kSteps);
        if (level == "mesh") {
          expect(losses == straight, name + ": other losses");
          expect(run.digest() == straight_digest, name + ": the final state has other bits");
        } else {
          for (size_t i = 0; i < losses.size(); ++i)
            worst = std::max(worst, std::abs(losses[i] - straight[i]) / straight[i]);
          expect(worst <= 1e-5, fmt::format("{}: losses off by {:.2e}", name, worst));
        }
      }
  }
  if (world.rank() == 0)
    std::printf("%d restored, %d continued for %d steps, level run off by %.1e, %d failures\n",
                restored, continued, kSteps - kSaved, worst, failures);
  return failures ? 1 : 0;
}

int run(comm::Session& session, int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "continue_test save|load FOLDER [all]\n");
    return 2;
  }
  if (argv[1] == std::string("save")) return save_all(session, argv[2]);
  return load_all(session, argv[2], argc > 3);
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
