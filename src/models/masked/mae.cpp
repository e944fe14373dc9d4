// SPDX-License-Identifier: Apache-2.0
#include "models/masked/mae.hpp"

#include <algorithm>

#include "models/trunks/embed_pass.hpp"

namespace models {

using device::DType;

Mae::Mae(const MaeOptions& options, const MemoryOptions& memory)
    : options_(options),
      trunk_(options.trunk.keys(), options.height(), options.width(), memory.recompute, list_),
      decoder_(options, trunk_.width(), memory.recompute, list_) {}

TrunkWeights Mae::trunk_weights() const {
  TrunkWeights weights = trunk_.trunk().weights();
  weights.decoder = VitFacts{.root = "decoder/",
                             .heads = options_.decoder.heads,
                             .patches = options_.patches(),
                             .learned_positions = false,
                             .fixed_positions = decoder_.patch_positions()};
  return weights;
}

InputSpec Mae::image_input() const {
  return {"image", bytes_ ? DType::u8 : DType::f32, options_.height() * options_.width() * 3,
          "image"};
}

// The tables of KeptPatches, then those of PixelDecoder::Tables, then the rows of targets among all
// patches.
std::vector<InputSpec> Mae::inputs() const {
  const int64_t patches = options_.patches(), kept = options_.kept(), masked = options_.masked();
  return {image_input(),
          {"token_sources", DType::i32, 1 + kept},
          {"token_of_patch", DType::i32, patches},
          {"place_sources", DType::i32, 1 + patches},
          {"place_of_token", DType::i32, 1 + kept},
          {"masked_places", DType::i32, masked},
          {"masked_patches", DType::i32, masked}};
}

std::map<std::string, FeatureSpec> Mae::features() const {
  return {{"image",
           {.type = DType::f32,
            .shape = {options_.height(), options_.width(), 3},
            .key = "model.image_size",
            .pixels = true}}};
}

void Mae::take_bytes(const kernels::PixelRange& range) {
  bytes_ = true;
  range_ = range;
  trunk_.trunk().take_bytes(range);
}

std::vector<Measure> Mae::measures() const {
  return {{"loss", "1",
           "squared error of the pixels of masked patches of this step's batch, before the update: "
           "mean over pixels, patches and examples"}};
}

std::vector<Tap> Mae::taps() const {
  return trunk_.trunk().taps(options_.height(), options_.width());
}

std::unique_ptr<EmbedPass> Mae::make_embed_pass(const std::vector<std::string>& taps) const {
  return make_trunk_embed_pass(trunk_, image_input(), options_.height(), options_.width(), taps);
}

int64_t Mae::forward_flops() const {
  return vit().flops_of_some(options_.kept()) + decoder_.forward_flops();
}

int64_t Mae::input_flops() const {
  const ImageGroup group = images();
  return trunk_.trunk().input_flops({&group, 1});
}

// ---------------------------------------------------------------- masks

// The patches with the smallest keys.
std::vector<int32_t> Mae::draw(int64_t examples, int64_t first_position,
                               base::Stream stream) const {
  const int64_t patches = options_.patches(), kept = options_.kept();
  std::vector<int32_t> out;
  std::vector<std::pair<uint32_t, int32_t>> keys(static_cast<size_t>(patches));
  for (int64_t b = 0; b < examples; ++b) {
    const base::Stream mine = stream.sub(uint64_t(first_position + b));
    for (int64_t p = 0; p < patches; ++p) keys[size_t(p)] = {mine.bits(uint64_t(p)), int32_t(p)};
    std::nth_element(keys.begin(), keys.begin() + kept - 1, keys.end());
    for (int64_t k = 0; k < kept; ++k) out.push_back(keys[size_t(k)].second);
    std::sort(out.end() - kept, out.end());
  }
  return out;
}

void Mae::prepare(std::span<const int32_t> kept, const Inputs& into) const {
  const int64_t patches = options_.patches(), each = options_.kept(), masked = options_.masked(),
                n = int64_t(kept.size()) / each, tokens = n * (1 + each);
  auto table = [&](const char* name) {
    const View v = into.at(name).host;
    CHECK(v.count % n == 0, "{} examples in a table of {} numbers", n, v.count);
    return v.i32();
  };
  int32_t *sources = table("token_sources"), *token_of = table("token_of_patch"),
          *place_sources = table("place_sources"), *place_of = table("place_of_token"),
          *masked_places = table("masked_places"), *masked_patches = table("masked_patches");
  for (int64_t b = 0; b < n; ++b) {
    const int64_t token = b * (1 + each), place = b * (1 + patches);
    sources[token] = int32_t(n * patches);  // the class token lies behind all patches
    place_of[token] = int32_t(place);
    place_sources[place] = int32_t(token);
    int64_t k = 0, m = b * masked;
    for (int64_t p = 0; p < patches; ++p) {
      const bool keeps = k < each && kept[size_t(b * each + k)] == p;
      const int64_t row = token + 1 + k;
      token_of[b * patches + p] = keeps ? int32_t(row) : -1;
      place_sources[place + 1 + p] = int32_t(keeps ? row : tokens);  // the mask token lies behind
      if (keeps) {
        sources[row] = int32_t(b * patches + p);
        place_of[row] = int32_t(place + 1 + p);
        ++k;
      } else {
        CHECK(m < (b + 1) * masked, "kept patches are not ascending");
        masked_places[m] = int32_t(place + 1 + p);
        masked_patches[m++] = int32_t(b * patches + p);
      }
    }
  }
}

Registered mae_row() {
  return {"mae", "a ViT that encodes some patches of an image and predicts the others' pixels",
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<MaeOptions>()); },
          [](const config::Table::Variant& options,
             const MemoryOptions& memory) -> std::unique_ptr<Model> {
            return std::make_unique<Mae>(dynamic_cast<const MaeOptions&>(options), memory);
          }};
}

}  // namespace models
