// SPDX-License-Identifier: Apache-2.0
// Recorded losses (losses.h5): losses of embeddings, cross-entropies of labels, Sinkhorn's
// assignment of given matrices, and the shuffled batch norm of MoCo's keys.
#include <cmath>

#include "kernels/batch_norm.hpp"
#include "kernels/sinkhorn.hpp"
#include "loss_case.hpp"
#include "ssl_case.hpp"
#include "ssl_class_losses.hpp"

namespace golden {
namespace {

using device::DType;
using device::View;
using Floats = std::vector<float>;

constexpr const char* kTargetSets = "targets_";

// Returns the sets of a group "sinkhorn/NAME" that hold targets.
bool holds_assignments(const CaseFile& file, const std::string& group) {
  for (const std::string& set : file.below(group))
    if (set.find(kTargetSets) != set.npos) return true;
  return false;
}
bool holds_shuffle(const CaseFile& file, const std::string& group) {
  return file.has(group + "/permutation") && file.has(group + "/shuffled");
}

class LossesCase : public SslCase {
 public:
  LossesCase(const CaseFile& file, const Settings& settings, comm::Mesh& mesh)
      : file_(file), settings_(settings), mesh_(mesh) {
    for (const std::string& group : file.groups()) {
      if (auto loss = make_loss_case(file, group, settings_, mesh))
        losses_.push_back(std::move(loss));
      else if (is_class_loss(name_of(group)))
        class_losses_.push_back(group);
      else if (holds_shuffle(file, group))
        shuffles_.push_back(group);
      else if (holds_assignments(file, group))
        assignments_.push_back(group);
      else
        file.fail(group, "is no known loss");
    }
  }

  void run(Report& report) override {
    for (const auto& loss : losses_) loss->run(report);
    for (const std::string& group : class_losses_) run_class_loss(file_, group, settings_, report);
    for (const std::string& group : shuffles_) run_shuffle(group, report);
    for (const std::string& group : assignments_) run_assignments(group, report);
  }

 private:
  std::string name_of(const std::string& group) const {
    if (!file_.has_attribute(group, "json")) return "";
    const nlohmann::json config = file_.json(group);
    return config.value("name", "");
  }
  // A bench for ops, all of which every rank runs.
  std::unique_ptr<Workbench> bench_of(const models::ParameterList& list, int64_t examples) {
    step::Geometry geometry{.global_batch = examples, .micro_batch = examples};
    geometry.total_slices = settings_.determinism.slices;
    auto bench = std::make_unique<Workbench>(list, geometry, settings_, mesh_);
    bench->begin_step();
    return bench;
  }

  // Recorded matrices have a row per prototype. Their logarithms are scores.
  void run_assignments(const std::string& group, Report& report) {
    models::ParameterList list;
    for (const std::string& name : file_.below(group)) {
      const size_t at = name.find(kTargetSets);
      if (at == name.npos) continue;
      const int64_t rounds = std::stoll(name.substr(at + std::string(kTargetSets).size()));
      const std::string given = group + "/" + name.substr(0, at) + "Q", set = group + "/" + name;
      const Shape shape = file_.shape(given);
      const int64_t columns = shape.at(0), rows = shape.at(1);
      const Floats q = file_.floats(given, shape);
      Floats scores(q.size());
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          scores[size_t(r * columns + c)] = std::log(q[size_t(c * rows + r)]);
      const auto bench = bench_of(list, 1);
      const Floats got = assign(*bench, scores, rows, columns, rounds);
      const Floats want = file_.floats(set, {rows, columns});
      report.compare("assignments", set, got.data(), want.data(), int64_t(want.size()),
                     file_.tolerance(set));
    }
  }
  static Floats assign(Workbench& bench, const Floats& values, int64_t rows, int64_t columns,
                       int64_t rounds) {
    nn::Context ctx = bench.context(1, true);
    device::Arena::Scope scope(ctx.arena);
    const View scores = bench.copy(values), top = bench.make(1), q = bench.make(rows * columns),
               targets = bench.make(rows * columns),
               totals = ctx.arena.temporary(columns, DType::f64);
    ctx.run(kernels::FiniteMaximum{.maximum = top, .x = scores, .rows = rows, .columns = columns});
    ctx.run(kernels::SinkhornStart{
        .q = q, .scores = scores, .maxima = top, .rows = rows, .columns = columns});
    for (int64_t round = 0; round < rounds; ++round) {
      ctx.run(kernels::ColumnTotals{.totals = totals, .x = q, .rows = rows, .columns = columns});
      kernels::SinkhornScale scale{.q = q,
                                   .totals = totals,
                                   .rows = rows,
                                   .columns = columns,
                                   .samples = rows,
                                   .first = round == 0};
      if (round + 1 == rounds) {
        scale.targets = targets;
        scale.target_rows = rows;
      }
      ctx.run(scale);
    }
    return bench.read(targets);
  }

  // Keys of several ranks in another order: each rank of the published code normalises its rows.
  void run_shuffle(const std::string& group, Report& report) {
    const Shape shape = file_.shape(group + "/input");
    const int64_t rows = shape.at(0), width = shape.at(1),
                  groups = int64_t(file_.number(group, "ranks"));
    const Floats input = file_.floats(group + "/input", shape),
                 want = file_.floats(group + "/shuffled", shape);
    const std::vector<int32_t> order = file_.ints(group + "/permutation", {rows});
    std::vector<int32_t> back(order.size());
    for (size_t i = 0; i < order.size(); ++i) back[size_t(order[i])] = int32_t(i);
    models::ParameterList list;
    const auto bench = bench_of(list, rows);
    nn::Context ctx = bench->context(1, true);
    device::Arena::Scope scope(ctx.arena);
    const View x = bench->copy(input), shuffled = bench->make(x.count),
               normed = bench->make(x.count), y = bench->make(x.count),
               mean = bench->make(groups * width), rstd = bench->make(groups * width),
               sums = ctx.arena.temporary(groups * 2 * width, DType::f64);
    auto take = [&](View to, View from, const std::vector<int32_t>& index) {
      ctx.run(kernels::GatherRows{.y = to,
                                  .x = from,
                                  .index = bench->copy(index),
                                  .rows = rows,
                                  .width = width,
                                  .source_rows = rows});
    };
    take(shuffled, x, order);
    const Floats taken = bench->read(shuffled);
    report.compare("shuffled keys", group + "/shuffled", taken.data(), want.data(), x.count,
                   file_.tolerance(group + "/shuffled"));
    ctx.run(kernels::BatchNormSums{
        .sums = sums, .x = shuffled, .parts = groups, .rows = rows / groups, .columns = width});
    ctx.run(kernels::BatchNormStatistics{.mean = mean,
                                         .rstd = rstd,
                                         .sums = sums,
                                         .groups = groups,
                                         .columns = width,
                                         .count = rows / groups});
    ctx.run(kernels::BatchNormForward{.y = normed,
                                      .x = shuffled,
                                      .norm = {.mean = mean, .rstd = rstd},
                                      .groups = groups,
                                      .rows = rows / groups,
                                      .columns = width});
    take(y, normed, back);
    const std::string set = group + "/output";
    const Floats got = bench->read(y), recorded = file_.floats(set, shape);
    report.compare("shuffled keys", set, got.data(), recorded.data(), x.count,
                   file_.tolerance(set));
  }

  const CaseFile& file_;
  Settings settings_;
  comm::Mesh& mesh_;
  std::vector<std::unique_ptr<LossCase>> losses_;
  std::vector<std::string> class_losses_, shuffles_, assignments_;
};

bool holds_losses(const CaseFile& file) {
  for (const std::string& group : file.groups()) {
    if (file.has(group + "/inputs") && file.has(group + "/ranks1")) return true;
    if (holds_shuffle(file, group)) return true;
  }
  return false;
}

}  // namespace

SslKind ssl_losses_kind() {
  return {"losses", holds_losses,
          [](const CaseFile& file, const Settings& settings,
             comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
            return std::make_unique<LossesCase>(file, settings, mesh);
          }};
}

}  // namespace golden
