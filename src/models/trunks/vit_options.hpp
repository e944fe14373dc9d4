// SPDX-License-Identifier: Apache-2.0
// Keys of a ViT.
#pragma once

#include <string>

#include "config/table.hpp"
#include "models/trunks/vit.hpp"

namespace models {

struct EncoderOptions {
  std::string variant;  // for example "B/16": sets patch, depth, width, mlp, heads by default
  int64_t patch = 16, depth = 12, width = 768, mlp = 3072, heads = 12;
  double dropout = 0;
  nn::Gelu gelu = nn::Gelu::tanh;
  bool swiglu = false;
  double norm_epsilon = 1e-6;
  double layer_scale = 0;
  int64_t patch_width = 0;  // for patches that are not square, 0 = patch; set by tests, not a key
  void bind(config::Table& t);

  int64_t patch_columns() const { return patch_width ? patch_width : patch; }
};

inline constexpr std::pair<const char*, nn::Gelu> kGeluNames[] = {
    {"tanh", nn::Gelu::tanh}, {"erf", nn::Gelu::erf}, {"quick", nn::Gelu::quick}};

// How a ViT learns the place of a patch: by a trained table, by a fixed one, by MAE's, or by
// rotary2d.
enum class Positions { learned, fixed, mae, rotary };

inline constexpr std::pair<const char*, Positions> kPositionNames[] = {
    {"learn", Positions::learned},
    {"sincos2d", Positions::fixed},
    {"sincos2d_mae", Positions::mae},
    {"rope", Positions::rotary}};

inline constexpr std::pair<const char*, Pool> kPoolNames[] = {
    {"gap", Pool::gap}, {"map", Pool::map}, {"tok", Pool::tok}};

// Keys of trunk.kind = "vit".
struct VitTrunkOptions : TrunkKeys {
  EncoderOptions size;
  Positions positions = Positions::learned;  // posemb
  Pool pool = Pool::gap;
  int64_t registers = 0;
  bool pre_norm = false;
  void bind(config::Table& t) override;
  std::string image_problem(int64_t height, int64_t width) const override;
  std::string token_problem() const override;
  std::unique_ptr<Trunk> make(int64_t height, int64_t width, Recompute recompute,
                              ParameterList& list) const override;
  PoolingConfig pooling() const override {
    return {.pool = pool,
            .mlp = size.mlp,
            .heads = size.heads,
            .gelu = size.gelu,
            .norm_epsilon = float(size.norm_epsilon)};
  }
};

// Returns the configuration of a ViT on images of that size.
VitConfig vit_config(const EncoderOptions& options, int64_t image_height, int64_t image_width,
                     bool learned_positions);

}  // namespace models
