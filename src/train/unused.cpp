// SPDX-License-Identifier: Apache-2.0
#include "train/unused.hpp"

#include "base/log.hpp"

namespace train {

std::vector<Unused> only_for_gpus(const Recipe& recipe) {
  static const Recipe plain;
  std::vector<Unused> out;
  if (recipe.run.gemm_search != plain.run.gemm_search)
    out.push_back({"run.gemm_search", "applies only to matrix products on GPUs"});
  if (recipe.run.cuda_graph != plain.run.cuda_graph)
    out.push_back({"run.cuda_graph", "applies only to passes on GPUs"});
  if (recipe.bench.op_steps != plain.bench.op_steps)
    out.push_back({"bench.op_steps", "applies only to ops on GPUs"});
  if (recipe.mesh.gpu_exchange != plain.mesh.gpu_exchange)
    out.push_back({"mesh.gpu_exchange", "applies only to exchanges between GPUs"});
  if (recipe.mesh.gpu_timeout_s != plain.mesh.gpu_timeout_s)
    out.push_back({"mesh.gpu_timeout_s", "applies only to exchanges between GPUs"});
  if (recipe.profile.forbid_waits != plain.profile.forbid_waits)
    out.push_back({"profile.forbid_waits", "applies only to a host that waits for its GPU"});
  return out;
}

std::vector<Unused> only_for_cpus(const Recipe& recipe) {
  static const Recipe plain;
  std::vector<Unused> out;
  if (recipe.run.cpu != plain.run.cpu)
    out.push_back({"run.cpu", "applies only to products and loops on CPUs"});
  return out;
}

std::vector<Unused> turned_off(const Recipe& recipe) {
  static const Recipe plain;
  std::vector<Unused> out;
  auto add = [&](bool given, const std::string& key, const std::string& why) {
    if (given) out.push_back({key, why});
  };
  add(!recipe.run.cuda_graph && recipe.run.cuda_graph_limit != plain.run.cuda_graph_limit,
      "run.cuda_graph_limit", "run.cuda_graph is \"off\"");
  add(recipe.run.cuda_graph && recipe.bench.op_steps != plain.bench.op_steps, "bench.op_steps",
      "run.cuda_graph is \"on\", and ops in a graph are not measured");
  add(recipe.mesh.gpu_exchange == comm::GpuExchange::mpi &&
          recipe.mesh.gpu_timeout_s != plain.mesh.gpu_timeout_s,
      "mesh.gpu_timeout_s", "applies only to exchanges by NCCL, and mesh.gpu_exchange is \"mpi\"");
  add(recipe.determinism.mesh() && recipe.mesh.bucket_mb != plain.mesh.bucket_mb, "mesh.bucket_mb",
      "at determinism.level \"mesh\" each unit is exchanged alone");
  add(recipe.determinism.mesh() && recipe.train.reduces_after, "train.reduce_gradients",
      "at determinism.level \"mesh\" each pass exchanges its gradients");
  add(recipe.run.cuda_graph && recipe.train.reduces_after, "train.reduce_gradients",
      "run.cuda_graph is \"on\", and a graph contains no exchange");
  add(recipe.precision.compute != host::Compute::fp16 &&
          recipe.precision.loss_scale != plain.precision.loss_scale,
      "precision.loss_scale",
      fmt::format("applies only to fp16, and precision.compute is \"{}\"",
                  name_of(recipe.precision.compute)));
  const records::TraceOptions& trace = recipe.profile.trace;
  if (const std::string early = trace.left_out(); !early.empty())
    out.push_back({"profile.steps", fmt::format("windows of {} steps at {} would begin before the "
                                                "previous one has ended, and are left out",
                                                trace.length, early)});
  if (trace.steps.empty()) {
    const std::string why = "profile.steps is [], so no step is traced";
    add(trace.length != plain.profile.trace.length, "profile.length", why);
    add(trace.ranks != plain.profile.trace.ranks, "profile.ranks", why);
    add(trace.stop_after, "profile.stop_after", why);
  }
  const TrainOptions& t = recipe.train;
  const std::string order =
      fmt::format("train.shuffle is \"{}\"", base::name_of(data::kShuffleNames, t.shuffle));
  const bool blocks = t.shuffle == data::Shuffle::blocks;
  add(!blocks && t.shuffle_block != plain.train.shuffle_block, "train.shuffle_block", order);
  add(!blocks && t.shuffle_window != plain.train.shuffle_window, "train.shuffle_window", order);
  add(t.shuffle != data::Shuffle::classes && t.class_power != plain.train.class_power,
      "train.class_power", order);
  add(t.shuffle != data::Shuffle::stratified && t.classes_per_batch != 0, "train.classes_per_batch",
      order);
  add(!recipe.determinism.mesh() && recipe.determinism.slices != plain.determinism.slices,
      "determinism.slices", "determinism.level is \"run\"");
  add(!recipe.data.loader.substitutes &&
          recipe.data.loader.max_bad_sample_fraction != plain.data.loader.max_bad_sample_fraction,
      "loader.max_bad_sample_fraction", "loader.on_bad_sample is \"error\"");
  if (const EarlyStopOptions& e = recipe.early_stop; e.patience_evals == 0) {
    const std::string why = "early_stop.patience_evals is 0";
    add(!e.metric.empty(), "early_stop.metric", why);
    add(e.min_change != plain.early_stop.min_change, "early_stop.min_change", why);
    add(e.not_before_fraction != plain.early_stop.not_before_fraction,
        "early_stop.not_before_fraction", why);
  }
  add(recipe.guard.nonfinite == GuardOptions::Nonfinite::stop && recipe.optimizer.drop_norm == 0 &&
          recipe.precision.compute != host::Compute::fp16 &&
          recipe.guard.max_skips != plain.guard.max_skips,
      "guard.max_skips", "guard.nonfinite is \"stop\", and there is no optimizer.drop_norm");
  for (const auto& [name, set] : recipe.data.data) {
    const std::string why = "neither limit nor skip takes a part of the data";
    add(set.part.whole() && set.part.seed != 0, fmt::format("data.{}.limit_seed", name), why);
    add(set.part.whole() && set.part.per_class, fmt::format("data.{}.limit_per", name), why);
  }
  return out;
}

void print_unused(const Recipe& recipe, device::Kind kind) {
  std::vector<Unused> all = turned_off(recipe);
  if (kind == device::Kind::cpu)
    for (const Unused& u : only_for_gpus(recipe))
      all.push_back({u.key, u.why + ", and this job computes on CPUs"});
  if (kind == device::Kind::cuda)
    for (const Unused& u : only_for_cpus(recipe))
      all.push_back({u.key, u.why + ", and this job computes on GPUs"});
  for (const Unused& u : all) base::log::line("unused   {}: {}", u.key, u.why);
}

}  // namespace train
