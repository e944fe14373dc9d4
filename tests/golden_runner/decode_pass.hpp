// SPDX-License-Identifier: Apache-2.0
// A pass that decodes given tokens, position by position, with caches (cappa.md 2.2). It returns
// logits and caches, which the product's passes do not return.
#pragma once

#include <memory>
#include <vector>

#include "kernels/bf16_value.hpp"
#include "models/captions/cappa.hpp"
#include "models/decoders/caption_steps.hpp"

namespace golden {

class DecodePass : public models::ForwardPass {
 public:
  DecodePass(const models::Cappa& model, int64_t steps)
      : model_(model),
        length_(steps),
        encoder_(model.encoder().make_pass()),
        steps_(model.decoder(), model.head()) {}
  std::string name() const override { return "decode"; }
  std::vector<models::InputSpec> inputs() const override { return {model_.inputs().front()}; }
  void plan(nn::Context& ctx, const models::Inputs& inputs) override {
    std::vector<int32_t> tokens(size_t(ctx.batch * length_));
    run(ctx, inputs, tokens);
  }

  struct Decoded {
    std::vector<float> logits;             // [batch, steps, vocabulary]
    std::vector<std::vector<float>> k, v;  // by layer: [batch, steps, width]
  };
  // tokens [batch, steps]: the token that is fed at each step.
  Decoded run(nn::Context& ctx, const models::Inputs& inputs, const std::vector<int32_t>& tokens) {
    const device::Arena::Mark start = ctx.arena.low();
    const models::ImageGroup images = model_.images(inputs.at("image").device);
    model_.encoder().place(ctx, {&images, 1}, *encoder_);
    const models::Tokens& encoded =
        model_.encoder().forward(ctx, {&images, 1}, model_.decoder().first_block(), *encoder_);
    steps_.begin(ctx, encoded.of_one_size(), ctx.batch, length_);
    const int64_t n = ctx.batch, columns = steps_.vocabulary();
    const device::View logits = ctx.arena.save(n * columns);
    Decoded out;
    out.logits.resize(size_t(n * length_ * columns));
    std::vector<float> of_step(size_t(n * columns));
    for (int64_t t = 0; t < length_; ++t) {
      models::CaptionSteps::Rows rows;
      for (int64_t b = 0; b < n; ++b) {
        rows.ids.push_back(tokens[size_t(b * length_ + t)]);
        rows.images.push_back(int32_t(b));
        for (int64_t p = 0; p <= t; ++p) rows.past.push_back(int32_t(p * n + b));
      }
      steps_.step(ctx, t, rows, logits);
      device::download(of_step.data(), logits, ctx.queue);
      for (int64_t b = 0; b < n; ++b)
        std::copy_n(of_step.begin() + b * columns, columns,
                    out.logits.begin() + (b * length_ + t) * columns);
    }
    for (size_t i = 0; i < size_t(model_.options().decoder.depth); ++i) {
      out.k.push_back(by_image(ctx, steps_.cache(i).k));
      out.v.push_back(by_image(ctx, steps_.cache(i).v));
    }
    ctx.arena.pop_low(start);
    return out;
  }

 private:
  // Returns a cache [steps, batch, width] as [batch, steps, width].
  std::vector<float> by_image(nn::Context& ctx, device::View cache) const {
    std::vector<float> out(size_t(cache.count));
    const int64_t n = ctx.batch, width = cache.count / length_ / n;
    device::read_on_host(cache, ctx.queue, [&](device::View there) {
      for (int64_t i = 0; i < there.count; ++i) {
        const float x = there.type == device::DType::f32
                            ? there.f32()[i]
                            : kernels::loops::to_float(kernels::loops::Bf16{there.bf16()[i]});
        const int64_t t = i / (n * width), b = i / width % n;
        out[size_t((b * length_ + t) * width + i % width)] = x;
      }
    });
    return out;
  }

  const models::Cappa& model_;
  int64_t length_;
  std::unique_ptr<models::Trunk::Pass> encoder_;
  models::CaptionSteps steps_;
};

}  // namespace golden
