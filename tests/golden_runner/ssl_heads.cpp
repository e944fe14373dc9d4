// SPDX-License-Identifier: Apache-2.0
// Recorded heads (heads.h5): outputs in training and in evaluation, running values and all
// gradients.
#include <cstring>

#include "keys.hpp"
#include "models/heads/head_kinds.hpp"
#include "ssl_case.hpp"
#include "workbench.hpp"

namespace golden {
namespace {

using device::View;
using Floats = std::vector<float>;

// One head of the file, with its options and its input.
class HeadCase {
 public:
  HeadCase(const CaseFile& file, const std::string& group, const Settings& settings,
           comm::Mesh& mesh)
      : file_(file), group_(group), settings_(settings), mesh_(mesh) {
    read_input();
    const nlohmann::json config = file.json(group);
    Keys keys(file, config, group);
    const std::string kind = keys.text("head", "");
    const nlohmann::json* args = keys.find("args");
    keys.find("loss");
    keys.done();
    if (!args) keys.wrong("args", "missing");
    Keys options(file, *args, group + ": args");
    read_options(kind, options);
    options.done();
    const int64_t rows = batch_ / mesh.shape.ranks();
    if (batch_ % mesh.shape.ranks())
      base::fail(base::Exit::mesh, "{}: {} rows cannot be cut into {} equal parts", group, batch_,
                 mesh.shape.ranks());
    geometry_ = step::derive_geometry(batch_, rows, mesh.shape, settings.determinism);
    if (geometry_.accumulation > 1)
      base::fail(base::Exit::mesh, "{}: {} slices do not fit {} rows", group, geometry_.slices,
                 batch_);
    if (whole()) geometry_.micro_batch = batch_;
    head_ = models::make_head(options_, "head", in(), list_);
    check_parameters();
  }

  void run(Report& report) {
    Workbench bench(list_, geometry_, settings_, mesh_);
    for (const shard::Parameter& p : list_.parameters())
      if (p.kind != shard::ParameterKind::state)
        bench.set(p.path, file_.floats(set_of(p), p.shape));
      else
        bench.set(p.path, Floats(size_t(p.count()), p.path.ends_with("running_var") ? 1.0f : 0.0f));
    bench.publish();
    train(bench, report);
    for (const shard::Parameter& p : list_.parameters())
      if (p.kind == shard::ParameterKind::state) compare_state(bench, p, report);
    evaluate(bench, report);
  }

 private:
  int64_t in() const { return channels_ * positions_; }
  // True if every rank has all rows: sets of rows need not be cut, and the head exchanges nothing.
  bool whole() const { return towers_ > 1; }
  static std::string name_of(const shard::Parameter& p) { return p.path.substr(5); }  // "head/"
  std::string set_of(const shard::Parameter& p) const { return group_ + "/params/" + name_of(p); }

  // Inputs [n, channels, height, width] become [n, height, width, channels].
  void read_input() {
    const Shape shape = file_.shape(group_ + "/input");
    if (shape.size() != 2 && shape.size() != 4)
      file_.fail(group_ + "/input", "is neither [n, channels] nor [n, channels, height, width]");
    batch_ = shape[0];
    channels_ = shape[1];
    positions_ = shape.size() == 4 ? shape[2] * shape[3] : 1;
    input_ = channels_last(file_.floats(group_ + "/input", shape));
  }
  Floats channels_last(const Floats& x) const {
    Floats y(x.size());
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t c = 0; c < channels_; ++c)
        for (int64_t p = 0; p < positions_; ++p)
          y[size_t((b * positions_ + p) * channels_ + c)] =
              x[size_t((b * channels_ + c) * positions_ + p)];
    return y;
  }

  void read_options(const std::string& kind, Keys& keys) {
    options_.kind = kind;
    if (kind == "mlp") {
      auto o = std::make_shared<models::MlpHeadOptions>();
      read_mlp(*o, keys);
      options_.options = o;
    } else if (kind == "eval_mlp") {
      auto o = std::make_shared<models::EvalMlpHeadOptions>();
      o->channels = keys.integer("in_channels", channels_);
      read_mlp(o->mlp, keys);
      options_.options = o;
    } else if (kind == "siamese_concat_view") {
      auto o = std::make_shared<models::ConcatHeadOptions>();
      towers_ = o->towers = keys.integer("num_towers", 1);
      options_.options = o;
    } else if (kind == "swav_head") {
      options_.kind = "swav";
      options_.options = read_swav(keys);
    } else if (kind == "dino_head") {
      options_.kind = "dino";
      options_.options = read_dino(keys);
    } else {
      keys.wrong("head", "no known kind of head");
    }
  }
  void read_mlp(models::MlpHeadOptions& o, Keys& keys) {
    o.layers = widths(keys);
    o.batch_norm.on = keys.flag("use_bn", false);
    o.relu = keys.flag("use_relu", false);
    o.bias = keys.flag("use_bias", true);
    o.bare_last = keys.flag("skip_last_layer_relu_bn", true);
    if (keys.flag("use_dropout", false)) keys.wrong("use_dropout", "not comparable");
  }
  std::vector<int64_t> widths(Keys& keys) {
    std::vector<int64_t> dims = keys.integers("dims");
    if (dims.size() < 2 || dims[0] != in()) keys.wrong("dims", "not the widths of this input");
    return {dims.begin() + 1, dims.end()};
  }
  std::shared_ptr<models::SwavHeadOptions> read_swav(Keys& keys) {
    auto o = std::make_shared<models::SwavHeadOptions>();
    o->layers = widths(keys);
    o->prototypes = keys.integers("num_clusters");
    o->batch_norm.on = keys.flag("use_bn", true);
    o->activation = keys.text("activation_name", "ReLU") == "GELU" ? kernels::Activation::gelu_erf
                                                                   : kernels::Activation::relu;
    o->bias = keys.flag("use_bias", true);
    o->bare_last = keys.flag("skip_last_bn", true);
    o->normalize = keys.flag("normalize_feats", true);
    o->return_embedding = keys.flag("return_embeddings", true);
    return o;
  }
  std::shared_ptr<models::DinoHeadOptions> read_dino(Keys& keys) {
    auto o = std::make_shared<models::DinoHeadOptions>();
    if (keys.integer("in_dim", in()) != in()) keys.wrong("in_dim", "not the width of this input");
    o->prototypes = keys.integers("num_clusters").at(0);
    o->layers = keys.integer("num_layers", 3);
    o->hidden = keys.integer("hidden_dim", 2048);
    o->bottleneck = keys.integer("bottleneck_dim", 256);
    o->batch_norm.on = keys.flag("use_bn", false);
    o->normalize_last_layer = keys.flag("normalize_last_layer", true);
    return o;
  }

  // Checks names and shapes before any rank waits for another.
  void check_parameters() const {
    size_t found = 0;
    for (const shard::Parameter& p : list_.parameters()) {
      if (p.kind == shard::ParameterKind::state) continue;
      ++found;
      if (file_.shape(set_of(p)) != p.shape)
        file_.fail(set_of(p), fmt::format("has the shape {}, the head's is {}",
                                          text_of(file_.shape(set_of(p))), text_of(p.shape)));
    }
    const size_t recorded =
        file_.has(group_ + "/params") ? file_.below(group_ + "/params").size() : 0;
    if (recorded != found)
      file_.fail(group_, fmt::format("has {} parameters, the head {}", recorded, found));
  }

  int64_t first() const { return whole() ? 0 : geometry_.first_example(mesh_, 0); }
  int64_t examples() const { return geometry_.micro_batch; }
  std::vector<View> make_outputs(Workbench& bench) const {
    std::vector<View> y;
    for (int64_t width : head_->widths()) y.push_back(bench.make(examples() / towers_ * width));
    return y;
  }
  View input_of(Workbench& bench) const {
    const auto begin = input_.begin() + first() * in();
    return bench.copy(Floats(begin, begin + examples() * in()));
  }

  void train(Workbench& bench, Report& report) {
    bench.begin_step();
    nn::Context ctx = bench.context(1, true);
    const std::unique_ptr<models::Head::Pass> pass = head_->make_pass();
    const View x = input_of(bench), dx = bench.make(x.count);
    const std::vector<View> y = make_outputs(bench);
    head_->forward(ctx, x, examples(), y, -1, *pass);
    compare_outputs(bench, y, "train", report);
    std::vector<View> dy;
    for (size_t j = 0; j < y.size(); ++j) {
      const std::string set = fmt::format("{}/cotangent/out{}", group_, j);
      const Floats all = file_.floats(set, file_.shape(set));
      const auto begin = all.begin() + first() / towers_ * head_->widths()[j];
      dy.push_back(bench.copy(Floats(begin, begin + y[j].count)));
    }
    head_->backward(ctx, dy, dx, -1, *pass);
    bench.finish_step();
    const Floats got = bench.read(dx);
    const std::string set = group_ + "/grad_input";
    const Floats want = channels_last(file_.floats(set, file_.shape(set)));
    report.compare("input gradients", set, got.data(), want.data() + first() * in(), x.count,
                   tolerance_of(file_, set, settings_, 0.1));
    compare_gradients(bench, report);
  }

  void compare_outputs(Workbench& bench, const std::vector<View>& y, const std::string& mode,
                       Report& report) const {
    for (size_t j = 0; j < y.size(); ++j) {
      const std::string set = fmt::format("{}/{}/out{}", group_, mode, j);
      const Floats got = bench.read(y[j]), want = file_.floats(set, file_.shape(set));
      report.compare("outputs, " + mode, set, got.data(),
                     want.data() + first() / towers_ * head_->widths()[j], y[j].count,
                     tolerance_of(file_, set, settings_, 0.03));
    }
  }

  void compare_gradients(Workbench& bench, Report& report) const {
    double all = 0;  // of the largest gradient; sums of biases cancel
    if (settings_.compute != host::Compute::f32)
      for (const shard::Parameter& p : list_.parameters())
        if (const std::string set = gradient_of(p); file_.has(set))
          all = std::max(all, tolerance_of(file_, set, settings_, 0.02));
    bench.for_gradients([&](const shard::Parameter& p, int64_t begin, const Floats& got) {
      const std::string set = gradient_of(p);
      if (file_.rounding_noise_only(set)) return report.skip(set);
      const Floats want = file_.floats(set, p.shape);
      report.compare("gradients", set, got.data(), want.data() + begin, int64_t(got.size()),
                     std::max(all, tolerance_of(file_, set, settings_, 0.1)));
    });
  }
  std::string gradient_of(const shard::Parameter& p) const {
    return group_ + "/grads/" + name_of(p);
  }

  void compare_state(Workbench& bench, const shard::Parameter& p, Report& report) const {
    const std::string set = group_ + "/stats_after1/" + name_of(p);
    const Floats got = bench.state(p.path);
    if (set.ends_with("num_batches_tracked")) {
      report.compare("running values", set, double(got[0]), double(file_.ints(set, {})[0]), 0);
      return;
    }
    const Floats want = file_.floats(set, p.shape);
    report.compare("running values", set, got.data(), want.data(), int64_t(got.size()),
                   tolerance_of(file_, set, settings_, 0.02));
  }

  void evaluate(Workbench& bench, Report& report) {
    bench.begin_step();
    nn::Context ctx = bench.context(2, false);
    ctx.states = nullptr;
    ctx.gradients = nullptr;
    const std::unique_ptr<models::Head::Pass> pass = head_->make_pass();
    const View x = input_of(bench);
    const std::vector<View> y = make_outputs(bench);
    head_->forward(ctx, x, examples(), y, -1, *pass);
    compare_outputs(bench, y, "eval", report);
  }

  const CaseFile& file_;
  std::string group_;
  const Settings& settings_;
  comm::Mesh& mesh_;
  int64_t batch_ = 0, channels_ = 0, positions_ = 1, towers_ = 1;
  Floats input_;
  models::HeadOptions options_;
  step::Geometry geometry_;
  models::ParameterList list_;
  std::unique_ptr<models::Head> head_;
};

class HeadsCase : public SslCase {
 public:
  HeadsCase(const CaseFile& file, const Settings& settings, comm::Mesh& mesh)
      : settings_(settings) {
    for (const std::string& group : file.groups())
      heads_.push_back(std::make_unique<HeadCase>(file, group, settings_, mesh));
  }
  void run(Report& report) override {
    for (const auto& head : heads_) head->run(report);
  }

 private:
  Settings settings_;
  std::vector<std::unique_ptr<HeadCase>> heads_;
};

bool holds_heads(const CaseFile& file) {
  for (const std::string& group : file.groups())
    if (file.has_attribute(group, "json") && file.json(group).contains("head")) return true;
  return false;
}

}  // namespace

SslKind ssl_heads_kind() {
  return {"heads", holds_heads,
          [](const CaseFile& file, const Settings& settings,
             comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
            return std::make_unique<HeadsCase>(file, settings, mesh);
          }};
}

}  // namespace golden
