// SPDX-License-Identifier: Apache-2.0
// Recorded ResNets (tests/golden/ssl, resnet_*.h5): taps, features, loss, gradients and running
// values of a training step, running values after two more forward passes, and the same taps with
// these.
#include <cmath>

#include "host/device_choice.hpp"
#include "keys.hpp"
#include "models/trunks/convolutional/resnet.hpp"
#include "models/trunks/embed_pass.hpp"
#include "ssl_case.hpp"
#include "train/recipe.hpp"

namespace golden {
namespace {

using device::DType;
using device::View;
using Floats = std::vector<float>;

// Returns [images, height, width, channels] of values [images, channels, height, width].
Floats channels_last(const Floats& x, int64_t images, int64_t channels, int64_t pixels) {
  Floats y(x.size());
  for (int64_t i = 0; i < images; ++i)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t p = 0; p < pixels; ++p)
        y[size_t((i * pixels + p) * channels + c)] = x[size_t((i * channels + c) * pixels + p)];
  return y;
}

models::ResnetTrunkOptions keys_of(const models::ResnetConfig& config) {
  models::ResnetTrunkOptions keys;
  keys.config = config;
  return keys;
}

// A trunk, and the recorded loss: the sum of features times a given cotangent, by example.
class TrunkModel : public models::Model {
 public:
  TrunkModel(const models::ResnetConfig& config, models::Recompute recompute, int64_t height,
             int64_t width)
      : encoder(keys_of(config), height, width, recompute, list_),
        group{.height = height, .width = width} {}
  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  std::map<std::string, models::FeatureSpec> features() const override { return {}; }
  void take_bytes(const kernels::PixelRange& range) override { encoder.trunk().take_bytes(range); }
  int64_t sum_columns() const override { return 1; }
  std::vector<models::Measure> measures() const override { return {{"loss", "1", "", 0}}; }
  std::unique_ptr<models::TrainPass> make_train_pass() const override;
  int64_t forward_flops() const override { return encoder.forward_flops({&group, 1}); }
  int64_t input_flops() const override { return trunk().input_flops({&group, 1}); }
  std::string changing_arguments() const override { return trunk().changing_arguments(); }
  std::vector<models::InputSpec> inputs() const {
    return {{"image", DType::f32, group.height * group.width * 3, "image"},
            {"cotangent", DType::f32, encoder.width(), "cotangent"}};
  }
  const models::Trunk& trunk() const { return encoder.trunk(); }

 private:
  models::ParameterList list_;

 public:
  models::PooledTrunk encoder;
  models::ImageGroup group;
};

class TrunkPass : public models::TrainPass {
 public:
  explicit TrunkPass(const TrunkModel& model) : model_(model), state_(model.encoder.make_pass()) {
    for (const models::Tap& tap : model.trunk().taps(model.group.height, model.group.width))
      state_.trunk->taps.push_back(tap.name);
    state_.trunk->read_tap = [this](const models::Trunk::TapValues& t) {
      keep(t.values, taps[t.tap]);
    };
  }
  std::string name() const override { return "train"; }
  std::vector<models::InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const models::HostBatch&, base::Stream, const models::Inputs&) const override {}

  void run(nn::Context& ctx, const models::Inputs& inputs, int64_t global_batch,
           View sums) override {
    queue_ = &ctx.queue;
    models::ImageGroup group = model_.group;
    group.images = inputs.at("image").device;
    device::Arena::Scope scope(ctx.arena);
    model_.encoder.place(ctx, {&group, 1}, state_);
    auto& resnet = dynamic_cast<models::ResnetTrunk::ConvPass&>(*state_.trunk);
    resnet.image_gradients = {ctx.make_activation(false, group.images.count)};
    const View d = ctx.arena.temporary(ctx.batch * model_.encoder.width());
    const View pooled = model_.encoder.forward(ctx, {&group, 1}, -1, state_);
    const View cotangent = inputs.at("cotangent").host;
    keep(pooled, features);
    write_on_host(d, ctx.queue, [&](View v) {
      for (int64_t i = 0; i < v.count; ++i)
        v.f32()[i] = cotangent.f32()[i] / float(global_batch) * scale(ctx);
    });
    write_on_host(sums, ctx.queue, [&](View v) {
      const int64_t of_slice = d.count / ctx.slices;
      for (int64_t j = 0; j < ctx.slices; ++j) {
        v.f64()[j] = 0;
        for (int64_t i = j * of_slice; i < (j + 1) * of_slice; ++i)
          v.f64()[j] += double(features[size_t(i)]) * double(cotangent.f32()[i]);
      }
    });
    model_.encoder.backward(ctx, d, state_);
    keep(resnet.image_gradients[0], image_gradient);
    for (float& v : image_gradient) v /= scale(ctx);
  }

  // Results of the last run on this rank.
  std::map<std::string, Floats> taps;
  Floats features, image_gradient;

 private:
  float scale(nn::Context& ctx) const {
    float scale = 1;
    if (!ctx.loss_scale.none()) device::download(&scale, ctx.loss_scale, ctx.queue);
    return scale;
  }
  void keep(View values, Floats& into) {
    if (queue_->kind() == device::Kind::plan) return;
    into.resize(size_t(values.count));
    device::Ledger ledger;
    device::Buffer wide(queue_->kind(), ledger, "values", 4 * values.count);
    View v = values;
    if (values.type != DType::f32) {
      v = wide.view(DType::f32).slice(0, values.count);
      kernels::run(kernels::Cast{.y = v, .x = values}, *queue_);
    }
    device::download(into.data(), v, *queue_);
  }

  const TrunkModel& model_;
  models::PooledTrunk::Pass state_;
  device::Queue* queue_ = nullptr;
};

std::unique_ptr<models::TrainPass> TrunkModel::make_train_pass() const {
  return std::make_unique<TrunkPass>(*this);
}

class TrunkCase : public SslCase {
 public:
  TrunkCase(const CaseFile& file, const Settings& settings, comm::Mesh& mesh)
      : file_(file), settings_(settings), mesh_(mesh) {
    if (std::string problem = host::problem_on_cpus(settings.compute);
        !problem.empty() && settings.device == device::Kind::cpu)
      base::fail(base::Exit::config, "--compute {}", problem);
    read_config();
    const Shape shape = file.shape("batch/image");  // [steps, batch, 3, height, width]
    if (shape.size() != 5 || shape[2] != 3) file.fail("batch/image", "is not [steps, n, 3, h, w]");
    steps_ = shape[0];
    batch_ = shape[1];
    height_ = shape[3];
    width_ = shape[4];
    images_ = channels_last(file.floats("batch/image", shape), steps_ * batch_, 3, pixels());
    geometry_ = step::derive_geometry(batch_, settings.micro_batch ? settings.micro_batch : batch_,
                                      mesh.shape, settings.determinism);
    const TrunkModel model = make_model();
    features_ = model.encoder.width();
    cotangent_ = file.floats("batch/cotangent", {batch_, features_});
    check_parameters(model);
  }

  void run(Report& report) override {
    step::Engine engine(engine_options(), mesh_, settings_.device);
    load(engine);
    const step::StepReport first = engine.step(1, source(0));
    report.require("loss", "finite", first.finite);
    const Floats loss = file_.floats("train/loss", {});
    report.compare("loss", "train/loss", first.loss(), double(loss[0]), tolerance("train/loss"));
    compare_training(dynamic_cast<const TrunkPass&>(engine.train_pass()), report);
    compare_gradients(engine, report);
    compare_running(engine, "stats_after1/", report);
    for (int64_t step = 2; step <= steps_; ++step) engine.step(step, source(step - 1));
    compare_running(engine, fmt::format("stats_after{}/", steps_), report);
    compare_evaluation(engine, report);
  }

 private:
  int64_t pixels() const { return height_ * width_; }
  std::string path_of(const std::string& set) const { return "trunk/" + set; }

  void read_config() {
    Keys keys(file_, file_.config(), "config");
    const int64_t depth = keys.integer("depth", 50);
    const auto blocks = models::resnet_blocks(depth);
    if (!blocks) keys.wrong("depth", "no depth of a ResNet");
    config_.blocks = *blocks;
    config_.bottleneck = models::has_bottlenecks(depth);
    const std::vector<double> layers = keys.numbers("layers");
    if (!layers.empty() && layers.size() != 4) keys.wrong("layers", "no list of four stages");
    for (size_t i = 0; i < layers.size(); ++i) config_.blocks[i] = int64_t(layers[i]);
    config_.width = keys.integer("width", 64);
    config_.groups = keys.integer("groups", 1);
    config_.width_per_group = keys.integer("wpg", 64);
    config_.layer4_stride = keys.integer("l4", 2);
    config_.eps = float(keys.number("bn_eps", 1e-5));
    config_.momentum = float(keys.number("bn_momentum", 0.1));
    for (const char* known : {"image", "batch", "loss"}) keys.find(known);
    keys.done();
  }

  TrunkModel make_model() const {
    return {config_, base::value_of(models::kRecomputeNames, settings_.recompute), height_, width_};
  }

  // Checks names and shapes before any rank waits for another.
  void check_parameters(const TrunkModel& model) const {
    std::vector<std::string> names = file_.below("params");
    for (const std::string& name : file_.below("buffers_init")) names.push_back(name);
    for (const shard::Parameter& p : model.parameters()) {
      const std::string name = p.path.substr(p.path.find('/') + 1), set = set_of(p.path);
      if (const Shape found = file_.shape(set); found != p.shape)
        file_.fail(set, fmt::format("has the shape {}, the model's is {}", text_of(found),
                                    text_of(p.shape)));
      names.erase(std::remove(names.begin(), names.end(), name), names.end());
    }
    if (!names.empty()) file_.fail(names.front(), "the model has no such parameter");
  }
  // Returns the set of initial values of a parameter.
  std::string set_of(const std::string& path) const {
    const std::string name = path.substr(path.find('/') + 1);
    return (file_.has("params/" + name) ? "params/" : "buffers_init/") + name;
  }
  Floats values_of(const std::string& set) const {
    const Shape shape = file_.shape(set);
    if (!set.ends_with("num_batches_tracked")) return file_.floats(set, shape);
    const std::vector<int32_t> counts = file_.ints(set, shape);
    return {counts.begin(), counts.end()};
  }

  step::EngineOptions engine_options() const {
    step::EngineOptions o;
    o.model = std::make_shared<TrunkModel>(make_model());
    o.passes = {[](const models::Model& model) -> std::unique_ptr<models::ForwardPass> {
      const auto& m = dynamic_cast<const TrunkModel&>(model);
      std::vector<std::string> names;
      for (const models::Tap& tap : m.trunk().taps(m.group.height, m.group.width))
        names.push_back(tap.name);
      return models::make_trunk_embed_pass(m.encoder, m.inputs().front(), m.group.height,
                                           m.group.width, names);
    }};
    using shard::Placement;
    o.sharding.parameters =
        settings_.strategy == "sharded" ? Placement::sharded : Placement::replicated;
    o.sharding.optimizer =
        settings_.strategy == "replicated" ? Placement::replicated : Placement::sharded;
    o.determinism = settings_.determinism;
    // Steps give gradients and running values. Without a learning rate they do not change
    // parameters.
    o.optimizer.kind = "sgd";
    o.global_batch = batch_;
    o.micro_batch = geometry_.micro_batch;
    train::PrecisionOptions precision;
    precision.compute = settings_.compute;
    o.threads = settings_.threads;
    o.operands = precision.type();
    o.tf32 = settings_.compute == host::Compute::tf32;
    o.resolve = [](const auto& parameters, auto& policies, auto& schedules) {
      policies.assign(parameters.size(), {});
      for (size_t i = 0; i < policies.size(); ++i) policies[i].frozen = !parameters[i].trained();
      schedules.assign(1, {});
    };
    return o;
  }

  void load(step::Engine& engine) const {
    for (const shard::TensorSlice& slice : engine.state()) {
      if (!slice.name.starts_with("/params/")) continue;
      const Floats values = values_of(set_of(slice.name.substr(8)));
      for (const shard::TensorSlice::Part& p : slice.parts)
        device::upload(slice.view(p), values.data() + p.begin, engine.queue());
    }
    engine.publish();
  }

  // Returns the images of a step.
  step::Engine::Source source(int64_t step) const {
    return [this, step](int64_t m) {
      const int64_t first = geometry_.first_example(mesh_, m), n = geometry_.micro_batch;
      const float* images = images_.data() + (step * batch_ + first) * pixels() * 3;
      const float* cotangent = cotangent_.data() + first * features_;
      return models::HostBatch{.features = {{"image", device::view(images, n * pixels() * 3)},
                                            {"cotangent", device::view(cotangent, n * features_)}},
                               .examples = n,
                               .first_position = first};
    };
  }

  bool exact() const { return settings_.compute == host::Compute::f32; }
  std::string gradient_set(const shard::Parameter& p) const {
    return "train/grads/" + p.path.substr(p.path.find('/') + 1);
  }

  // bf16 keeps 8 bits, and every convolution and norm rounds. Batch norm over the 12 values of a
  // channel of the last stage enlarges these errors in training, and ReLUs near 0 change sides, so
  // the gradient is compared by its direction. tf32 and fp16 keep 11 bits: an eighth.
  static constexpr double kTraining = 0.15, kEvaluation = 0.05, kGradientAngle = 0.3;
  double precision_part() const { return settings_.compute == host::Compute::bf16 ? 1 : 0.125; }
  double tolerance(const std::string& set) const {
    if (exact()) return file_.tolerance(set);
    return precision_part() * (set == "train/loss" ? size_of_loss() : largest_of(set)) *
           (set.starts_with("train") ? kTraining : kEvaluation);
  }
  // The loss is a sum of features with random signs, which may cancel by chance. Returns its size
  // if each feature were as large as the largest.
  double size_of_loss() const {
    double squares = 0;
    for (const float c : cotangent_) squares += double(c) * double(c);
    return largest_of("train/flatten") * std::sqrt(squares) / double(batch_);
  }
  double largest_of(const std::string& set) const {
    double largest = 0;
    for (float v : values_of(set)) largest = std::max(largest, std::abs(double(v)));
    return largest;
  }

  // Compares values of this rank's examples [first, first + n) with a set, which may have the first
  // examples only.
  void compare_examples(const std::string& quantity, const std::string& set, const Floats& got,
                        int64_t first, Report& report) const {
    const Shape shape = file_.shape(set);
    Floats want = file_.floats(set, shape);
    const int64_t recorded = shape[0], each = int64_t(want.size()) / recorded;
    if (shape.size() == 4) want = channels_last(want, recorded, shape[1], shape[2] * shape[3]);
    const int64_t n = std::min(geometry_.micro_batch, recorded - first);
    if (n <= 0) return;
    report.compare(quantity, set, got.data(), want.data() + first * each, n * each, tolerance(set));
  }

  void compare_training(const TrunkPass& pass, Report& report) const {
    const int64_t first = geometry_.first_example(mesh_, geometry_.accumulation - 1);
    for (const auto& [tap, values] : pass.taps)
      compare_examples("taps", "train/taps/" + tap, values, first, report);
    compare_examples("features", "train/flatten", pass.features, first, report);
    if (exact())
      compare_examples("image gradient", "train/grad_input", pass.image_gradient, first, report);
  }

  void compare_gradients(step::Engine& engine, Report& report) const {
    const shard::Layout& layout = engine.layout();
    std::vector<double> products(3 * layout.parameters().size());
    for (int u = 0; u < int(layout.units().size()); ++u) {
      if (!layout.units()[size_t(u)].trained()) continue;
      const View mine = engine.owned_gradient(u);
      for (const shard::Segment& s :
           layout.segments(u, layout.owned_begin(u, mesh_.fsdp_index), layout.owned_count(u))) {
        const shard::Parameter& p = layout.parameters()[size_t(s.parameter)];
        const std::string set = gradient_set(p);
        const Floats want = file_.floats(set, p.shape);
        if (file_.rounding_noise_only(set)) {
          report.skip(set);
          continue;
        }
        device::read_on_host(mine.slice(s.offset, s.count()), engine.queue(), [&](View got) {
          if (exact())
            report.compare("gradients", p.path, got.f32(), want.data() + s.begin, s.count(),
                           tolerance(set));
          double* of = products.data() + 3 * s.parameter;
          for (int64_t i = 0; i < s.count(); ++i) {
            const double a = double(got.f32()[i]), b = double(want[size_t(s.begin + i)]);
            of[0] += a * b;
            of[1] += a * a;
            of[2] += b * b;
          }
        });
      }
    }
    if (!exact()) compare_directions(products, report);
  }

  // Compares the direction of the gradient, given products and squares of its parts on this rank.
  void compare_directions(std::vector<double>& products, Report& report) const {
    mesh_.fsdp->all_reduce({products.data(), DType::f64, int64_t(products.size())}).wait();
    double all[3] = {};
    for (size_t i = 0; i < products.size(); ++i) all[i % 3] += products[i];
    report.compare("gradients, 1 - cosine", "all", 1 - all[0] / std::sqrt(all[1] * all[2]), 0,
                   kGradientAngle * precision_part());
  }

  void compare_running(step::Engine& engine, const std::string& group, Report& report) const {
    for (const shard::TensorSlice& slice : engine.state()) {
      if (!slice.name.starts_with("/params/")) continue;
      const std::string set = group + slice.name.substr(slice.name.find('/', 8) + 1);
      if (!file_.has(set)) continue;  // a parameter
      const Floats want = values_of(set);
      for (const shard::TensorSlice::Part& p : slice.parts)
        device::read_on_host(slice.view(p), engine.queue(), [&](View got) {
          report.compare("running values", set, got.f32(), want.data() + p.begin, p.end - p.begin,
                         tolerance(set));
        });
    }
  }

  void compare_evaluation(step::Engine& engine, Report& report) const {
    const auto& model = dynamic_cast<const TrunkModel&>(engine.model());
    std::vector<std::string> names;
    for (const models::Tap& tap : model.trunk().taps(height_, width_)) names.push_back(tap.name);
    constexpr step::PassId kPass{0};
    auto& pass = engine.pass<models::EmbedPass>(kPass);
    const int64_t n = geometry_.micro_batch;
    for (int64_t m = 0; m < geometry_.accumulation; ++m) {
      const int64_t first = geometry_.first_example(mesh_, m);
      std::vector<Floats> got;
      std::vector<float*> features;
      for (const models::Tap& tap : pass.taps())
        features.push_back(got.emplace_back(size_t(n * tap.count())).data());
      engine.forward(kPass, source(0)(m), [&](nn::Context& ctx, const models::Inputs& inputs) {
        pass.run(ctx, inputs, features);
      });
      for (size_t t = 0; t < got.size(); ++t) {
        compare_examples("taps, evaluation", "eval/taps/" + names[t], got[t], first, report);
        if (names[t] == model.encoder.feature_tap())
          compare_examples("features, evaluation", "eval/flatten", got[t], first, report);
      }
    }
  }

  const CaseFile& file_;
  Settings settings_;
  comm::Mesh& mesh_;
  models::ResnetConfig config_;
  step::Geometry geometry_;
  int64_t steps_ = 0, batch_ = 0, height_ = 0, width_ = 0, features_ = 0;
  Floats images_, cotangent_;
};

}  // namespace

SslKind ssl_trunk_kind() {
  return {"trunk",
          [](const CaseFile& file) {
            return file.has_config() && file.has("train/taps") && file.has("batch/cotangent");
          },
          [](const CaseFile& file, const Settings& settings,
             comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
            return std::make_unique<TrunkCase>(file, settings, mesh);
          }};
}

}  // namespace golden
