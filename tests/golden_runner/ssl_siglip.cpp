// SPDX-License-Identifier: Apache-2.0
// Runs of SigLIP (tests/golden/siglip): loss and gradients of one batch, training steps with the
// real optimizer, cosines with the ranks of retrieval, and zero-shot classes.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "keys.hpp"
#include "models/pairs/siglip.hpp"
#include "models/trunks/vit_options.hpp"
#include "ssl_case.hpp"

namespace golden {
namespace {

using device::View;
using nlohmann::json;

constexpr step::PassId kPairs{0}, kFeatures{1};

// Returns the name that the published code has for a parameter.
std::string published(const std::string& path) {
  if (path.starts_with("encoder/")) return "img/" + path.substr(8);
  return path.starts_with("head/") ? "img/" + path : path;
}

bool is_key_bias(const std::string& path) { return path.ends_with("key/bias"); }

// Images and texts of the file, [examples, ...].
struct Pairs {
  std::vector<float> image;
  std::vector<int32_t> labels;
};

class SiglipCase : public SslCase {
 public:
  SiglipCase(const CaseFile& file, const Settings& settings, comm::Mesh& mesh)
      : file_(file), settings_(settings), mesh_(mesh) {
    if (settings.compute != host::Compute::f32)
      base::fail(base::Exit::config, "{}: --compute {} is for model cases", file.path(),
                 name_of(settings.compute));
    const Shape image = file.shape("batch/image"), labels = file.shape("batch/labels");
    case_.steps = image.at(0);
    case_.batch = image.at(1);
    options_ = options_of(image, labels.at(2));
    all_ = {file.floats("batch/image", image), file.ints("batch/labels", labels)};
    case_.training = true;
    case_.model = std::make_shared<models::CappaOptions>();
    case_.clock = {file.config().at("case").at("total_steps").get<int64_t>(), case_.batch, 0};
    translate_training(file, case_);
    geometry_ = step::derive_geometry(case_.batch,
                                      settings.micro_batch ? settings.micro_batch : case_.batch,
                                      mesh.shape, settings.determinism);
  }

  void run(Report& report) override {
    {
      step::Engine engine(engine_options(false), mesh_, settings_.device);
      load(engine);
      run_model(engine, report);
      if (file_.has("retrieval")) run_retrieval(engine, report);
      if (file_.has("zeroshot")) run_classes(engine, report);
    }
    step::Engine engine(engine_options(true), mesh_, settings_.device);
    load(engine);
    run_training(engine, report);
  }

 private:
  // ---- options

  std::shared_ptr<models::SiglipOptions> options_of(const Shape& image, int64_t length) const {
    auto o = std::make_shared<models::SiglipOptions>();
    Keys k(file_, file_.config().at("model"), "config: model");
    const json* dim = k.find("out_dim");
    o->image_head = dim && dim->is_number();
    o->dim = !dim ? 0 : (dim->is_array() ? dim->at(1) : *dim).get<int64_t>();
    o->loss.temperature_init = k.number("temperature_init", 1);
    o->loss.bias_init = k.number("bias_init", 0);
    o->image_height = image.at(2);
    o->image_width = image.at(3);
    o->seq_len = length;
    o->trunk.kind = "vit";
    o->trunk.options = trunk_of(*k.find("image"));
    read_text(*k.find("text"), *o);
    k.done();
    return o;
  }

  std::shared_ptr<models::VitTrunkOptions> trunk_of(const json& given) const {
    auto vit = std::make_shared<models::VitTrunkOptions>();
    Keys k(file_, given, "config: model.image");
    k.flag("head_zeroinit", true);  // initial values are recorded
    vit->size.depth = k.integer("depth", 12);
    vit->size.width = k.integer("width", 768);
    vit->size.heads = k.integer("num_heads", 12);
    vit->size.mlp = k.integer("mlp_dim", 4 * vit->size.width);
    vit->size.patch = k.integers("patch_size").at(0);
    vit->size.patch_width = k.integers("patch_size").at(1);
    const std::string pool = k.text("pool_type", "gap");
    vit->pool = base::value_of(models::kPoolNames, pool);
    k.done();
    return vit;
  }

  void read_text(const json& given, models::SiglipOptions& o) const {
    Keys k(file_, given, "config: model.text");
    o.vocab_size = k.integer("vocab_size", 32000);
    o.text = {.depth = k.integer("depth", 12),
              .width = k.integer("width", 512),
              .mlp = k.integer("mlp_dim", 2048),
              .heads = k.integer("num_heads", 8)};
    const std::string pool = k.text("pool_type", "last");
    if (pool != "last" && pool != "map") k.wrong("pool_type", "not known here");
    o.text.pool = pool == "map" ? models::TextPool::map : models::TextPool::last;
    k.done();
  }

  // training: with the recorded optimizer. Otherwise a step leaves the parameters as they are, and
  // none is frozen.
  step::EngineOptions engine_options(bool training) const {
    step::EngineOptions o;
    o.model = models::make_model({"siglip", options_},
                                 {base::value_of(models::kRecomputeNames, settings_.recompute)});
    o.passes = {[](const models::Model& model) {
                  return dynamic_cast<const models::PairScorer&>(model).make_pair_score_pass();
                },
                [](const models::Model& model) {
                  return dynamic_cast<const models::Embedder&>(model).make_embed_pass(kTaps);
                }};
    using shard::Placement;
    o.sharding.parameters =
        settings_.strategy == "sharded" ? Placement::sharded : Placement::replicated;
    o.sharding.optimizer =
        settings_.strategy == "replicated" ? Placement::replicated : Placement::sharded;
    o.determinism = settings_.determinism;
    o.optimizer = case_.optimizer;
    if (!training) {
      o.optimizer.kind = "sgd";
      o.optimizer.learning_rate = o.optimizer.weight_decay = 0;
    }
    o.global_batch = case_.batch;
    o.micro_batch = geometry_.micro_batch;
    o.threads = settings_.threads;
    o.resolve = [this, training](const auto& parameters, auto& policies, auto& schedules) {
      Case named = case_;
      named.training = training;
      std::vector<shard::Parameter> theirs = parameters;
      for (shard::Parameter& p : theirs) p.path = published(p.path);
      named.resolve(theirs, policies, schedules);
    };
    return o;
  }

  void load(step::Engine& engine) const {
    for (const shard::TensorSlice& slice : engine.state()) {
      if (!slice.name.starts_with("/params/")) continue;
      const std::vector<float> values =
          file_.floats("params_init/" + published(slice.name.substr(8)), slice.shape);
      for (const shard::TensorSlice::Part& p : slice.parts)
        device::upload(slice.view(p), values.data() + p.begin, engine.queue());
    }
    engine.publish();
  }

  // ---- one batch

  int64_t pixels() const { return options_->height() * options_->width() * 3; }
  models::HostBatch batch_of(const Pairs& from, int64_t first, int64_t n) const {
    models::HostBatch batch;
    batch.features["image"] = device::view(from.image.data() + first * pixels(), n * pixels());
    if (!from.labels.empty())
      batch.features["labels"] =
          device::view(from.labels.data() + first * options_->seq_len, n * options_->seq_len);
    batch.examples = n;
    batch.first_position = first;
    return batch;
  }
  step::StepReport take_step(step::Engine& engine, int64_t step) const {
    return engine.step(step, [&](int64_t m) {
      const int64_t first = (step - 1) * case_.batch + geometry_.first_example(mesh_, m);
      return batch_of(all_, first, geometry_.micro_batch);
    });
  }

  void run_model(step::Engine& engine, Report& report) {
    const int64_t n = case_.batch, texts = n * options_->seq_len;
    const Pairs first = {{all_.image.begin(), all_.image.begin() + n * pixels()}, {}};
    const std::vector<double> cosines = scores(
        engine, first, n, {options_->seq_len, {all_.labels.begin(), all_.labels.begin() + texts}});
    report.compare("cosines", "forward/cosine", cosines.data(),
                   file_.floats("forward/cosine", {n, n}).data(), n * n,
                   file_.tolerance("forward/cosine"));
    compare_features(engine, first, report);
    const step::StepReport step = take_step(engine, 1);
    report.require("loss", "finite", step.finite);
    report.compare("loss", "forward/loss", step.loss(), double(file_.floats("forward/loss", {})[0]),
                   file_.tolerance("forward/loss"));
    const shard::Layout& layout = engine.layout();
    for (int u = 0; u < int(layout.units().size()); ++u) {
      const View mine = engine.owned_gradient(u);
      for (const shard::Segment& s :
           layout.segments(u, layout.owned_begin(u, mesh_.fsdp_index), layout.owned_count(u))) {
        const shard::Parameter& p = layout.parameters()[size_t(s.parameter)];
        const std::string set = "grads/" + published(p.path);
        const std::vector<float> want = file_.floats(set, p.shape);
        if (file_.rounding_noise_only(set)) {
          report.skip(set);
          continue;
        }
        device::read_on_host(mine.slice(s.offset, s.count()), engine.queue(), [&](View got) {
          report.compare("gradients", set, got.f32(), want.data() + s.begin, s.count(),
                         file_.tolerance(set));
        });
      }
    }
  }

  // Compares the features of the first images, as many as are recorded.
  void compare_features(step::Engine& engine, const Pairs& pairs, Report& report) const {
    auto& pass = engine.pass<models::EmbedPass>(kFeatures);
    const int64_t n = geometry_.micro_batch;
    std::vector<std::vector<float>> got;
    std::vector<float*> to;
    for (const models::Tap& tap : pass.taps())
      to.push_back(got.emplace_back(size_t(n * tap.count())).data());
    engine.forward(kFeatures, batch_of(pairs, 0, n),
                   [&](nn::Context& ctx, const models::Inputs& in) { pass.run(ctx, in, to); });
    for (size_t t = 0; t < got.size(); ++t) {
      const models::Tap& tap = pass.taps()[t];
      const std::string set = "forward/img/" + tap.name;
      const Shape shape = file_.shape(set);
      report.compare("features", set, got[t].data(), file_.floats(set, shape).data(),
                     std::min(n, shape.at(0)) * tap.count(), file_.tolerance(set));
    }
  }

  // ---- evaluations

  // Returns the scores of images, on every rank. They are encoded batch by batch.
  std::vector<double> scores(step::Engine& engine, const Pairs& pairs, int64_t images,
                             const models::TextList& texts) const {
    auto& pass = engine.pass<models::PairScorePass>(kPairs);
    const int64_t n = geometry_.micro_batch, columns = pass.columns(texts),
                  padded = (images + n - 1) / n * n;
    Pairs all = pairs;
    all.image.resize(size_t(padded * pixels()));
    std::vector<double> out(size_t(padded * columns));
    pass.begin();
    for (int64_t first = 0; first < padded; first += n)
      engine.forward(kPairs, batch_of(all, first, n),
                     [&](nn::Context& ctx, const models::Inputs& in) {
                       pass.run(ctx, in, texts, out.data() + first * columns);
                     });
    out.resize(size_t(images * columns));
    return out;
  }

  void run_retrieval(step::Engine& engine, Report& report) const {
    const Shape shape = file_.shape("retrieval/image"), of_texts = file_.shape("retrieval/labels");
    const int64_t images = shape.at(0), texts = of_texts.at(0);
    const std::vector<double> cosines =
        scores(engine, {file_.floats("retrieval/image", shape), {}}, images,
               {of_texts.at(1), file_.ints("retrieval/labels", of_texts)});
    report.compare("cosines", "retrieval/cosine", cosines.data(),
                   file_.floats("retrieval/cosine", {images, texts}).data(), images * texts,
                   file_.tolerance("retrieval/cosine"));
    const std::vector<int32_t> image_of = file_.ints("retrieval/text_image", {texts});
    std::vector<double> of_image(static_cast<size_t>(images), double(texts)),
        of_text(static_cast<size_t>(texts), 0.0);
    for (int64_t i = 0; i < images; ++i)
      for (int64_t t = 0; t < texts; ++t) {
        if (image_of[size_t(t)] != i) continue;
        auto better = [&](int64_t a, int64_t b) {
          return cosines[size_t(a * texts + b)] > cosines[size_t(i * texts + t)];
        };
        double rank = 0;
        for (int64_t other = 0; other < texts; ++other) rank += better(i, other);
        of_image[size_t(i)] = std::min(of_image[size_t(i)], rank);
        for (int64_t other = 0; other < images; ++other) of_text[size_t(t)] += better(other, t);
      }
    compare_ranks("img2txt", of_image, report);
    compare_ranks("txt2img", of_text, report);
  }

  void compare_ranks(const std::string& way, const std::vector<double>& ranks,
                     Report& report) const {
    const std::string set = "retrieval/rank_" + way;
    const std::vector<int32_t> want = file_.ints(set, {int64_t(ranks.size())});
    report.compare("ranks", set, ranks.data(), want.data(), int64_t(ranks.size()), 0);
    const std::vector<float> recalls = file_.floats("retrieval/recall_" + way, {3});
    for (size_t k = 0; k < 3; ++k) {
      const double most = std::vector<double>{1, 5, 10}[k];
      double hits = 0;
      for (const double rank : ranks) hits += rank < most;
      report.compare("recall", fmt::format("{}, {}", way, most), hits / double(ranks.size()),
                     double(recalls[k]), 1e-6);
    }
  }

  void run_classes(step::Engine& engine, Report& report) const {
    const Shape shape = file_.shape("zeroshot/image"), of_texts = file_.shape("zeroshot/prompt");
    const int64_t images = shape.at(0), length = of_texts.at(1),
                  classes = file_.shape("zeroshot/logits").at(1);
    const std::vector<int32_t> ids = file_.ints("zeroshot/prompt", of_texts),
                               class_of = file_.ints("zeroshot/prompt_class", {of_texts[0]});
    models::TextList texts{length, {}, of_texts[0] / classes};
    for (int64_t c = 0; c < classes; ++c)
      for (int64_t t = 0; t < of_texts[0]; ++t)
        if (class_of[size_t(t)] == c)
          texts.ids.insert(texts.ids.end(), ids.begin() + t * length,
                           ids.begin() + (t + 1) * length);
    const std::vector<double> got =
        scores(engine, {file_.floats("zeroshot/image", shape), {}}, images, texts);
    report.compare("classes", "zeroshot/logits", got.data(),
                   file_.floats("zeroshot/logits", {images, classes}).data(), images * classes,
                   file_.tolerance("zeroshot/logits"));
    const std::vector<int32_t> want = file_.ints("zeroshot/prediction", {images});
    for (int64_t i = 0; i < images; ++i) {
      const double* mine = got.data() + i * classes;
      report.compare("predictions", fmt::format("image {}", i),
                     double(std::max_element(mine, mine + classes) - mine), double(want[size_t(i)]),
                     0);
    }
  }

  // ---- training

  void run_training(step::Engine& engine, Report& report) const {
    for (int64_t s = 1; s <= case_.steps; ++s) {
      const step::StepReport step = take_step(engine, s);
      report.require("training_loss", fmt::format("finite at step {}", s), step.finite);
      compare_step(s, step, engine.layout(), report);
      compare_parameters(engine, fmt::format("params_step{}", s), report);
    }
    if (file_.has("opt_final")) compare_state(engine, report);
  }

  void compare_step(int64_t s, const step::StepReport& step, const shard::Layout& layout,
                    Report& report) const {
    auto compare = [&](const std::string& name, double got) {
      const std::string set = "steps/" + name;
      report.compare(name, fmt::format("step {}", s), got,
                     double(file_.floats(set, {case_.steps})[size_t(s - 1)]), file_.tolerance(set));
    };
    auto strict = [&](const optim::Norms& norms) {
      double square = 0;
      for (size_t p = 0; p < norms.per_parameter.size(); ++p)
        if (!is_key_bias(layout.parameters()[p].path))
          square += norms.per_parameter[p] * norms.per_parameter[p];
      return std::sqrt(square);
    };
    compare("training_loss", step.loss());
    compare("global_schedule", double(step.update.schedules.at(0)));
    compare("l2_grads", step.gradients.gradients.global);
    compare("l2_grads_no_key_bias", strict(step.gradients.gradients));
    compare("l2_params", step.update.parameters.global);
    compare("l2_params_no_key_bias", strict(step.update.parameters));
    compare("l2_updates", step.update.updates.global);
    compare("l2_updates_no_key_bias", strict(step.update.updates));
  }

  // Compares what this rank has of a tensor with a set.
  void compare_set(const shard::TensorSlice& slice, const std::string& set,
                   const std::string& quantity, double least, device::Queue& queue,
                   Report& report) const {
    if (file_.rounding_noise_only(set) || is_key_bias(set)) return report.skip(set);
    const std::vector<float> want = file_.floats(set, slice.shape);
    for (const shard::TensorSlice::Part& p : slice.parts)
      device::read_on_host(slice.view(p), queue, [&](View v) {
        std::vector<float> got;
        for (int64_t i = 0; i < v.count; ++i)
          got.push_back(slice.type == device::DType::bf16
                            ? std::bit_cast<float>(uint32_t(v.bf16()[i]) << 16)
                            : v.f32()[i]);
        report.compare(quantity, set, got.data(), want.data() + p.begin, v.count,
                       std::max(least, file_.tolerance(set)));
      });
  }

  // Adam divides noise by noise if a gradient is as small as its rounding error.
  void compare_parameters(step::Engine& engine, const std::string& group, Report& report) const {
    if (!file_.has(group)) return;  // the schedule was 0
    const double least = case_.optimizer.kind == "adamw" ? 0.01 * case_.optimizer.learning_rate : 0;
    for (const shard::TensorSlice& slice : engine.state())
      if (slice.name.starts_with("/params/"))
        compare_set(slice, group + "/" + published(slice.name.substr(8)), "parameters", least,
                    engine.queue(), report);
  }

  void compare_state(step::Engine& engine, Report& report) const {
    const std::string root = "/optimizer/";
    for (const shard::TensorSlice& slice : engine.state()) {
      if (!slice.name.starts_with(root)) continue;
      const std::string ours = slice.name.substr(root.size());
      const size_t path = ours.find('/', ours.find('/') + 1) + 1;
      const std::string set = "opt_final/1/" + published_state_name(ours.substr(0, path) +
                                                                    published(ours.substr(path)));
      report.require("optimizer state: sets", set, file_.has(set), "not recorded");
      if (file_.has(set))
        compare_set(slice, set, ours.substr(0, path - 1), 0, engine.queue(), report);
    }
  }

  const CaseFile& file_;
  Settings settings_;
  comm::Mesh& mesh_;
  Case case_;
  std::shared_ptr<models::SiglipOptions> options_;
  step::Geometry geometry_;
  Pairs all_;  // of all steps
};

}  // namespace

SslKind ssl_siglip_kind() {
  return {.name = "SigLIP",
          .fits =
              [](const CaseFile& file) {
                return file.has("forward/cosine") && file.has("params_init/t");
              },
          .make = [](const CaseFile& file, const Settings& settings,
                     comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
            return std::make_unique<SiglipCase>(file, settings, mesh);
          }};
}

}  // namespace golden
