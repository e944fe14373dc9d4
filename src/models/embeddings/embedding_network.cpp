// SPDX-License-Identifier: Apache-2.0
#include "models/embeddings/embedding_network.hpp"

#include <fmt/format.h>

#include <numeric>

#include "models/heads/head_kinds.hpp"

namespace models {

void ViewOptions::bind(config::Table& t) {
  const auto never = config::OnResume::never;
  t.key("views", groups,
        "views of an example, in groups of one image size: [2, 6] with image_size = [224, 96] are "
        "two views of 224 pixels and six of 96, as multi_crop makes them")
      .min(1)
      .max(1024)
      .on_resume(never);
  t.key("image_size", image_size,
        "height and width of the images of each group, checked against what `preprocess` yields")
      .min(1)
      .max(16384)
      .unit("pixels")
      .on_resume(never);
  if (groups.empty()) t.error("views", "names no view");
  if (groups.size() != image_size.size())
    t.error("image_size", fmt::format("has {} sizes for {} groups of views; give one for each "
                                      "number in model.views",
                                      image_size.size(), groups.size()));
}

int64_t ViewOptions::count() const {
  return std::accumulate(groups.begin(), groups.end(), int64_t(0));
}

std::string ViewOptions::ops() const {
  if (groups.size() == 1)
    return fmt::format("copies({}) | random_resized_crop({})", groups[0], image_size[0]);
  return fmt::format("multi_crop([{}], [{}])", fmt::join(groups, ", "),
                     fmt::join(image_size, ", "));
}

std::string ViewOptions::field(size_t group) {
  return group == 0 ? "image" : fmt::format("image{}", group);
}

void EmbeddingOptions::bind(config::Table& t) {
  views.bind(t);
  t.table("trunk", trunk, "the part that turns an image into one vector");
  t.list("head", heads,
         "what turns these vectors into embeddings; each head reads the output of the one before");
  if (heads.empty()) t.error("head", "missing; add a [[model.head]] table, as kind = \"mlp\"");
  if (!trunk.options) return;
  for (const int64_t size : views.image_size)
    if (const std::string problem = trunk.keys().image_problem(size, size); !problem.empty())
      t.error("image_size", problem);
}

int64_t EmbeddingOptions::rows_of_example() const {
  int64_t rows = views.count();
  for (const HeadOptions& head : heads) {
    if (const auto* concat = dynamic_cast<const ConcatHeadOptions*>(head.options.get()))
      rows /= std::max<int64_t>(1, concat->towers);
    if (const auto* joining = dynamic_cast<const PatchHeadOptions*>(head.options.get()))
      rows /= 1 + std::max<int64_t>(0, joining->patches);
  }
  return rows;
}

void EmbeddingOptions::refuse_last_head(const std::string& problem) const {
  base::fail(base::Exit::config, "model.head[{}].kind = \"{}\": {}", heads.size() - 1,
             heads.back().kind, problem);
}

EmbeddingNetwork::EmbeddingNetwork(const EmbeddingOptions& options, Recompute recompute,
                                   ParameterList& list)
    : encoder_(options.trunk.keys(), options.views.image_size[0], options.views.image_size[0],
               recompute, list) {
  int64_t in = encoder_.width();
  for (const HeadOptions& head : options.heads) {
    const std::string path = heads_.empty() ? "head" : fmt::format("head{}", heads_.size());
    if (!heads_.empty() && heads_.back()->widths().size() != 1)
      base::fail(base::Exit::config,
                 "model.head[{}]: a head with {} outputs must be the last one; swap the heads",
                 heads_.size() - 1, heads_.back()->widths().size());
    if (const auto* mlp = dynamic_cast<const EvalMlpHeadOptions*>(head.options.get());
        mlp && mlp->channels != in)
      base::fail(base::Exit::config, "model.head[{}].channels = {}, but the head reads {}",
                 heads_.size(), mlp->channels, in);
    heads_.push_back(make_head(head, path, in, list));
    in_.push_back(in);
    in = heads_.back()->widths().front();
  }
}

EmbeddingNetwork::Pass EmbeddingNetwork::make_pass() const {
  Pass pass;
  pass.encoder = encoder_.make_pass();
  for (const auto& head : heads_) pass.heads.push_back(head->make_pass());
  return pass;
}

void EmbeddingNetwork::forward(nn::Context& ctx, std::span<const ImageGroup> groups,
                               std::span<const View> outputs, Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  pass.start = ctx.arena.low();
  pass.rows = 0;
  for (const ImageGroup& group : groups) pass.rows += ctx.batch * group.per_example;
  encoder_.place(ctx, groups, pass.encoder);
  View x = encoder_.forward(ctx, groups, heads_.front()->block(), pass.encoder);
  int64_t rows = pass.rows;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const bool last = i + 1 == heads_.size();
    const int64_t next_rows = rows / heads_[i]->joins();
    const View inner = last ? View{} : ctx.arena.save(next_rows * in_[i + 1]);
    heads_[i]->forward(ctx, x, rows, last ? outputs : std::span(&inner, 1),
                       last ? -1 : heads_[i + 1]->block(), *pass.heads[i]);
    x = inner;
    rows = next_rows;
  }
  if (!ctx.keep) ctx.arena.pop_low(pass.start);
}

void EmbeddingNetwork::backward(nn::Context& ctx, std::span<const View> gradients,
                                Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  View d;
  int64_t rows = pass.rows / joins();
  for (size_t i = heads_.size(); i-- > 0;) {
    rows *= heads_[i]->joins();
    const View dx = ctx.arena.temporary(rows * in_[i]);
    heads_[i]->backward(ctx, i + 1 == heads_.size() ? gradients : std::span<const View>(&d, 1), dx,
                        i > 0 ? heads_[i - 1]->block() : encoder_.last_block(), *pass.heads[i]);
    d = dx;
  }
  encoder_.backward(ctx, d, pass.encoder);
  ctx.arena.pop_low(pass.start);
}

std::vector<int> EmbeddingNetwork::blocks() const {
  std::vector<int> out;
  for (int b = encoder_.first_block(); b <= encoder_.last_block(); ++b) out.push_back(b);
  for (const auto& head : heads_) out.push_back(head->block());
  return out;
}

int64_t EmbeddingNetwork::forward_flops(std::span<const ImageGroup> groups) const {
  int64_t rows = 0, flops = encoder_.forward_flops(groups);
  for (const ImageGroup& group : groups) rows += group.per_example;
  for (const auto& head : heads_) {
    flops += rows * head->forward_flops();
    rows /= head->joins();
  }
  return flops;
}

int64_t EmbeddingNetwork::joins() const {
  int64_t product = 1;
  for (const auto& head : heads_) product *= head->joins();
  return product;
}

}  // namespace models
