// The encoder: a ViT without class token or pooling head (cappa.md 1.4). Output: normalised tokens [batch * patches, width].
#pragma once

#include "kernels/patchify.hpp"
#include "models/cappa_options.hpp"
#include "models/model.hpp"
#include "models/parameter_list.hpp"

namespace models {

// Position table of fixed sines and cosines on a height x width grid (cappa.md 1.4): [height * width, columns].
std::vector<float> sincos2d(int64_t height, int64_t width, int64_t columns);

class Vit {
 public:
  Vit(const CappaOptions& options, Recompute recompute, ParameterList& list);

  // Puts what ops read and the host has made where they read it; it stays there until the arena is popped.
  void place(nn::Context& ctx) { table_there_ = positions_ < 0 ? ctx.table(true, table_) : View{}; }
  View forward(nn::Context& ctx, View image, int next_block);            // returns encoded
  void take_bytes(const kernels::PixelRange& range) { bytes_ = range; }  // what bytes in images stand for
  // d: gradient of encoded [batch * patches, width], overwritten on the way.
  void backward(nn::Context& ctx, View d);
  int64_t forward_flops() const;
  int64_t input_flops() const { return 2 * patches_ * stem_.in * width_; }
  bool drops() const { return dropout_ > 0; }
  int last_block() const { return norm_block_; }

 private:
  struct Block {
    int index;
    nn::LayerNorm norm0, norm1;
    nn::Attention attention;
    nn::Mlp mlp;
  };
  struct Saved {
    device::Arena::Mark mark{};      // before what this block saved
    View x;                          // its input
    View n0, a, n1;
    nn::LayerNorm::Saved norm0, norm1;
    nn::Attention::Saved attention;
    nn::Mlp::Saved mlp;
  };
  void forward_block(nn::Context& ctx, const Block& block, Saved& s, View y, bool save) const;
  void backward_of_block(nn::Context& ctx, const Block& block, Saved& s, View d) const;

  CappaOptions options_;
  Recompute recompute_;
  int64_t patches_, width_;
  float dropout_;
  kernels::PixelRange bytes_{};
  int stem_block_ = 0, norm_block_ = 0;
  nn::Linear stem_;
  int positions_ = -1;               // parameter, or
  std::vector<float> table_;         // fixed table
  std::vector<Block> blocks_;
  nn::LayerNorm norm_;

  View table_there_, patch_rows_, last_;  // of the pass under way
  device::Arena::Mark start_{}, norm_mark_{};
  std::vector<Saved> saved_;
  nn::LayerNorm::Saved norm_saved_;
};

}  // namespace models
