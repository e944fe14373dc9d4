// SPDX-License-Identifier: Apache-2.0
#include "run_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/narrow.hpp"
#include "host/device_choice.hpp"
#include "models/captions/cappa.hpp"
#include "train/recipe.hpp"

namespace golden {
namespace {

template <class T>
device::View part(const std::vector<T>& all, int64_t begin, int64_t count) {
  return device::view(all.data() + begin, count);
}

// Returns the examples of a batch with the padding that the ranks need to divide it.
int64_t with_padding(int64_t examples, const Settings& settings, const comm::Mesh& mesh) {
  const int64_t ranks = mesh.world->size();
  return base::round_up(
      examples, settings.determinism.mesh() ? std::lcm(ranks, settings.determinism.slices) : ranks);
}

}  // namespace

Runner::Runner(const CaseFile& file, const Settings& settings, comm::Mesh& mesh, Use use)
    : file_(file),
      settings_(settings),
      mesh_(mesh),
      use_(use),
      case_(translate(file)),
      recorded_(std::exchange(case_.batch, use == Use::predictions
                                               ? with_padding(case_.batch, settings, mesh)
                                               : case_.batch)),
      geometry_(step::derive_geometry(case_.batch,
                                      settings.micro_batch ? settings.micro_batch : case_.batch,
                                      mesh.shape, settings.determinism)) {
  if (case_.training && settings_.compute != host::Compute::f32)
    base::fail(base::Exit::config, "{}: a training case; --compute {} is for model cases",
               file.path(), name_of(settings_.compute));
  if (std::string problem = host::problem_on_cpus(settings_.compute);
      !problem.empty() && settings_.device == device::Kind::cpu)
    base::fail(base::Exit::config, "--compute {}", problem);
  read_batch();
  check_parameters();
}

// Checks names and shapes of the model's parameters, and options that name parameters, before any
// rank waits for another.
void Runner::check_parameters() const {
  auto model = models::make_model({"cappa", case_.model}, {});
  std::vector<std::string> names = file_.below("params_init");
  std::vector<shard::Parameter> parameters = model->parameters();
  for (const shard::Parameter& p : parameters) {
    std::string set = "params_init/" + p.path;
    if (Shape found = file_.shape(set); found != p.shape)
      file_.fail(set, fmt::format("has the shape {}, the model's is {}", text_of(found),
                                  text_of(p.shape)));
    std::string result = (case_.training ? "params_final/" : "grads/") + p.path;
    if (use_ == Use::whole_case && file_.shape(result) != p.shape)
      file_.fail(result, "has not the shape of its parameter");
    names.erase(std::remove(names.begin(), names.end(), p.path), names.end());
  }
  if (!names.empty()) file_.fail("params_init/" + names.front(), "the model has no such parameter");
  std::vector<optim::ParameterPolicy> policies;
  std::vector<optim::Schedule> schedules;
  case_.resolve(parameters, policies, schedules);
}

void Runner::read_batch() {
  const models::CappaOptions& m = *case_.model;
  auto shape = [&](std::initializer_list<int64_t> dims) {
    Shape s = case_.training ? Shape{case_.steps, recorded_} : Shape{recorded_};
    s.insert(s.end(), dims);
    return s;
  };
  Shape text = shape({m.length()});
  batch_.image = file_.floats("batch/image", shape({m.height(), m.width(), 3}));
  if (use_ == Use::whole_case || file_.has("batch/labels"))
    batch_.labels = file_.ints("batch/labels", text);
  if (file_.has("batch/label_masks")) batch_.masks = file_.floats("batch/label_masks", text);
  if (use_ == Use::predictions) {
    const auto texts = size_t(case_.batch * m.length());
    batch_.image.resize(size_t(case_.batch * m.height() * m.width() * 3));
    if (!batch_.labels.empty()) batch_.labels.resize(texts);
    if (!batch_.masks.empty()) batch_.masks.resize(texts);
    return;
  }
  if (file_.has("draws/decoder_ids")) batch_.ids = file_.ints("draws/decoder_ids", text);
  if (file_.has("draws/parallel")) batch_.parallel = file_.bytes("draws/parallel", shape({}));
  if (m.masked() && (batch_.ids.empty() || batch_.parallel.empty()))
    file_.fail("draws", "masked prediction without recorded decoder_ids and parallel");
  if (batch_.parallel.empty()) batch_.parallel.assign(size_t(case_.steps * case_.batch), 0);
}

models::HostBatch Runner::host_batch(int64_t step, int64_t first, int64_t n, bool masks) const {
  const models::CappaOptions& m = *case_.model;
  int64_t at = (step - 1) * case_.batch + first, pixels = m.height() * m.width() * 3,
          length = m.length();
  models::HostBatch batch;
  batch.features["image"] = part(batch_.image, at * pixels, n * pixels);
  if (!batch_.labels.empty())
    batch.features["labels"] = part(batch_.labels, at * length, n * length);
  if (masks && !batch_.masks.empty())
    batch.features["label_masks"] = part(batch_.masks, at * length, n * length);
  batch.examples = n;
  batch.first_position = at;
  return batch;
}

models::Cappa::Draws Runner::draws(const models::HostBatch& batch) const {
  const int64_t at = batch.first_position, n = batch.examples, length = case_.model->length();
  return {{batch_.parallel.begin() + at, batch_.parallel.begin() + at + n},
          {batch_.ids.begin() + at * length, batch_.ids.begin() + (at + n) * length},
          {}};
}

step::Engine::Source Runner::source(int64_t step, bool masks) const {
  return [this, step, masks](int64_t m) {
    return host_batch(step, geometry_.first_example(mesh_, m), geometry_.micro_batch, masks);
  };
}

step::Engine::Prepare Runner::preparation(step::Engine& engine, int64_t step) const {
  return [this, &engine, step](const models::HostBatch& batch, const models::Inputs& into) {
    if (has_draws())
      dynamic_cast<const models::Cappa&>(engine.model()).prepare(batch, draws(batch), into);
    else
      engine.train_pass().prepare(batch, engine.draws(step), into);
  };
}

step::EngineOptions Runner::engine_options() const {
  step::EngineOptions o;
  o.model = models::make_model({"cappa", case_.model}, memory());
  auto cappa = [](const models::Model& model) -> const models::Cappa& {
    return dynamic_cast<const models::Cappa&>(model);
  };
  o.passes = {
      [cappa](const models::Model& model) { return std::make_unique<LogitsPass>(cappa(model)); },
      [cappa](const models::Model& model) { return cappa(model).make_score_pass(); },
      [cappa](const models::Model& model) { return cappa(model).make_embed_pass(kTaps); }};
  using shard::Placement;
  o.sharding.parameters =
      settings_.strategy == "sharded" ? Placement::sharded : Placement::replicated;
  o.sharding.optimizer =
      settings_.strategy == "replicated" ? Placement::replicated : Placement::sharded;
  o.determinism = settings_.determinism;
  o.optimizer = case_.optimizer;
  // A model case takes one step to get gradients and losses. Without a learning rate the step
  // leaves the parameters unchanged.
  if (!case_.training) o.optimizer.kind = "sgd";
  o.global_batch = case_.batch;
  o.micro_batch = geometry_.micro_batch;
  train::PrecisionOptions precision;
  precision.compute = settings_.compute;
  o.threads = settings_.threads;
  o.operands = precision.type();
  o.tf32 = settings_.compute == host::Compute::tf32;
  o.resolve = [this](const auto& parameters, auto& policies, auto& schedules) {
    case_.resolve(parameters, policies, schedules);
  };
  return o;
}

// bf16 keeps 8 bits: each rounding is off by up to 1/512 of the value, and each path through the
// model rounds a handful of times. Over all model cases the worst deviation, as a part of a set's
// largest value, is 0.0083 for logits, 0.00017 for losses and 0.022 for gradients. Gradients that
// almost cancel (queries of text that is all mask tokens) keep the error of their terms. So each
// gradient's tolerance is at least a part of the largest gradient of all. tf32 and fp16 keep 11
// bits: an eighth of the tolerance.
double Runner::tolerance(const std::string& set) const {
  if (settings_.compute == host::Compute::f32) return file_.tolerance(set);
  const double part = settings_.compute == host::Compute::bf16 ? 1 : 0.125;
  auto largest_of = [&](const std::string& name) {
    double largest = 0;
    for (float v : file_.floats(name, file_.shape(name)))
      largest = std::max(largest, std::abs(double(v)));
    return largest;
  };
  if (!set.starts_with("grads/"))
    return largest_of(set) * (set.ends_with("logits") || set.ends_with("encoded") ? 0.02 : 0.0005) *
           part;
  double all = 0;
  for (const std::string& name : file_.below("grads"))
    all = std::max(all, largest_of("grads/" + name));
  return 0.04 * part * std::max(largest_of(set), 0.05 * all);
}

void Runner::load_parameters(step::Engine& engine) const {
  for (const shard::TensorSlice& slice : engine.state()) {
    if (!slice.name.starts_with("/params/")) continue;
    std::vector<float> values = file_.floats("params_init/" + slice.name.substr(8), slice.shape);
    for (const shard::TensorSlice::Part& p : slice.parts)
      device::upload(slice.view(p), values.data() + p.begin, engine.queue());
  }
  engine.publish();
}

void Runner::check_draws(step::Engine& engine, Report& report) const {
  if (!has_draws()) return;
  // Recorded inputs must follow our own rules: autoregressive ids are the labels moved by one, and
  // parallel ids are the labels with the share of mask tokens that the ratio gives.
  auto& model = dynamic_cast<const models::Cappa&>(engine.model());
  int64_t length = case_.model->length(),
          masked = int64_t(case_.model->masking_ratio * double(length));
  for (int64_t b = 0; b < case_.steps * case_.batch; ++b) {
    const int32_t *label = batch_.labels.data() + b * length, *ids = batch_.ids.data() + b * length;
    std::string where = fmt::format("example {}", b);
    if (!batch_.parallel[size_t(b)]) {
      models::Cappa::Draws own = model.draw(label, 1, b, false, {});
      report.compare("decoder ids", where, own.decoder_ids.data(), ids, length, 0);
      continue;
    }
    int64_t masks = 0;
    bool others = true;
    for (int64_t l = 0; l < length; ++l)
      (ids[l] == case_.model->vocab_size) ? ++masks : others &= ids[l] == label[l];
    report.require("decoder ids", where, others && masks == masked);
  }
}

void Runner::run(Report& report) {
  step::Engine engine(engine_options(), mesh_, settings_.device);
  load_parameters(engine);
  check_draws(engine, report);
  if (case_.training)
    run_training_case(engine, report);
  else
    run_model_case(engine, report);
}

}  // namespace golden
