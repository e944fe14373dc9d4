// An image file of any format, through the ops that follow in real decks.
#include <algorithm>
#include <cstring>

#include "data/pipeline.hpp"
#include "targets.hpp"

namespace fuzz {
namespace {

data::Pipeline pipeline(std::string_view text) { return {text, {{"image", data::FieldSpec::encoded()}}, {}, 3}; }

// Memory is not cleared and comes from a pool, so pixels that nobody writes show what was there before.
void soil_pool(int value, size_t bytes) {
  data::Bytes a(bytes), b(bytes);
  std::memset(a.data(), value, bytes), std::memset(b.data(), value, bytes);
}

}  // namespace

void image(std::string_view input) {
  static const data::Pipeline pipelines[] = {
      pipeline("decode | resize(16) | value_range(-1, 1)"),
      pipeline("decode(precise=True) | resize_small(9) | central_crop(8)"),
      pipeline("decode | inception_crop(12, method='area') | flip_lr | vgg_value_range"),
      pipeline("decode | resize([7, 11], method='lanczos3', antialias=True)"),
      pipeline("decode | resize_long(13, method='bicubic')"),
  };
  const data::Pipeline& ops = pipelines[input.size() % std::size(pipelines)];
  data::Array results[2];
  for (int turn : {0, 1}) {
    data::Sample sample;
    data::Bytes file(input.size());
    if (!input.empty()) std::memcpy(file.data(), input.data(), input.size());
    sample["image"] = std::move(file);
    soil_pool(turn ? 0x5a : 0xa5, 64 * 1024);
    ops.apply(sample, 5);
    expect(data::mismatch(ops.spec().at("image"), sample.at("image")).empty(), "an image is not what its spec says");
    results[turn] = std::move(std::get<data::Array>(sample.at("image")));
  }
  expect(results[0].shape == results[1].shape &&
             std::memcmp(results[0].bytes.data(), results[1].bytes.data(), results[0].bytes.size()) == 0,
         "an image depends on what was in memory");
}

}  // namespace fuzz
