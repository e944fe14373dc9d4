// SPDX-License-Identifier: Apache-2.0
#include "train/console.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/unpack.hpp"
#include "comm/gpu_exchange.hpp"
#include "comm/mpi_library.hpp"
#include "data/formats.hpp"
#include "data/ops/count_lines.hpp"
#include "device/gpu.hpp"
#include "host/threads.hpp"
#include "io/version.hpp"
#include "kernels/gemm.hpp"
#include "kernels/library_version.hpp"
#include "train/version.hpp"

namespace train {
namespace log = base::log;
namespace {

// Returns "gcc=12.2.0" or "clang=14.0.6".
std::string compiler_text() {
#ifdef __clang__
  return fmt::format("clang={}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return "gcc=" __VERSION__;
#endif
}

}  // namespace

std::string version() { return kVersion; }

std::string build_features() {
  auto yes = [](bool built) { return built ? "yes" : "no"; };
  return fmt::format("build={} cuda={} nccl={} onednn={} bf16={}", kBuildType,
                     yes(device::built_with_cuda()), yes(comm::built_with_nccl()),
                     kernels::onednn_version(), kernels::bf16_is_native() ? "native" : "emulated");
}

std::string library_features() {
  struct Library {
    const char *name, *version;
    bool built;
  };
  std::string text = "png=" + data::png_version();
  for (const Library& l :
       {Library{"jpeg", kJpegVersion, true},
        {"gif", "", data::built_with_gif()},
        {"webp", kWebpVersion, data::built_with_webp()},
        {"sentencepiece", kSentencepieceVersion, data::built_with_sentencepiece()},
        {"archive", "", checkpoint::built_with_archive()},
        {"lzf", "", io::built_with_lzf()}})
    text += fmt::format(" {}={}", l.name, !l.built ? "no" : *l.version ? l.version : "yes");
  return text;
}

std::string version_line() {
  std::string job;
  for (const auto& [variable, scheduler] :
       {std::pair{"SLURM_JOB_ID", "slurm"}, {"PBS_JOBID", "pbs"}})
    if (const char* id = std::getenv(variable); id && *id)
      job = fmt::format("  job={}:{}", scheduler, id);
  const comm::MpiLibrary& mpi = comm::mpi_library();
  return fmt::format("trainer {}  git={} {} {}={} hdf5={}{}", kVersion, kGitDescription,
                     compiler_text(), mpi.name, mpi.version, io::hdf5_version(), job);
}

std::string compute_text(const PrecisionOptions& precision) {
  if (precision.compute == host::Compute::f32) return "f32";
  if (precision.compute == host::Compute::fp16)
    return fmt::format("fp16, f32 masters and sums, loss scale from {:g}",
                       precision.loss_scale.init);
  if (precision.compute == host::Compute::tf32)
    return "tf32: operands of f32 products are rounded to 10 bits by the tensor cores";
  return kernels::bf16_is_native() ? "bf16=native, f32 masters and sums"
                                   : "bf16=emulated (rounded operands, f32 products: this CPU has "
                                     "no bf16 instructions), f32 masters and sums";
}

std::string loss_text(double loss) {
  if (std::isnan(loss)) return "-";
  return fmt::format("{:.6f}", loss);
}

void print_mesh(comm::Session& session, const comm::Mesh& mesh, const Recipe& recipe,
                const host::DeviceChoice& device, int threads) {
  std::vector<std::string> hosts = mesh.world->gather_text(session.host());
  std::map<std::string, int> count;
  for (const std::string& h : hosts) ++count[h];
  const std::vector<std::string> devices = mesh.world->gather_text(device.name);
  log::line("device   {}", device.text);
  log::line(
      "mesh     {} rank{} on {} node{} = replica {} x fsdp {}  parameters={} optimizer={}  "
      "backend={}",
      hosts.size(), hosts.size() == 1 ? "" : "s", count.size(), count.size() == 1 ? "" : "s",
      mesh.shape.replica, mesh.shape.fsdp,
      base::name_of(shard::kPlacementNames, recipe.sharding.parameters),
      base::name_of(shard::kPlacementNames, recipe.sharding.optimizer), device.exchange);
  log::line("           {:<8}{:<17}{:<27}{}", "ranks", "host", "device", "threads/rank");
  for (size_t i = 0; i < hosts.size();) {
    size_t j = i;
    while (j < hosts.size() && hosts[j] == hosts[i] && devices[j] == devices[i]) ++j;
    log::line("           {:<8}{:<17}{:<27}{}",
              j - i == 1 ? fmt::format("{}", i) : fmt::format("{}-{}", i, j - 1), hosts[i],
              devices[i], threads);
    i = j;
  }
  host::print_binding(*mesh.world, session.host(), threads);
}

void print_model(step::Engine& engine, const Recipe& recipe) {
  std::map<std::string, int64_t> parts;
  int64_t frozen = 0;
  for (const shard::Parameter& p : engine.layout().parameters()) {
    parts[p.path.substr(0, p.path.find('/'))] += p.size;
    frozen += p.kind == shard::ParameterKind::frozen;
  }
  std::string by_part;
  for (const auto& [name, n] : parts) by_part += fmt::format("  {} {}", name, base::with_commas(n));
  log::line("model    {}  {} parameters in {} tensors:{}", recipe.model.kind,
            base::with_commas(engine.layout().total_elements()),
            engine.layout().parameters().size(), by_part);
  const std::vector<shard::Parameter>& parameters = engine.layout().parameters();
  optim::Policies policies = optim::resolve_policies(recipe.optimizer, recipe.schedule, parameters);
  int64_t decayed = 0, decayed_elements = 0, plain = 0, plain_elements = 0;
  std::map<std::string, int> by_rule;  // tensors by optimizer
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].kind == shard::ParameterKind::state) continue;
    const int rule = policies.parameters[i].rule;
    if (rule >= 0 && !policies.parameters[i].frozen)
      ++by_rule[recipe.optimizer.rules[size_t(rule)].kind];
    bool decays = policies.parameters[i].decay_scale > 0 && recipe.optimizer.weight_decay > 0;
    (decays ? decayed : plain) += 1;
    (decays ? decayed_elements : plain_elements) += parameters[i].size;
  }
  std::string others;
  for (const auto& [kind, count] : by_rule)
    others += fmt::format(" ({} on {} tensors)", kind, count);
  log::line(
      "optim    {}{}  lr {:g}  clip {:g}  decay {:g} on {} tensors ({})  no decay on {} ({})  "
      "frozen "
      "{}",
      recipe.optimizer.kind, others, recipe.optimizer.learning_rate, recipe.optimizer.clip_norm,
      recipe.optimizer.weight_decay, decayed, base::with_commas(decayed_elements), plain,
      base::with_commas(plain_elements), frozen);
}

void print_memory(const step::Engine& engine) {
  std::string text;
  for (const auto& [name, entry] : engine.ledger().entries())
    text += fmt::format("{} {}  ", name, base::mebibytes(entry.peak));
  log::line("memory   per rank, MiB: {}total {}", text,
            base::mebibytes(engine.ledger().total_peak()));
}

std::string parameter_table(step::Engine& engine, comm::Mesh& mesh) {
  // Holds sums and sums of squares of the parts that this rank would write to a checkpoint.
  const auto& parameters = engine.layout().parameters();
  std::vector<double> sums(2 * parameters.size(), 0.0);
  std::vector<shard::TensorSlice> slices = engine.state();
  for (size_t i = 0; i < parameters.size(); ++i)
    for (const auto& part : slices[i].parts)
      if (slices[i].writes)
        device::read_on_host(slices[i].view(part), engine.queue(), [&](device::View values) {
          for (int64_t e = 0; e < values.count; ++e) {
            double v = double(values.f32()[e]);
            sums[2 * i] += v;
            sums[2 * i + 1] += v * v;
          }
        });
  mesh.world->all_reduce({sums.data(), device::DType::f64, int64_t(sums.size())}).wait();
  std::vector<size_t> order(parameters.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return parameters[a].path < parameters[b].path; });
  std::string out =
      fmt::format("{:<72} {:<20} {:>14} {:>10} {:>10}\n", "Name", "Shape", "Size", "Mean", "Std");
  for (size_t i : order) {
    double n = double(parameters[i].size), mean = sums[2 * i] / n;
    std::string shape;
    for (int64_t d : parameters[i].shape) shape += fmt::format("{}{}", shape.empty() ? "" : ",", d);
    out += fmt::format("{:<72} {:<20} {:>14} {:>10.3g} {:>10.3g}\n", parameters[i].path,
                       "[" + shape + "]", base::with_commas(parameters[i].size), mean,
                       std::sqrt(std::max(0.0, sums[2 * i + 1] / n - mean * mean)));
  }
  return out + fmt::format("Total: {}\n", base::with_commas(engine.layout().total_elements()));
}

void print_counts(comm::Comm& world, const data::Mixture& data) {
  for (const data::Mixture::Part& part : data.parts()) {
    std::map<std::string, int64_t> counts = part.dataset->counts();  // equal names on every rank
    for (auto& [name, count] : counts) count = world.sum(count);
    for (const std::string& line : data::count_lines(part.dataset->name(), counts))
      log::line("{}", line);
  }
}

}  // namespace train
