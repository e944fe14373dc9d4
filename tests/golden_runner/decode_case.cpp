// SPDX-License-Identifier: Apache-2.0
#include "decode_case.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace golden {

namespace {

// Returns the shape [images, steps] of the tokens.
Shape tokens_shape(const CaseFile& predict) {
  const Shape shape = predict.shape("decode/tokens");
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
    predict.fail("decode/tokens", "is no table [images, steps]");
  return shape;
}

}  // namespace

step::MakePass make_decode_pass(const CaseFile& predict) {
  return [steps = tokens_shape(predict)[1]](const models::Model& model) {
    return std::make_unique<DecodePass>(dynamic_cast<const models::Cappa&>(model), steps);
  };
}

void compare_decoding(const CaseFile& predict, const std::vector<float>& images,
                      step::Engine& engine,
                      const std::function<double(const std::string& set)>& tolerance,
                      Report& report) {
  const models::CappaOptions& o = dynamic_cast<const models::Cappa&>(engine.model()).options();
  const Shape shape = tokens_shape(predict);
  const int64_t n = shape[0], steps = shape[1], batch = engine.geometry().micro_batch,
                pixels = o.height() * o.width() * 3, width = o.decoder_width(),
                row = steps * o.vocab_size;
  if (n * pixels > int64_t(images.size()))
    predict.fail("decode/tokens", "has more rows than the case has images");
  if (steps > o.length())
    predict.fail("decode/tokens",
                 fmt::format("has {} steps; the model has {} positions", steps, o.length()));
  const std::vector<int32_t> tokens = predict.ints("decode/tokens", shape);
  const std::vector<float> logits = predict.floats("decode/logits", {n, steps, o.vocab_size});
  auto& pass = engine.pass<DecodePass>(kDecode);
  for (int64_t first = 0; first < n; first += batch) {
    const int64_t count = std::min(batch, n - first);
    std::vector<int32_t> fed(size_t(batch * steps));
    std::copy_n(tokens.begin() + first * steps, count * steps, fed.begin());
    std::vector<float> shown(size_t(batch * pixels));
    std::copy_n(images.begin() + first * pixels, count * pixels, shown.begin());
    const models::HostBatch host{
        .features = {{"image", device::view(shown.data(), int64_t(shown.size()))}},
        .examples = batch,
        .first_position = first};
    DecodePass::Decoded got;
    engine.forward(kDecode, host, [&](nn::Context& ctx, const models::Inputs& inputs) {
      got = pass.run(ctx, inputs, fed);
    });
    report.compare("cached logits", "decode/logits", got.logits.data(), logits.data() + first * row,
                   count * row, tolerance("decode/logits"));
    for (size_t layer = 0; layer < got.k.size(); ++layer)
      for (bool keys : {true, false}) {
        const std::string set = fmt::format("decode/cache/decoder/EncDecBlock{}/SelfAttn/cached_{}",
                                            layer, keys ? "key" : "value");
        if (!predict.has(set)) continue;
        const Shape cache = predict.shape(set);  // [n, positions of the model, heads, head width]
        if (cache.size() != 4 || cache[0] != n || cache[1] < steps || cache[2] * cache[3] != width)
          predict.fail(set,
                       fmt::format("has the shape {}, not [{}, at least {}, heads of {} in all]",
                                   text_of(cache), n, steps, width));
        const std::vector<float> want = predict.floats(set, cache);
        const std::vector<float>& mine = keys ? got.k[layer] : got.v[layer];
        for (int64_t b = 0; b < count; ++b)
          report.compare("caches", set, mine.data() + b * steps * width,
                         want.data() + (first + b) * cache.at(1) * width, steps * width,
                         tolerance(set));
      }
  }
}

}  // namespace golden
