// SPDX-License-Identifier: Apache-2.0
#include "loss_case.hpp"

#include <algorithm>

namespace golden {

using device::View;

LossCase::LossCase(const CaseFile& file, const std::string& group, const Settings& settings,
                   comm::Mesh& mesh)
    : file_(file), group_(group), config_(file.json(group)), settings_(settings), mesh_(mesh) {
  settings_.compute = host::Compute::f32;
  // The first of these inputs in the file gives the sizes.
  for (const char* name : {"emb", "query", "scores0", "student"}) {
    if (!file.has(input(name))) continue;
    const Shape shape = file.shape(input(name));
    if (shape.size() != 3 && shape.size() != 4)
      file.fail(input(name), "is neither [views, n, width] nor [steps, views, n, width]");
    stepped_ = shape.size() == 4;
    if (stepped_) steps_ = shape[0];
    examples_ = shape[shape.size() - 2];
    geometry_ =
        step::derive_geometry(examples_, settings.micro_batch ? settings.micro_batch : examples_,
                              mesh.shape, settings.determinism);
    return;
  }
  file.fail(group + "/inputs", "has no embeddings or scores");
}

LossTensor LossCase::read(const std::string& name, int64_t s) const {
  Shape shape = file_.shape(input(name));
  const std::vector<float> all = file_.floats(input(name), shape);
  const int64_t steps = shape.size() == 4 ? shape[0] : 1, each = int64_t(all.size()) / steps;
  const auto begin = all.begin() + (shape.size() == 4 ? s * each : 0);
  return {shape[shape.size() - 3], shape.back(), {begin, begin + each}};
}

// Returns the rows of a pass, [n, views, width], in the queue's memory.
View LossCase::rows(Workbench& bench, const LossTensor& all, int64_t first) const {
  Floats out;
  for (int64_t b = 0; b < geometry_.micro_batch; ++b)
    for (int64_t v = 0; v < all.views; ++v) {
      const auto row = all.values.begin() + (v * examples_ + first + b) * all.width;
      out.insert(out.end(), row, row + all.width);
    }
  return bench.copy(out);
}

// Puts the gradients of a pass, [n, views, width], into the place of its examples.
void LossCase::put_back(Workbench& bench, const View& gradient, int64_t first,
                        LossTensor& all) const {
  const Floats got = bench.read(gradient);
  for (int64_t b = 0; b < geometry_.micro_batch; ++b)
    for (int64_t v = 0; v < all.views; ++v)
      std::copy_n(got.begin() + (b * all.views + v) * all.width, all.width,
                  all.values.begin() + (v * examples_ + first + b) * all.width);
}

void LossCase::run(Report& report) {
  for (int64_t ranks = 1; ranks <= examples_; ++ranks)
    if (const std::string name = fmt::format("{}/ranks{}/", group_, ranks);
        file_.has(name.substr(0, name.size() - 1)))
      run_ranks(name, ranks, report);
}

void LossCase::run_ranks(const std::string& name, int64_t ranks, Report& report) {
  models::ParameterList list;
  const std::unique_ptr<models::EmbeddingLoss> loss = make(ranks, list);
  loss->check_batch(examples_);
  Workbench bench(list, geometry_, settings_, mesh_);
  set_states(bench);
  bench.publish();
  for (int64_t s = 0; s < steps_; ++s)
    run_step(bench, *loss, s, stepped_ ? fmt::format("{}step{}/", name, s) : name, ranks, report);
}

void LossCase::run_step(Workbench& bench, const models::EmbeddingLoss& loss, int64_t s,
                        const std::string& prefix, int64_t ranks, Report& report) {
  bench.begin_step();
  const LossStep in = step(s);
  models::StepEmbeddings embeddings{.examples = examples_,
                                    .views = in.outputs[0].views,
                                    .teacher_views = teacher_views(),
                                    .widths = {},
                                    .teacher_widths = {},
                                    .parts = {}};
  for (const LossTensor& r : in.outputs) embeddings.widths.push_back(r.width);
  for (const LossTensor& r : in.teacher) embeddings.teacher_widths.push_back(r.width);
  const int64_t n = geometry_.micro_batch;
  for (int64_t m = 0; m < geometry_.accumulation; ++m) {
    const int64_t first = geometry_.first_example(mesh_, m);
    auto& part = embeddings.parts.emplace_back();
    part.first = first;
    for (const LossTensor& r : in.outputs) {
      part.outputs.push_back(rows(bench, r, first));
      part.gradients.push_back(bench.make(n * r.views * r.width));
    }
    for (const LossTensor& r : in.teacher) part.teacher.push_back(rows(bench, r, first));
    part.loss = bench.make(n);
    for (size_t t = 0; t < loss.terms().size(); ++t) part.terms.push_back(bench.make(n));
    auto places = [&](const std::vector<int32_t>& all) {
      const int64_t each = int64_t(all.size()) / examples_;
      return bench.copy(
          std::vector<int32_t>(all.begin() + first * each, all.begin() + (first + n) * each));
    };
    if (!in.index.empty()) part.index = places(in.index);
    if (!in.negatives.empty()) part.negatives = places(in.negatives);
  }
  nn::Context ctx = bench.context(s + 1, true);
  ctx.pass = geometry_.accumulation - 1;
  loss.run(ctx, embeddings);

  double sum = 0;
  std::vector<LossTensor> gradients;
  for (const LossTensor& r : in.outputs)
    gradients.push_back({r.views, r.width, Floats(r.values.size(), 0.0f)});
  for (const auto& part : embeddings.parts) {
    for (float l : bench.read(part.loss)) sum += double(l);
    for (size_t o = 0; o < gradients.size(); ++o)
      put_back(bench, part.gradients[o], part.first, gradients[o]);
  }
  // Ranks have rows of their own; all others are 0.
  mesh_.world->all_reduce({&sum, device::DType::f64, 1}).wait();
  for (LossTensor& g : gradients)
    mesh_.world->all_reduce(device::view(g.values.data(), int64_t(g.values.size()))).wait();
  const std::string loss_set = prefix + "loss";
  report.compare("losses", loss_set, sum / double(examples_),
                 double(file_.floats(loss_set, file_.shape(loss_set)).at(0)),
                 file_.tolerance(loss_set));
  for (const auto& [name, got] : gradients_of(gradients)) {
    const std::string set = prefix + name;
    const Floats want = file_.floats(set, {got.views, examples_, got.width});
    report.compare("loss gradients", set, got.values.data(), want.data(), int64_t(want.size()),
                   file_.tolerance(set));
  }
  bench.finish_step();
  compare_states(bench, prefix, ranks, report);
}

void LossCase::compare_state(Workbench& bench, const std::string& state, const std::string& set,
                             const Shape& shape, Report& report) const {
  const Floats got = bench.state(state), want = file_.floats(set, shape);
  report.compare("loss states", set, got.data(), want.data(), int64_t(want.size()),
                 file_.tolerance(set));
}

}  // namespace golden
