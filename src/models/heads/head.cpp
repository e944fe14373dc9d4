// SPDX-License-Identifier: Apache-2.0
// Kinds of heads that end in a chain of products: mlp, and eval_mlp with a batch norm in front; and
// siamese_concat_view, which has no parameters. And the linear head of classifiers.
#include "models/heads/head.hpp"

#include "base/registry.hpp"
#include "kernels/transpose_positions.hpp"
#include "models/heads/head_kinds.hpp"
#include "models/part_lists.hpp"

namespace models {
namespace {

// Copies values of any type.
void copy(nn::Context& ctx, View y, View x) {
  if (y.type == x.type)
    ctx.run(kernels::Copy{.y = y, .x = x});
  else
    ctx.run(kernels::Cast{.y = y, .x = x});
}

// ---------------------------------------------------------------- mlp

class MlpHead : public Head {
 public:
  MlpHead(const MlpHeadOptions& options, const std::string& path, int64_t in, ParameterList& list)
      : Head(list.begin_block(path)), layers_(options.chain(path + "/clf", in), list) {}

  struct State : Pass {
    HeadLayers::Pass layers;
  };

  std::vector<int64_t> widths() const override { return {layers_.width()}; }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<State>(); }
  int64_t forward_flops() const override { return layers_.forward_flops(); }

 private:
  void compute(nn::Context& ctx, View x, int64_t rows, std::span<const View> y,
               Pass& pass) const override {
    layers_.forward(ctx, x, rows, y[0], dynamic_cast<State&>(pass).layers);
  }
  void differentiate(nn::Context& ctx, std::span<const View> dy, View dx,
                     Pass& pass) const override {
    layers_.backward(ctx, dy[0], dx, dynamic_cast<State&>(pass).layers);
  }

  HeadLayers layers_;
};

// ---------------------------------------------------------------- eval_mlp

// A batch norm of the channels of a feature map [rows, positions, channels], then an MLP of its
// values in the published order, channels first.
class EvalMlpHead : public Head {
 public:
  EvalMlpHead(const EvalMlpHeadOptions& options, const std::string& path, int64_t in,
              ParameterList& list)
      : Head(list.begin_block(path)),
        positions_(in / options.channels),
        norm_(make_norm(options, path, list)),
        layers_(options.mlp.chain(path + "/clf.clf", in), list) {
    CHECK(in % options.channels == 0, "{} features of {} channels", in, options.channels);
  }

  struct State : Pass {
    View x;
    nn::BatchNorm::Saved norm;
    HeadLayers::Pass layers;
  };

  std::vector<int64_t> widths() const override { return {layers_.width()}; }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<State>(); }
  int64_t forward_flops() const override { return layers_.forward_flops(); }

 private:
  void compute(nn::Context& ctx, View x, int64_t rows, std::span<const View> y,
               Pass& pass) const override {
    State& state = dynamic_cast<State&>(pass);
    device::Arena::Scope scope(ctx.arena);
    state.x = x;
    state.norm = norm_.make_saved(ctx, ctx.keep);
    const View flat = ctx.make(ctx.keep, x.count, x.type),
               normed = positions_ == 1 ? flat : ctx.arena.temporary(x.count, x.type);
    norm_.forward(ctx, x, size(ctx, rows), state.norm, normed);
    if (positions_ > 1) ctx.run(transposition(flat, normed, rows, positions_, norm_.width));
    layers_.forward(ctx, flat, rows, y[0], state.layers);
  }
  void differentiate(nn::Context& ctx, std::span<const View> dy, View dx,
                     Pass& pass) const override {
    State& state = dynamic_cast<State&>(pass);
    device::Arena::Scope scope(ctx.arena);
    const int64_t rows = dy[0].count / layers_.width();
    const View flat = ctx.arena.temporary(state.x.count),
               d = ctx.arena.temporary(state.x.count, state.x.type);
    layers_.backward(ctx, dy[0], flat, state.layers);
    const View turned = positions_ == 1 ? flat : ctx.arena.temporary(flat.count);
    if (positions_ > 1) ctx.run(transposition(turned, flat, rows, norm_.width, positions_));
    copy(ctx, d, turned);
    const nn::BatchNorm::Passed passed{
        .x = state.x, .saved = state.norm, .size = size(ctx, rows), .dy = d, .dx = d};
    norm_.backward(ctx, {&passed, 1}, false);
    if (!dx.none()) copy(ctx, dx, d);
  }

  static nn::BatchNorm make_norm(const EvalMlpHeadOptions& options, const std::string& path,
                                 ParameterList& list) {
    nn::BatchNorm norm = list.batch_norm(path + "/channel_bn", options.channels);
    norm.eps = float(options.mlp.batch_norm.eps);
    norm.momentum = float(options.mlp.batch_norm.momentum);
    norm.group_examples = options.mlp.batch_norm.group_examples;
    norm.group_key = options.mlp.batch_norm.group_key;
    return norm;
  }
  nn::ImageSize size(const nn::Context& ctx, int64_t rows) const {
    return {.per_example = rows / ctx.batch, .height = 1, .width = positions_};
  }
  static kernels::TransposePositions transposition(View y, View x, int64_t rows, int64_t positions,
                                                   int64_t channels) {
    return {.y = y, .x = x, .batch = rows, .positions = positions, .channels = channels};
  }

  int64_t positions_;
  nn::BatchNorm norm_;
  HeadLayers layers_;
};

// ---------------------------------------------------------------- siamese_concat_view

// Joins the features of consecutive rows: [rows, in] becomes [rows / towers, towers * in].
class ConcatHead : public Head {
 public:
  ConcatHead(const ConcatHeadOptions& options, const std::string& path, int64_t in,
             ParameterList& list)
      : Head(list.begin_block(path)), towers_(options.towers), width_(options.towers * in) {}

  std::vector<int64_t> widths() const override { return {width_}; }
  int64_t joins() const override { return towers_; }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<Pass>(); }
  int64_t forward_flops() const override { return 0; }

 private:
  void compute(nn::Context& ctx, View x, int64_t, std::span<const View> y, Pass&) const override {
    copy(ctx, y[0], x);
  }
  void differentiate(nn::Context& ctx, std::span<const View> dy, View dx, Pass&) const override {
    if (!dx.none()) copy(ctx, dx, dy[0]);
  }

  int64_t towers_, width_;
};

// ---------------------------------------------------------------- linear

class LinearHead : public Head {
 public:
  LinearHead(const std::string& path, int64_t in, int64_t out, double bias, ParameterList& list)
      : Head(list.begin_block(path)), product_{.in = in, .out = out} {
    product_.kernel = list.add_operand(path + "/kernel", {in, out}, ParameterList::zeros());
    product_.bias = list.add(path + "/bias", {out}, ParameterList::constant(bias));
  }

  struct State : Pass {
    View x;
  };

  std::vector<int64_t> widths() const override { return {product_.out}; }
  std::unique_ptr<Pass> make_pass() const override { return std::make_unique<State>(); }
  int64_t forward_flops() const override { return 2 * product_.in * product_.out; }

 private:
  void compute(nn::Context& ctx, View x, int64_t rows, std::span<const View> y,
               Pass& pass) const override {
    dynamic_cast<State&>(pass).x = x;
    product_.forward(ctx, x, rows, y[0]);
  }
  void differentiate(nn::Context& ctx, std::span<const View> dy, View dx,
                     Pass& pass) const override {
    product_.backward(ctx, dy[0], dynamic_cast<State&>(pass).x, dy[0].count / product_.out, dx);
  }

  nn::Linear product_;
};

// ---------------------------------------------------------------- kinds

struct Kind {
  const char *name, *doc;
  std::shared_ptr<config::Table::Variant> (*make_options)();
  std::unique_ptr<Head> (*make)(const config::Table::Variant& options, const std::string& path,
                                int64_t in, ParameterList& list);
};

template <class Options, std::unique_ptr<Head> (*kMake)(const Options&, const std::string&, int64_t,
                                                        ParameterList&)>
Kind kind(const char* name, const char* doc) {
  return {name, doc,
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<Options>()); },
          [](const config::Table::Variant& options, const std::string& path, int64_t in,
             ParameterList& list) {
            return kMake(dynamic_cast<const Options&>(options), path, in, list);
          }};
}
template <class H, class Options>
std::unique_ptr<Head> make(const Options& options, const std::string& path, int64_t in,
                           ParameterList& list) {
  return std::make_unique<H>(options, path, in, list);
}

const base::Registry<Kind>& kinds() {
  static const base::Registry<Kind> all(
      "head",
      {kind<MlpHeadOptions, make<MlpHead, MlpHeadOptions>>("mlp", "a chain of products"),
       kind<SwavHeadOptions, make_swav_head>("swav", "an MLP, and scores of prototypes"),
       kind<DinoHeadOptions, make_dino_head>("dino", "an MLP, and scores of unit prototypes"),
       kind<EvalMlpHeadOptions, make<EvalMlpHead, EvalMlpHeadOptions>>(
           "eval_mlp", "a batch norm of the channels, and an MLP, for probes"),
       kind<ConcatHeadOptions, make<ConcatHead, ConcatHeadOptions>>(
           "siamese_concat_view", "joins the features of consecutive views"),
       kind<PatchHeadOptions, make_patch_head>(
           "image_and_patches", "an embedding of each image, and one of its patches")});
  return all;
}

}  // namespace

void HeadOptions::bind(config::Table& t) { t.kind("kind", kind, options, kinds(), "which head"); }

std::vector<NamedPart> head_parts() {
  std::vector<NamedPart> out;
  for (const Kind& k : kinds()) out.push_back({k.name, k.doc});
  return out;
}

std::unique_ptr<Head> make_head(const HeadOptions& options, const std::string& path, int64_t in,
                                ParameterList& list) {
  CHECK(options.options, "a head without options");
  return kinds().at(options.kind).make(*options.options, path, in, list);
}

std::unique_ptr<Head> make_linear_head(const std::string& path, int64_t in, int64_t out,
                                       double bias, ParameterList& list) {
  return std::make_unique<LinearHead>(path, in, out, bias, list);
}

}  // namespace models
