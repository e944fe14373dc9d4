// SPDX-License-Identifier: Apache-2.0
// Training runs of the self-supervised family (tests/golden/ssl, e2e_*): the real engine with the
// real optimizer repeats them. Compared are the outputs of the first step, losses and rates of all
// steps, and parameters, running statistics, momentum, teacher and state of the loss.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "models/embeddings/embedding_model.hpp"
#include "ssl_case.hpp"
#include "ssl_recipe.hpp"
#include "train/recipe.hpp"

namespace golden {
namespace {

using device::View;
using Tensors = std::map<std::string, std::vector<float>>;

// 16-bit activations: each value is off by up to 1/512 of itself, 2^15 times more than in f32.
// Training amplifies roundings in networks as narrow as the recorded ones, in the published code as
// here. Its recorded runs, repeated under PyTorch's bf16 autocast, deviate from themselves by 0.35
// of the largest loss. A set's own tolerance is 8 times the recorded effect of f32 roundings. So
// outputs and losses get 2 x 2^15 times that tolerance, but at most kMostOfLargest of their largest
// value.
constexpr double kNarrowRoundings = 65536, kMostOfLargest = 0.4;
// Tensors are compared by the direction in which they moved from their initial values: 1 - cosine,
// mean over tensors. A run in an unrelated direction has 1. The repeated runs above have 0.06 in
// the first step, 0.55 after later ones, 0.19 for running statistics, and 0.43 for teachers and
// queues.
constexpr double kFirstMove = 0.3, kLaterMoves = 0.75, kStatisticsMove = 0.25, kStateMove = 0.5;

constexpr const char* kStatistics = "running statistics";

// Cosines between the recorded movement of tensors and the movement in a run.
class Moves {
 public:
  void add(const std::vector<float>& got, const std::vector<float>& want,
           const std::vector<float>& start) {
    double product = 0, ours = 0, theirs = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double a = double(got[i]) - double(start[i]), b = double(want[i]) - double(start[i]);
      product += a * b;
      ours += a * a;
      theirs += b * b;
    }
    ++tensors_;
    const bool rest = ours == 0 && theirs == 0;  // a frozen tensor
    sum_ += rest ? 0 : 1 - product / std::sqrt(ours * theirs);
  }
  double mean() const { return sum_ / double(tensors_); }

 private:
  int64_t tensors_ = 0;
  double sum_ = 0;
};

class TrainingCase : public SslCase {
 public:
  TrainingCase(const CaseFile& file, const Settings& settings, comm::Mesh& mesh)
      : file_(file), settings_(settings), mesh_(mesh), recipe_(file) {
    geometry_ = step::derive_geometry(recipe_.batch,
                                      settings.micro_batch ? settings.micro_batch : recipe_.batch,
                                      mesh.shape, settings.determinism);
    for (size_t v = 0; v < recipe_.sizes.size(); ++v)
      views_.push_back(
          file.floats(fmt::format("batch/view{}", v),
                      {recipe_.steps, recipe_.batch, 3, recipe_.sizes[v], recipe_.sizes[v]}));
  }

  void run(Report& report) override {
    std::vector<float> outputs;
    step::Engine engine(options([&](nn::Context& ctx, const models::StepEmbeddings& step) {
                          if (ctx.step == 1) outputs = gathered(ctx, step);
                        }),
                        mesh_, settings_.device);
    engine.initialise();
    load(engine, "params_init", report);
    load(engine, "loss_state_init", report);
    engine.publish();
    std::map<int64_t, Tensors> states;
    for (int64_t s = 1; s <= recipe_.steps; ++s) {
      const step::StepReport report_of_step = engine.step(s, [&](int64_t m) {
        auto batch = std::make_shared<Batch>(
            examples(s, geometry_.first_example(mesh_, m), geometry_.micro_batch));
        models::HostBatch host = batch->host;
        host.owner = batch;
        return host;
      });
      report.require("loss", fmt::format("finite at step {}", s), report_of_step.finite);
      compare_step(s, report_of_step, report);
      if (s + 1 >= recipe_.steps || recipe_.snapshots.contains(s)) states[s] = whole(engine);
    }
    compare_outputs(outputs, report);
    for (const int64_t s : recipe_.snapshots) compare_snapshot(s, states.at(s), report);
    compare_final(states, report);
  }

 private:
  bool narrow() const { return settings_.compute != host::Compute::f32; }
  static bool counts(const std::string& set) {
    return set.ends_with("num_batches_tracked") || set.ends_with("queue_ptr");
  }
  double tolerance(const std::string& set) const {
    const double exact = file_.tolerance(set);
    if (!narrow()) return exact;
    double largest = 0;
    for (const float x : file_.floats(set, file_.shape(set)))
      largest = std::max(largest, std::abs(double(x)));
    return std::max(exact, std::min(exact * kNarrowRoundings, kMostOfLargest * largest));
  }

  step::EngineOptions options(models::EmbeddingModel::Watch watch) const {
    step::EngineOptions o;
    const auto made =
        recipe_.fill(o, {base::value_of(models::kRecomputeNames, settings_.recompute)});
    dynamic_cast<models::EmbeddingModel&>(*made).watch(std::move(watch));
    using shard::Placement;
    o.sharding.parameters =
        settings_.strategy == "sharded" ? Placement::sharded : Placement::replicated;
    o.sharding.optimizer =
        settings_.strategy == "replicated" ? Placement::replicated : Placement::sharded;
    o.determinism = settings_.determinism;
    o.micro_batch = geometry_.micro_batch;
    train::PrecisionOptions precision;
    precision.compute = settings_.compute;
    o.threads = settings_.threads;
    o.operands = precision.type();
    return o;
  }

  // The examples [first, first + n) of a step: views of one size together, channels last.
  struct Batch {
    std::vector<std::vector<float>> images;  // by group
    models::HostBatch host;
  };
  Batch examples(int64_t step, int64_t first, int64_t n) const {
    Batch batch;
    batch.images.resize(recipe_.groups.size());
    for (int64_t i = first; i < first + n; ++i)
      for (size_t g = 0, v = 0; g < recipe_.groups.size(); ++g)
        for (int64_t k = 0; k < recipe_.groups[g]; ++k, ++v) {
          const int64_t pixels = recipe_.sizes[v] * recipe_.sizes[v];
          const float* image = views_[v].data() + ((step - 1) * recipe_.batch + i) * 3 * pixels;
          for (int64_t p = 0; p < pixels; ++p)
            for (int64_t c = 0; c < 3; ++c) batch.images[g].push_back(image[c * pixels + p]);
        }
    for (size_t g = 0; g < batch.images.size(); ++g)
      batch.host.features[models::ViewOptions::field(g)] =
          device::view(batch.images[g].data(), int64_t(batch.images[g].size()));
    batch.host.examples = n;
    batch.host.first_position = (step - 1) * recipe_.batch + first;
    return batch;
  }

  // Fills the parts of tensors that this rank holds from the sets of a group of the file.
  void load(step::Engine& engine, const std::string& group, Report& report) const {
    std::map<std::string, std::string> sets;  // by path
    for (const std::string& name : file_.below(group))
      if (const std::string path = recipe_.path_of(name); !path.empty())
        sets["/params/" + path] = group + "/" + name;
    for (const shard::TensorSlice& slice : engine.state()) {
      const auto found = sets.find(slice.name);
      if (found == sets.end()) continue;
      const std::vector<float> values = recipe_.values_of(slice.name, found->second, slice.shape);
      for (const shard::TensorSlice::Part& part : slice.parts)
        device::write_on_host(slice.view(part), engine.queue(), [&](View v) {
          std::copy_n(values.begin() + part.begin, v.count, v.f32());
        });
      sets.erase(found);
    }
    for (const auto& [path, set] : sets)
      report.require("parameters", set, false, "the model has no " + path);
  }

  // Returns all tensors whole, on every rank.
  Tensors whole(step::Engine& engine) const {
    Tensors out;
    for (const shard::TensorSlice& slice : engine.state()) {
      if (slice.type != device::DType::f32) continue;
      int64_t count = 1;
      for (const int64_t d : slice.shape) count *= d;
      std::vector<float>& to = out[slice.name];
      to.assign(size_t(count), 0);
      if (slice.writes)
        for (const shard::TensorSlice::Part& part : slice.parts)
          device::read_on_host(slice.view(part), engine.queue(), [&](View v) {
            std::copy_n(v.f32(), v.count, to.begin() + part.begin);
          });
      mesh_.world->all_reduce(device::view(to.data(), count)).wait();
    }
    return out;
  }

  // Returns the last output of the network for all examples, in the file's order: by view.
  std::vector<float> gathered(nn::Context& ctx, const models::StepEmbeddings& step) const {
    const int64_t width = step.widths.back(), views = step.views;
    std::vector<float> all(size_t(recipe_.batch * views * width));
    for (const models::StepEmbeddings::Part& part : step.parts)
      device::read_on_host(part.outputs.back(), ctx.queue, [&](View v) {
        for (int64_t i = 0; i < ctx.batch; ++i)
          for (int64_t k = 0; k < views; ++k)
            std::copy_n(v.f32() + (i * views + k) * width, width,
                        all.begin() + (k * recipe_.batch + part.first + i) * width);
      });
    mesh_.world->all_reduce(device::view(all.data(), int64_t(all.size()))).wait();
    return all;
  }

  void compare_outputs(const std::vector<float>& outputs, Report& report) const {
    const Shape shape = file_.shape("step1_output");
    const std::vector<float> want = file_.floats("step1_output", shape);
    report.require("first outputs", "their number", outputs.size() == want.size());
    if (outputs.size() != want.size()) return;
    report.compare("first outputs", "step1_output", outputs.data(), want.data(),
                   int64_t(want.size()), tolerance("step1_output"));
  }

  void compare_step(int64_t s, const step::StepReport& step, Report& report) const {
    auto compare = [&](const char* set, double got, double tolerance) {
      const std::vector<float> want = file_.floats(set, {recipe_.steps});
      report.compare(set, fmt::format("step {}", s), got, double(want[size_t(s - 1)]), tolerance);
    };
    compare("loss", step.loss(), tolerance("loss"));
    compare("lr", double(step.update.schedules.at(0)) * recipe_.learning_rate,
            file_.tolerance("lr"));
    if (file_.has("teacher_momentum"))
      compare("teacher_momentum", recipe_.teacher_keep(s), file_.tolerance("teacher_momentum"));
  }

  void compare_set(const std::string& quantity, const std::string& set, const std::string& name,
                   const Tensors& state, Report& report) {
    if (file_.rounding_noise_only(set)) return report.skip(set);
    auto found = state.find(name);
    // A teacher reads frozen parameters of the network.
    if (found == state.end() && name.starts_with("/teacher/"))
      found = state.find("/params/" + name.substr(9));
    report.require(quantity, set, found != state.end(), "there is no tensor " + name);
    if (found == state.end()) return;
    const Shape shape = {int64_t(found->second.size())};
    const std::vector<float> want = recipe_.values_of(name, set, shape);
    if (narrow() && !counts(set))
      moves_[quantity].add(found->second, want, recipe_.values_of(name, start_of(set), shape));
    else
      report.compare(quantity, set, found->second.data(), want.data(), int64_t(want.size()),
                     file_.tolerance(set));
  }

  // Returns the set with the initial values of a set of a snapshot or of the loss.
  std::string start_of(const std::string& set) const {
    std::string name = set.substr(set.find('/', set.starts_with("snap/") ? 5 : 0) + 1);
    if (file_.has("loss_state_init/" + name)) return "loss_state_init/" + name;
    for (const std::string prefix : {"moco_encoder.", "momentum_teacher."})
      if (name.starts_with(prefix)) name = name.substr(prefix.size());
    return "params_init/" + name;
  }
  // Compares the directions of 16-bit runs that were collected since the last call.
  void compare_moves(const std::string& when, double most, Report& report) {
    for (const auto& [quantity, moves] : moves_)
      report.compare(quantity + ", 1 - cosine", when, moves.mean(), 0,
                     quantity == kStatistics ? kStatisticsMove : most);
    moves_.clear();
  }

  void compare_snapshot(int64_t step, const Tensors& state, Report& report) {
    const std::string group = fmt::format("snap/step{}", step);
    for (const std::string& name : file_.below(group))
      compare_set(name.find("running_") != std::string::npos ? kStatistics : "parameters",
                  group + "/" + name, "/params/" + recipe_.path_of(name), state, report);
    compare_moves(group, step == 1 ? kFirstMove : kLaterMoves, report);
  }

  void compare_final(const std::map<int64_t, Tensors>& states, Report& report) {
    const Tensors& last = states.at(recipe_.steps);
    // The last gradients dominate the momentum, so 16 bits do not keep its direction.
    for (const std::string& name : narrow() ? std::vector<std::string>() : file_.below("momentum"))
      compare_set("momentum", "momentum/" + name, recipe_.momentum_of(name), last, report);
    for (const std::string& name : file_.below("loss_state")) {
      const StateOfLoss place = recipe_.state_of_loss(name);
      // The scores of the queue are recomputed from its embeddings. Only the first are kept.
      if (place.name.empty() || name.find("local_queue") != std::string::npos) continue;
      compare_set(place.name.starts_with("/teacher/") ? "teacher" : "state of the loss",
                  "loss_state/" + name, place.name,
                  place.before_last_update ? states.at(recipe_.steps - 1) : last, report);
    }
    compare_moves("loss_state", kStateMove, report);
  }

  const CaseFile& file_;
  Settings settings_;
  comm::Mesh& mesh_;
  SslRecipe recipe_;
  step::Geometry geometry_;
  std::vector<std::vector<float>> views_;  // [steps, batch, 3, size, size]
  std::map<std::string, Moves> moves_;     // by quantity
};

}  // namespace

SslKind ssl_training_kind() {
  return {.name = "self-supervised training",
          .fits =
              [](const CaseFile& file) {
                return file.has("batch/view0") && file.has("loss") && file.has("lr") &&
                       file.has("step1_output");
              },
          .make = [](const CaseFile& file, const Settings& settings,
                     comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
            return std::make_unique<TrainingCase>(file, settings, mesh);
          }};
}

}  // namespace golden
