// SPDX-License-Identifier: Apache-2.0
// Heads that end in products with prototypes: swav and dino (ssl.md 2).
#include "kernels/l2_normalize.hpp"
#include "models/heads/head_kinds.hpp"

namespace models {
namespace {

using device::DType;

struct PrototypeState : Head::Pass {
  HeadLayers::Pass layers;
  View x, unit, inverse;  // result of the chain; divided by its length; 1 / length
};

// The part that both heads share: a chain of products, and rows of unit length.
class UnitRows {
 public:
  UnitRows(const HeadChain& chain, bool normalize, ParameterList& list)
      : layers_(chain, list), normalize_(normalize) {}

  int64_t width() const { return layers_.width(); }
  int64_t forward_flops() const { return layers_.forward_flops(); }

  // unit: where the result goes, or none.
  View forward(nn::Context& ctx, View x, int64_t rows, View unit, PrototypeState& state) const {
    state.x = ctx.make(ctx.keep, rows * width());
    state.inverse = ctx.make(ctx.keep, rows);
    layers_.forward(ctx, x, rows, state.x, state.layers);
    if (!normalize_ && unit.none()) return state.unit = state.x;
    state.unit = unit.none() ? ctx.make(ctx.keep, rows * width()) : unit;
    if (normalize_)
      ctx.run(kernels::L2NormalizeForward{
          .y = state.unit, .x = state.x, .inverse = state.inverse, .rows = rows, .width = width()});
    else
      ctx.run(kernels::Copy{.y = state.unit, .x = state.x});
    return state.unit;
  }
  // d: gradient of forward's result, used as workspace.
  void backward(nn::Context& ctx, View d, View dx, PrototypeState& state) const {
    if (normalize_)
      ctx.run(kernels::L2NormalizeBackward{.dx = d,
                                           .dy = d,
                                           .x = state.x,
                                           .inverse = state.inverse,
                                           .rows = d.count / width(),
                                           .width = width()});
    layers_.backward(ctx, d, dx, state.layers);
  }

 private:
  HeadLayers layers_;
  bool normalize_;
};

// ---------------------------------------------------------------- swav

class SwavHead : public Head {
 public:
  SwavHead(const SwavHeadOptions& options, const std::string& path, int64_t in, ParameterList& list)
      : Head(list.begin_block(path)),
        returns_embedding_(options.return_embedding),
        rows_(chain(options, path, in), options.normalize, list) {
    for (size_t h = 0; h < options.prototypes.size(); ++h) {
      const int64_t count = options.prototypes[h];
      nn::Linear scores{.in = rows_.width(), .out = count, .rows_are_outputs = true};
      scores.kernel =
          list.add_operand(fmt::format("{}/prototypes{}.weight", path, h), {count, rows_.width()},
                           ParameterList::uniform_fan_in(rows_.width()));
      list.keep_unit_rows(scores.kernel);
      scores_.push_back(scores);
    }
  }

  std::vector<int64_t> widths() const override {
    std::vector<int64_t> out;
    if (returns_embedding_) out.push_back(rows_.width());
    for (const nn::Linear& s : scores_) out.push_back(s.out);
    return out;
  }
  std::vector<int> prototypes() const override {
    std::vector<int> out;
    for (const nn::Linear& s : scores_) out.push_back(s.kernel);
    return out;
  }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<PrototypeState>(); }

  int64_t forward_flops() const override {
    int64_t flops = rows_.forward_flops();
    for (const nn::Linear& s : scores_) flops += 2 * s.in * s.out;
    return flops;
  }

 private:
  void compute(nn::Context& ctx, View x, int64_t rows, std::span<const View> y,
               Pass& pass) const override {
    auto& state = dynamic_cast<PrototypeState&>(pass);
    device::Arena::Scope scope(ctx.arena);
    const View unit = rows_.forward(ctx, x, rows, returns_embedding_ ? y[0] : View{}, state);
    for (size_t h = 0; h < scores_.size(); ++h)
      scores_[h].forward(ctx, unit, rows, y[h + first_scores()]);
  }

  void differentiate(nn::Context& ctx, std::span<const View> dy, View dx,
                     Pass& pass) const override {
    auto& state = dynamic_cast<PrototypeState&>(pass);
    device::Arena::Scope scope(ctx.arena);
    const View d = ctx.arena.temporary(state.unit.count);
    bool written = returns_embedding_ && !dy[0].none();
    if (written) ctx.run(kernels::Copy{.y = d, .x = dy[0]});
    for (size_t h = 0; h < scores_.size(); ++h) {
      const View d_scores = dy[h + first_scores()];
      CHECK(!d_scores.none(), "the scores of prototypes {} have no gradient", h);
      scores_[h].backward(ctx, d_scores, state.unit, d.count / rows_.width(), d,
                          written ? Write::accumulate : Write::overwrite);
      written = true;
    }
    rows_.backward(ctx, d, dx, state);
  }

  static HeadChain chain(const SwavHeadOptions& options, const std::string& path, int64_t in) {
    HeadChain c{.path = path + "/projection_head",
                .widths = {in},
                .norm = options.batch_norm,
                .activation = options.activation,
                .bias = options.bias,
                .bare_last = options.bare_last};
    c.widths.insert(c.widths.end(), options.layers.begin(), options.layers.end());
    return c;
  }
  size_t first_scores() const { return returns_embedding_ ? 1 : 0; }

  bool returns_embedding_;
  UnitRows rows_;
  std::vector<nn::Linear> scores_;
};

// ---------------------------------------------------------------- dino

class DinoHead : public Head {
 public:
  DinoHead(const DinoHeadOptions& options, const std::string& path, int64_t in, ParameterList& list)
      : Head(list.begin_block(path)),
        prototypes_(options.prototypes),
        rows_(chain(options, path, in), true, list) {
    const std::string name = path + "/prototypes0.weight_";
    const shard::Init ones = ParameterList::ones();
    length_ = options.normalize_last_layer ? list.add_frozen(name + "g", {prototypes_, 1}, ones)
                                           : list.add(name + "g", {prototypes_, 1}, ones);
    direction_ = list.add(name + "v", {prototypes_, rows_.width()},
                          ParameterList::uniform_fan_in(rows_.width()));
  }

  std::vector<int64_t> widths() const override { return {prototypes_}; }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<PrototypeState>(); }

  int64_t forward_flops() const override {
    return rows_.forward_flops() + 2 * rows_.width() * prototypes_;
  }

 private:
  void compute(nn::Context& ctx, View x, int64_t rows, std::span<const View> y,
               Pass& pass) const override {
    auto& state = dynamic_cast<PrototypeState&>(pass);
    device::Arena::Scope scope(ctx.arena);
    const View unit = ctx.operand(rows_.forward(ctx, x, rows, {}, state));
    const View weight = ctx.operand(make_weight(ctx).weight);
    const int64_t n = rows / ctx.slices, width = rows_.width();
    for (int64_t j = 0; j < ctx.slices; ++j)
      ctx.run(kernels::Gemm{.c = y[0].slice(j * n * prototypes_, n * prototypes_),
                            .a = unit.slice(j * n * width, n * width),
                            .b = weight,
                            .m = n,
                            .n = prototypes_,
                            .k = width,
                            .trans_b = true});
  }

  void differentiate(nn::Context& ctx, std::span<const View> dy, View dx,
                     Pass& pass) const override {
    auto& state = dynamic_cast<PrototypeState&>(pass);
    device::Arena::Scope scope(ctx.arena);
    const int64_t width = rows_.width(), rows = state.unit.count / width;
    const Weight weight = make_weight(ctx);
    const View d = ctx.arena.temporary(state.unit.count), d_scores = ctx.operand(dy[0]);
    {
      device::Arena::Scope product_scope(ctx.arena);
      const View operand = ctx.operand(weight.weight);
      const int64_t n = rows / ctx.slices;
      for (int64_t j = 0; j < ctx.slices; ++j)
        ctx.run(kernels::Gemm{.c = d.slice(j * n * width, n * width),
                              .a = d_scores.slice(j * n * prototypes_, n * prototypes_),
                              .b = operand,
                              .m = n,
                              .n = width,
                              .k = prototypes_});
    }
    weight_gradients(ctx, d_scores, state.unit, rows, weight);
    rows_.backward(ctx, d, dx, state);
  }

  // The prototypes: f32 [prototypes, width], and 1 / length of their directions.
  struct Weight {
    View weight, inverse;
  };

  static HeadChain chain(const DinoHeadOptions& options, const std::string& path, int64_t in) {
    HeadChain c{.path = path + "/mlp",
                .widths = {in},
                .norm = options.batch_norm,
                .activation = kernels::Activation::gelu_erf,
                .numbered = options.layers > 1,
                .truncated_normal = true};
    for (int64_t i = 1; i < options.layers; ++i) c.widths.push_back(options.hidden);
    c.widths.push_back(options.bottleneck);
    return c;
  }

  Weight make_weight(nn::Context& ctx) const {
    const Weight w{ctx.arena.temporary(prototypes_ * rows_.width()),
                   ctx.arena.temporary(prototypes_)};
    ctx.run(kernels::L2NormalizeForward{.y = w.weight,
                                        .x = ctx.weight(direction_),
                                        .inverse = w.inverse,
                                        .row_scale = ctx.weight(length_),
                                        .rows = prototypes_,
                                        .width = rows_.width()});
    return w;
  }

  void weight_gradients(nn::Context& ctx, View d_scores, View unit, int64_t rows,
                        const Weight& weight) const {
    if (ctx.gradient(direction_).view.none() && ctx.gradient(length_).view.none()) return;
    device::Arena::Scope scope(ctx.arena);
    const View x = ctx.operand(unit), d = ctx.arena.temporary(weight.weight.count);
    const int64_t n = rows / ctx.slices, width = rows_.width();
    nn::sum_over_slices(ctx, {direction_, length_}, [&](int64_t j, const auto& targets) {
      ctx.run(kernels::Gemm{.c = d,
                            .a = d_scores.slice(j * n * prototypes_, n * prototypes_),
                            .b = x.slice(j * n * width, n * width),
                            .m = prototypes_,
                            .n = width,
                            .k = n,
                            .trans_a = true});
      ctx.run(kernels::L2NormalizeBackward{.dx = targets[0].view,
                                           .dy = d,
                                           .x = ctx.weight(direction_),
                                           .inverse = weight.inverse,
                                           .row_scale = ctx.weight(length_),
                                           .drow_scale = targets[1].view,
                                           .rows = prototypes_,
                                           .width = width,
                                           .write = targets[0].write,
                                           .row_scale_write = targets[1].write});
    });
  }

  int64_t prototypes_;
  UnitRows rows_;
  int length_, direction_;
};

}  // namespace

std::unique_ptr<Head> make_swav_head(const SwavHeadOptions& options, const std::string& path,
                                     int64_t in, ParameterList& list) {
  return std::make_unique<SwavHead>(options, path, in, list);
}

std::unique_ptr<Head> make_dino_head(const DinoHeadOptions& options, const std::string& path,
                                     int64_t in, ParameterList& list) {
  return std::make_unique<DinoHead>(options, path, in, list);
}

}  // namespace models
