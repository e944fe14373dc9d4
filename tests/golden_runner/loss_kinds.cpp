// SPDX-License-Identifier: Apache-2.0
// The kinds of recorded losses: their options, inputs and states.
#include <algorithm>
#include <cmath>

#include "loss_case.hpp"

namespace golden {
namespace {

using Floats = std::vector<float>;
using Gradients = std::vector<std::pair<std::string, LossTensor>>;

// Returns rows of unit length.
Floats unit_rows(Floats x, int64_t width) {
  for (size_t r = 0; r < x.size(); r += size_t(width)) {
    double square = 0;
    for (size_t i = r; i < r + size_t(width); ++i) square += double(x[i]) * double(x[i]);
    for (size_t i = r; i < r + size_t(width); ++i) x[i] = float(double(x[i]) / std::sqrt(square));
  }
  return x;
}
// Returns [columns, rows] of [rows, columns].
Floats transposed(const Floats& x, int64_t rows, int64_t columns) {
  Floats y(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) y[size_t(c * rows + r)] = x[size_t(r * columns + c)];
  return y;
}

// ---------------------------------------------------------------- losses of one embedding

class SimclrCase : public LossCase {
 public:
  using LossCase::LossCase;

 protected:
  std::unique_ptr<models::EmbeddingLoss> make(int64_t ranks, models::ParameterList&) override {
    Keys keys(file_, config_, group_);
    const bool multi_crop = keys.text("name", "") == "multicrop_simclr_info_nce_loss";
    keys.find("num_crops");
    keys.find("buffer_params");
    models::SimclrLossOptions o{.temperature = keys.number("temperature", 0.1)};
    keys.done();
    // The published multi-crop loss has the negatives of its own rank alone.
    if (multi_crop && ranks > 1) o.negative_group = examples_ / ranks;
    return models::make_simclr_loss(o);
  }
  LossStep step(int64_t s) const override { return {.outputs = {read("emb", s)}}; }
  Gradients gradients_of(const std::vector<LossTensor>& g) const override {
    return {{"grad", g[0]}};
  }
};

class BarlowCase : public LossCase {
 public:
  using LossCase::LossCase;

 protected:
  std::unique_ptr<models::EmbeddingLoss> make(int64_t ranks, models::ParameterList&) override {
    Keys keys(file_, config_, group_);
    keys.find("name");
    keys.find("embedding_dim");
    models::BarlowLossOptions o{.lambda = keys.number("lambda_", 0.0051),
                                .scale = keys.number("scale_loss", 0.024),
                                .gradient_divisor = double(ranks)};
    keys.done();
    return models::make_barlow_loss(o);
  }
  LossStep step(int64_t s) const override { return {.outputs = {read("emb", s)}}; }
  Gradients gradients_of(const std::vector<LossTensor>& g) const override {
    return {{"grad", g[0]}};
  }
};

class MocoCase : public LossCase {
 public:
  using LossCase::LossCase;

 protected:
  std::unique_ptr<models::EmbeddingLoss> make(int64_t, models::ParameterList& list) override {
    Keys keys(file_, config_, group_);
    keys.find("name");
    keys.find("momentum");
    width_ = keys.integer("embedding_dim", 128);
    size_ = keys.integer("queue_size", 65536);
    models::MocoLossOptions o{.queue_size = size_, .temperature = keys.number("temperature", 0.2)};
    keys.done();
    return models::make_moco_loss(o, width_, list);
  }
  void set_states(Workbench& bench) override {
    bench.set("loss/queue",
              unit_rows(transposed(file_.floats(input("queue"), {width_, size_}), width_, size_),
                        width_));
    bench.set("loss/queue_ptr", {0});
  }
  LossStep step(int64_t s) const override {
    return {.outputs = {read("query", s)}, .teacher = {read("key_raw", s)}};
  }
  int64_t teacher_views() const override { return 1; }
  Gradients gradients_of(const std::vector<LossTensor>& g) const override {
    return {{"grad", g[0]}};
  }
  void compare_states(Workbench& bench, const std::string& prefix, int64_t,
                      Report& report) const override {
    const std::string set = prefix + "queue";
    const Floats got = bench.state("loss/queue"),
                 want = transposed(file_.floats(set, {width_, size_}), width_, size_);
    report.compare("loss states", set, got.data(), want.data(), int64_t(want.size()),
                   file_.tolerance(set));
    const std::string place = prefix + "queue_ptr";
    report.compare("loss states", place, double(bench.state("loss/queue_ptr")[0]),
                   double(file_.ints(place, {1})[0]), 0);
  }

 private:
  int64_t width_ = 0, size_ = 0;
};

class DinoCase : public LossCase {
 public:
  using LossCase::LossCase;

 protected:
  std::unique_ptr<models::EmbeddingLoss> make(int64_t, models::ParameterList& list) override {
    Keys keys(file_, config_, group_);
    for (const char* known : {"name", "momentum", "num_crops"}) keys.find(known);
    width_ = keys.integer("output_dim", 65536);
    models::DinoLossOptions o;
    o.student_temperature = keys.number("student_temp", 0.1);
    o.teacher_temperature_start = keys.number("teacher_temp_min", 0.04);
    o.teacher_temperature = keys.number("teacher_temp_max", 0.07);
    o.teacher_temperature_warmup_steps = keys.integer("teacher_temp_warmup_iters", 37500);
    if (keys.given("crops_for_teacher")) o.teacher_views = keys.integers("crops_for_teacher");
    o.center_momentum = keys.number("ema_center", 0.9);
    keys.done();
    seen_ = int64_t(o.teacher_views.size());
    return models::make_dino_loss(o, width_, list);
  }
  void set_states(Workbench& bench) override {
    bench.set("loss/center", Floats(size_t(width_), 0.0f));
  }
  LossStep step(int64_t s) const override {
    return {.outputs = {read("student", s)}, .teacher = {read("teacher", s)}};
  }
  int64_t teacher_views() const override { return seen_; }
  Gradients gradients_of(const std::vector<LossTensor>& g) const override {
    return {{"grad", g[0]}};
  }
  void compare_states(Workbench& bench, const std::string& prefix, int64_t,
                      Report& report) const override {
    compare_state(bench, "loss/center", prefix + "center", {1, width_}, report);
  }

 private:
  int64_t width_ = 0, seen_ = 2;
};

// ---------------------------------------------------------------- memory bank

class NceCase : public LossCase {
 public:
  using LossCase::LossCase;

 protected:
  std::unique_ptr<models::EmbeddingLoss> make(int64_t, models::ParameterList& list) override {
    Keys keys(file_, config_, group_);
    keys.find("name");
    if (!keys.flag("norm_embedding", true)) keys.wrong("norm_embedding", "not comparable");
    models::NceLossOptions& o = options_;
    o = {};
    o.samples = keys.integer("num_train_samples", 0);
    o.temperature = keys.number("temperature", 0.07);
    o.norm_constant = keys.number("norm_constant", -1);
    o.loss = keys.text("loss_type", "nce") == "nce" ? models::BankLoss::nce
                                                    : models::BankLoss::cross_entropy;
    if (keys.given("loss_weights")) o.loss_weights = keys.numbers("loss_weights");
    const int64_t update = keys.integer("update_mem_with_emb_index", -100);
    if (const nlohmann::json* sampling = keys.find("negative_sampling_params")) {
      Keys inner(file_, *sampling, group_ + ": negative_sampling_params");
      o.negatives = inner.integer("num_negatives", 16000);
      inner.find("type");
      inner.done();
    }
    if (const nlohmann::json* memory = keys.find("memory_params")) {
      Keys inner(file_, *memory, group_ + ": memory_params");
      o.momentum = inner.number("momentum", 0.5);
      width_ = inner.integer("embedding_dim", 128);
      for (const char* known : {"memory_size", "norm_init"}) inner.find(known);
      o.update_output = inner.flag("update_mem_on_forward", true) ? -1 : update;
      inner.done();
    }
    keys.done();
    return models::make_nce_loss(o, width_, list);
  }
  void set_states(Workbench& bench) override {
    bench.set("loss/memory",
              unit_rows(file_.floats(input("memory"), {options_.samples, width_}), width_));
    bench.set("loss/norm_constant", {float(options_.norm_constant)});
  }
  LossStep step(int64_t s) const override {
    LossStep out;
    const int64_t outputs = int64_t(options_.loss_weights.size()), n = examples_;
    for (int64_t o = 0; o < outputs; ++o) out.outputs.push_back(read(name_of(o), s));
    const std::vector<int32_t> targets = file_.ints(input("target"), {steps_, n});
    out.index.assign(targets.begin() + s * n, targets.begin() + (s + 1) * n);
    const Shape shape = file_.shape(input("negatives"));  // [steps, outputs, n, 1 + K]
    const std::vector<int32_t> drawn = file_.ints(input("negatives"), shape);
    const int64_t k = options_.negatives;
    for (int64_t b = 0; b < n; ++b)
      for (int64_t o = 0; o < outputs; ++o) {
        const auto row = drawn.begin() + ((s * shape[1] + o) * n + b) * (1 + k) + 1;
        out.negatives.insert(out.negatives.end(), row, row + k);
      }
    return out;
  }
  Gradients gradients_of(const std::vector<LossTensor>& g) const override {
    Gradients out;
    for (size_t o = 0; o < g.size(); ++o) out.push_back({fmt::format("grad{}", o), g[o]});
    return out;
  }
  void compare_states(Workbench& bench, const std::string& prefix, int64_t,
                      Report& report) const override {
    compare_state(bench, "loss/memory", prefix + "memory", {options_.samples, width_}, report);
    compare_state(bench, "loss/norm_constant", prefix + "Z", {}, report);
  }

 private:
  static std::string name_of(int64_t output) {
    return output == 0 ? "emb" : fmt::format("emb{}", output + 1);
  }
  models::NceLossOptions options_;
  int64_t width_ = 128;
};

// ---------------------------------------------------------------- swav

// A head whose prototypes are constants, because recorded losses have no further layers.
class PrototypesAlone : public models::Head {
 public:
  PrototypesAlone(int64_t width, const std::vector<int64_t>& prototypes,
                  models::ParameterList& list)
      : Head(list.begin_block("head")), widths_{width} {
    for (size_t h = 0; h < prototypes.size(); ++h) {
      widths_.push_back(prototypes[h]);
      weights_.push_back(list.add_frozen(fmt::format("head/prototypes{}.weight", h),
                                         {prototypes[h], width}, models::ParameterList::zeros()));
    }
  }
  std::vector<int64_t> widths() const override { return widths_; }
  std::vector<int> prototypes() const override { return weights_; }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<Pass>(); }
  int64_t forward_flops() const override { return 0; }

 private:
  void compute(nn::Context&, device::View, int64_t, std::span<const device::View>,
               Pass&) const override {}
  void differentiate(nn::Context&, std::span<const device::View>, device::View,
                     Pass&) const override {}
  std::vector<int64_t> widths_;
  std::vector<int> weights_;
};

class SwavCase : public LossCase {
 public:
  using LossCase::LossCase;

 protected:
  std::unique_ptr<models::EmbeddingLoss> make(int64_t, models::ParameterList& list) override {
    Keys keys(file_, config_, group_);
    for (const char* known : {"normalize_last_layer", "num_crops", "output_dir", "momentum",
                              "momentum_eval_mode_iter_start"})
      keys.find(known);
    models::SwavLossOptions& o = options_;
    o = {};
    from_teacher_ = keys.text("name", "") == "swav_momentum_loss";
    width_ = keys.integer("embedding_dim", 128);
    o.temperature = keys.number("temperature", 0.1);
    o.epsilon = keys.number("epsilon", 0.05);
    o.double_precision = keys.flag("use_double_precision", false);
    o.sinkhorn_iterations = keys.integer("num_iters", 3);
    o.hard_assignment_steps = keys.integer("temp_hard_assignment_iters", 0);
    if (keys.given("crops_for_assign")) o.assign_views = keys.integers("crops_for_assign");
    prototypes_ = keys.integers("num_prototypes");
    if (const nlohmann::json* queue = keys.find("queue")) {
      Keys inner(file_, *queue, group_ + ": queue");
      inner.find("local_queue_length");
      // The option may count one rank's rows. The recorded queue has the rows of all ranks.
      o.queue_length = inner.integer("queue_length", 0) > 0 ? file_.shape(input("queue")).at(1) : 0;
      o.queue_start_steps = inner.integer("start_iter", 0);
      inner.done();
    }
    keys.done();
    const PrototypesAlone head(width_, prototypes_, list);
    return models::make_swav_loss(o, from_teacher_, head, list);
  }
  void set_states(Workbench& bench) override {
    if (options_.queue_length == 0) return;
    const int64_t assigned = int64_t(options_.assign_views.size()), length = options_.queue_length;
    for (size_t h = 0; h < prototypes_.size(); ++h) {
      bench.set(fmt::format("head/prototypes{}.weight", h), weight(h));
      bench.set(fmt::format("loss/local_queue{}", h),
                file_.floats(input(fmt::format("queue_scores{}", h)),
                             {assigned, length, prototypes_[h]}));
    }
    bench.set("loss/local_emb_queue", file_.floats(input("queue"), {assigned, length, width_}));
  }
  LossStep step(int64_t s) const override {
    LossStep out;
    if (options_.queue_length > 0) {
      out.outputs.push_back(read("emb", s));
      for (size_t h = 0; h < prototypes_.size(); ++h)
        out.outputs.push_back(scores_of(out.outputs[0], h));
      return out;
    }
    const LossTensor scores = read("scores0", s);
    const LossTensor none{scores.views, width_,
                          Floats(size_t(scores.views * examples_ * width_), 0.0f)};
    out.outputs.push_back(none);
    if (from_teacher_) out.teacher.push_back(first_views(none));
    for (size_t h = 0; h < prototypes_.size(); ++h) {
      const std::string name = fmt::format("scores{}", h);
      out.outputs.push_back(read(name, s));
      // The scores of the next step's crops serve as the teacher's scores.
      if (from_teacher_) out.teacher.push_back(first_views(read(name, (s + 1) % steps_)));
    }
    return out;
  }
  int64_t teacher_views() const override {
    return from_teacher_ ? int64_t(options_.assign_views.size()) : 0;
  }
  Gradients gradients_of(const std::vector<LossTensor>& g) const override {
    Gradients out;
    if (options_.queue_length == 0) {
      for (size_t h = 0; h < prototypes_.size(); ++h)
        out.push_back({fmt::format("grad{}", h), g[1 + h]});
      return out;
    }
    LossTensor d = g[0];
    for (size_t h = 0; h < prototypes_.size(); ++h) {
      const Floats w = weight(h);
      const int64_t count = prototypes_[h];
      for (int64_t r = 0; r < d.views * examples_; ++r)
        for (int64_t i = 0; i < width_; ++i) {
          double sum = 0;
          for (int64_t k = 0; k < count; ++k)
            sum +=
                double(g[1 + h].values[size_t(r * count + k)]) * double(w[size_t(k * width_ + i)]);
          d.values[size_t(r * width_ + i)] += float(sum);
        }
    }
    return {{"grad", d}};
  }
  // Rank r of the published code has the queue's rows of its own examples, block by block.
  void compare_states(Workbench& bench, const std::string& prefix, int64_t ranks,
                      Report& report) const override {
    const std::string set = prefix + "emb_queue";
    if (options_.queue_length == 0 || !file_.has(set)) return;
    const int64_t assigned = int64_t(options_.assign_views.size()), length = options_.queue_length,
                  n = examples_ / ranks, mine = length / ranks;
    const Floats got = bench.state("loss/local_emb_queue"),
                 want = file_.floats(set, {ranks, assigned, mine, width_});
    Floats ordered(want.size());
    for (int64_t r = 0; r < ranks; ++r)
      for (int64_t a = 0; a < assigned; ++a)
        for (int64_t i = 0; i < mine; ++i)
          std::copy_n(got.begin() + (a * length + i / n * examples_ + r * n + i % n) * width_,
                      width_, ordered.begin() + ((r * assigned + a) * mine + i) * width_);
    report.compare("loss states", set, ordered.data(), want.data(), int64_t(want.size()),
                   file_.tolerance(set));
  }

 private:
  Floats weight(size_t h) const {
    return file_.floats(input(fmt::format("proto{}", h)), {prototypes_[h], width_});
  }
  LossTensor scores_of(const LossTensor& embedding, size_t h) const {
    const Floats w = weight(h);
    LossTensor out{embedding.views, prototypes_[h], {}};
    for (int64_t r = 0; r < embedding.views * examples_; ++r)
      for (int64_t k = 0; k < out.width; ++k) {
        double sum = 0;
        for (int64_t i = 0; i < width_; ++i)
          sum +=
              double(embedding.values[size_t(r * width_ + i)]) * double(w[size_t(k * width_ + i)]);
        out.values.push_back(float(sum));
      }
    return out;
  }
  LossTensor first_views(const LossTensor& all) const {
    const int64_t views = int64_t(options_.assign_views.size());
    return {
        views, all.width, {all.values.begin(), all.values.begin() + views * examples_ * all.width}};
  }

  models::SwavLossOptions options_;
  std::vector<int64_t> prototypes_;
  int64_t width_ = 0;
  bool from_teacher_ = false;
};

}  // namespace

std::unique_ptr<LossCase> make_loss_case(const CaseFile& file, const std::string& group,
                                         const Settings& settings, comm::Mesh& mesh) {
  if (!file.has_attribute(group, "json")) return nullptr;
  const nlohmann::json config = file.json(group);
  const std::string name = config.value("name", "");
  if (name == "simclr_info_nce_loss" || name == "multicrop_simclr_info_nce_loss")
    return std::make_unique<SimclrCase>(file, group, settings, mesh);
  if (name == "barlow_twins_loss") return std::make_unique<BarlowCase>(file, group, settings, mesh);
  if (name == "moco_loss") return std::make_unique<MocoCase>(file, group, settings, mesh);
  if (name == "swav_loss" || name == "swav_momentum_loss")
    return std::make_unique<SwavCase>(file, group, settings, mesh);
  if (name == "dino_loss") return std::make_unique<DinoCase>(file, group, settings, mesh);
  if (name == "nce_loss_with_memory") return std::make_unique<NceCase>(file, group, settings, mesh);
  return nullptr;
}

}  // namespace golden
