// SPDX-License-Identifier: Apache-2.0
#include "decode_case.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace golden {

step::MakePass make_decode_pass(const CaseFile& predict) {
  return [steps = predict.shape("decode/tokens").at(1)](const models::Model& model) {
    return std::make_unique<DecodePass>(dynamic_cast<const models::Cappa&>(model), steps);
  };
}

void compare_decoding(const CaseFile& predict, const std::vector<float>& images,
                      step::Engine& engine,
                      const std::function<double(const std::string& set)>& tolerance,
                      Report& report) {
  const models::CappaOptions& o = dynamic_cast<models::Cappa&>(engine.model()).options();
  const Shape shape = predict.shape("decode/tokens");
  const int64_t n = shape.at(0), steps = shape.at(1), batch = engine.geometry().micro_batch,
                pixels = o.height() * o.width() * 3, width = o.decoder_width(),
                row = steps * o.vocab_size;
  const std::vector<int32_t> tokens = predict.ints("decode/tokens", shape);
  const std::vector<float> logits = predict.floats("decode/logits", {n, steps, o.vocab_size});
  auto& pass = dynamic_cast<DecodePass&>(*engine.find_pass("decode"));
  for (int64_t first = 0; first < n; first += batch) {
    const int64_t count = std::min(batch, n - first);
    std::vector<int32_t> fed(size_t(batch * steps));
    std::copy_n(tokens.begin() + first * steps, count * steps, fed.begin());
    DecodePass::Decoded got;
    engine.forward(
        pass,
        [&](const models::Inputs& into) {
          std::copy_n(images.begin() + first * pixels, count * pixels, into.at("image").host.f32());
        },
        [&](nn::Context& ctx, const models::Inputs& inputs) { got = pass.run(ctx, inputs, fed); });
    report.compare("cached logits", "decode/logits", got.logits.data(), logits.data() + first * row,
                   count * row, tolerance("decode/logits"));
    for (size_t layer = 0; layer < got.k.size(); ++layer)
      for (bool keys : {true, false}) {
        const std::string set = fmt::format("decode/cache/decoder/EncDecBlock{}/SelfAttn/cached_{}",
                                            layer, keys ? "key" : "value");
        const Shape cache = predict.shape(set);
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
