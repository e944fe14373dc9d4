// SPDX-License-Identifier: Apache-2.0
// golden FILE.h5... runs recorded cases of the published code (tests/golden/README.md) through the
// real engine. It uses as many ranks as mpirun starts, and prints the largest deviation of each
// quantity.
//
// Exit: 0 all within tolerance, 1 beyond, 2 bad file or option, 3 the ranks or the mesh do not fit.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/text.hpp"
#include "fewshot_case.hpp"
#include "kernels/instruction_choice.hpp"
#include "run_case.hpp"
#include "ssl_case.hpp"

namespace golden {
namespace {

constexpr const char* kUsage =
    "usage: golden [options] FILE.h5...\n"
    "  --mesh RxF           replica x fsdp (default: 1 x all ranks)\n"
    "  --strategy NAME      replicated | zero1 | sharded (default)\n"
    "  --level NAME         run (default) | mesh | anywhere, with\n"
    "  --slices N           cuts of the batch at the last two (default 4)\n"
    "  --micro-batch N      largest batch per rank and pass (default: all at once)\n"
    "  --recompute NAME     none (default) | gelu | mlp | block\n"
    "  --compute NAME       f32 (default) | bf16 | tf32 | fp16 (GPUs), with wider tolerances, of "
    "model cases\n"
    "  --threads N          per rank (default 1)\n"
    "  --device NAME        cpu (default) | cuda: one GPU, of all ranks\n";

struct Command {
  Settings settings;
  comm::MeshOptions mesh{1, -1, {}};
  std::vector<std::string> files;
  bool help = false;
};

int64_t number(const std::string& option, const std::string& text) {
  size_t used = 0;
  int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
  }
  if (used == 0 || used != text.size() || value < 1)
    base::fail(base::Exit::config, "{}: \"{}\" is no count", option, text);
  return value;
}

Command parse(int argc, char** argv) {
  using base::Exit;
  Command c;
  c.settings.determinism.slices = 4;
  const std::vector<std::string> options = {"--mesh",    "--strategy",    "--level",
                                            "--slices",  "--micro-batch", "--recompute",
                                            "--compute", "--threads",     "--device"};
  for (int i = 1; i < argc; ++i) {
    std::string option = argv[i];
    if (option == "--help") {
      c.help = true;
      continue;
    }
    if (!option.starts_with("--")) {
      c.files.push_back(option);
      continue;
    }
    if (std::find(options.begin(), options.end(), option) == options.end()) {
      std::string near = base::nearest_name(option, options);
      base::fail(Exit::config, "unknown option {}{}\n{}", option,
                 near.empty() ? "" : fmt::format("; did you mean {}?", near), kUsage);
    }
    if (i + 1 >= argc) base::fail(Exit::config, "{} needs a value", option);
    std::string value = argv[++i];
    auto one_of = [&](std::vector<std::string> names) {
      if (std::find(names.begin(), names.end(), value) == names.end())
        base::fail(Exit::config, "{}: \"{}\" is none of {}", option, value,
                   base::join(names, ", "));
      return value;
    };
    if (option == "--mesh") {
      size_t x = value.find('x');
      if (x == std::string::npos)
        base::fail(Exit::config, "--mesh: \"{}\" is no mesh such as 2x2", value);
      c.mesh.replica = number(option, value.substr(0, x));
      c.mesh.fsdp = number(option, value.substr(x + 1));
    }
    if (option == "--strategy") c.settings.strategy = one_of({"replicated", "zero1", "sharded"});
    if (option == "--level")
      c.settings.determinism.level =
          base::value_of(step::kLevelNames, one_of({"run", "mesh", "anywhere"}));
    if (option == "--slices") c.settings.determinism.slices = number(option, value);
    if (option == "--micro-batch") c.settings.micro_batch = number(option, value);
    if (option == "--recompute") c.settings.recompute = one_of({"none", "gelu", "mlp", "block"});
    if (option == "--compute")
      c.settings.compute =
          base::value_of(host::kComputeNames, one_of({"f32", "bf16", "tf32", "fp16"}));
    if (option == "--device" && one_of({"cpu", "cuda"}) == "cuda")
      c.settings.device = device::Kind::cuda;
    if (option == "--threads") c.settings.threads = int(number(option, value));
  }
  if (c.files.empty() && !c.help) base::fail(Exit::config, "no case file\n{}", kUsage);
  return c;
}

// A failure of this rank before the first exchange between ranks.
struct Problem {
  int code = 0;
  std::string text;
};
template <class Work>
Problem guarded(Work work) {
  try {
    work();
    return {};
  } catch (const base::Error& e) {
    return {int(e.code()), e.what()};
  } catch (const std::exception& e) {
    return {int(base::Exit::internal), e.what()};
  }
}

// Returns the worst code of all ranks. Rank 0 prints the first rank's problem.
int agree(comm::Comm& world, const Problem& mine) {
  int worst = int(world.max(int64_t(mine.code)));
  if (worst == 0) return 0;
  std::vector<std::string> texts = world.gather_text(mine.text);
  for (const std::string& text : texts)
    if (!text.empty()) {
      if (world.rank() == 0) fmt::print(stderr, "golden: {}\n", text);
      break;
    }
  return worst;
}

// Returns true for results of evaluators, which are recorded without their case.
bool holds_predictions(const CaseFile& file) {
  return !file.has_config() &&
         (file.has("score") || file.has("perplexity") || file.has("enc_rep") || file.has("decode"));
}

int run_file(const std::string& path, const Settings& settings, comm::Mesh& mesh) {
  std::unique_ptr<CaseFile> file, parameters;  // of a case, or of predictions and their case
  std::unique_ptr<Runner> runner;
  std::unique_ptr<SslCase> ssl;
  Problem problem = guarded([&] {
    file = std::make_unique<CaseFile>(path);
    if (holds_probes(*file)) return;
    if (const SslKind* kind = find_ssl_kind(*file)) {
      ssl = kind->make(*file, settings, mesh);
      return;
    }
    if (holds_predictions(*file))
      parameters = std::make_unique<CaseFile>(
          (std::filesystem::path(path).parent_path() / "case_ar.h5").string());
    runner =
        std::make_unique<Runner>(parameters ? *parameters : *file, settings, mesh,
                                 parameters ? Runner::Use::predictions : Runner::Use::whole_case);
  });
  if (int code = agree(*mesh.world, problem)) return code;
  Report report;
  if (ssl)
    ssl->run(report);
  else if (!runner)
    run_probes(*file, *mesh.world, report);
  else if (parameters)
    runner->run_predictions(*file, report);
  else
    runner->run(report);
  report.merge(*mesh.world);
  if (mesh.world->rank() == 0) {
    fmt::print("{}: {} on {} x {} ranks, {}, level {}\n{}", path,
               report.within() ? "within tolerance" : "BEYOND TOLERANCE", mesh.shape.replica,
               mesh.shape.fsdp, settings.strategy,
               base::name_of(step::kLevelNames, settings.determinism.level), report.table());
    std::fflush(stdout);
  }
  return report.within() ? 0 : 1;
}

int run(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  base::set_rank(world.rank(), world.size());
  Command command;
  comm::MeshShape shape;
  Problem problem = guarded([&] {
    command = parse(argc, argv);
    shape = comm::resolve_mesh(command.mesh, world.size(), "");
    // Checks that the sizes are powers of two before the mesh is made, because its tree of sums
    // needs that. Each file checks its own batch.
    if (const step::DeterminismOptions& d = command.settings.determinism; d.mesh())
      step::derive_geometry(d.slices * world.size(), d.slices, shape, d);
  });
  if (int code = agree(world, problem)) return code;
  if (command.help) {
    if (world.rank() == 0) fmt::print("{}", kUsage);
    return 0;
  }
  if (command.settings.determinism.anywhere())
    kernels::choose_instructions(kernels::Instructions::automatic, true);
  bool tree = command.settings.determinism.mesh();
  comm::Mesh mesh;
  problem = guarded([&] {
    mesh = comm::make_mesh(session, shape, tree ? comm::SumOrder::tree : comm::SumOrder::library);
  });
  if (int code = agree(world, problem)) return code;
  int worst = 0;
  for (const std::string& path : command.files)
    worst = std::max(worst, run_file(path, command.settings, mesh));
  return worst;
}

}  // namespace
}  // namespace golden

int main(int argc, char** argv) {
  comm::Session session(argc, argv);
  try {
    return golden::run(session, argc, argv);
  } catch (const base::Error& e) {
    // Other ranks may be in the middle of an exchange, so this rank aborts the whole job.
    fmt::print(stderr, "golden: rank {}: {}\n", base::where().rank, e.what());
    comm::Session::abort(int(e.code()));
  } catch (const std::exception& e) {
    fmt::print(stderr, "golden: rank {}: {}\n", base::where().rank, e.what());
    comm::Session::abort(int(base::Exit::internal));
  }
}
