// The caption decoder (cappa.md 1.5): token and position embedding, blocks of self-attention, cross-attention and MLP, all pre-norm.
// Attention projections never have biases; norms and MLPs have them with decoder.bias.
#pragma once

#include "models/cappa_options.hpp"
#include "models/model.hpp"
#include "models/parameter_list.hpp"
#include "models/text_rows.hpp"

namespace models {

class CaptionDecoder {
 public:
  CaptionDecoder(const CappaOptions& options, Recompute recompute, ParameterList& list);

  struct Memory {
    View encoded;                    // [batch * patches, encoder width]
    View flags;                      // u8 [batch], 1 = causal; none: all causal
  };
  // What a pass computes; both hold until its backward is over. `rows`: in all layers but the last, where they serve as
  // keys and values only; of `last`, which are among them, everything.
  struct Selection {
    TextRows rows, last;
    View text_index{}, last_index{};  // of the rows in the whole text; of the last ones in the rows
    // Puts what ops read of it where they do; it stays there until the arena is popped.
    void place(nn::Context& ctx);

   private:
    std::vector<int32_t> index_;      // reused
  };
  // Whether training needs all rows: dropout numbers them.
  bool drops() const { return dropout_ > 0; }
  // As Vit::place.
  void place(nn::Context& ctx) { table_there_ = positions_ < 0 ? ctx.table(true, position_table_) : View{}; }
  // ids i32 [batch * length]; returns [selection.last.count(), width], before the final norm.
  View forward(nn::Context& ctx, View ids, const Memory& memory, const Selection& selection, int next_block);
  // d: gradient of forward's result, overwritten on the way; d_encoded is overwritten.
  void backward(nn::Context& ctx, View d, View d_encoded, int next_block);
  int64_t forward_flops() const;
  int first_block() const { return embed_block_; }
  int last_block() const { return blocks_.back().index; }

 private:
  struct Block {
    int index;
    int layer;
    nn::LayerNorm norm1, norm2, norm3;
    nn::Attention self, cross;
    nn::Mlp mlp;
  };
  struct Saved {
    device::Arena::Mark mark{};
    View t;                          // its input
    View n1, n1_last, x, n2, y, n3;  // n1_last: n1 of the rows that go on, which are all but in the last layer
    nn::LayerNorm::Saved norm1, norm2, norm3;
    nn::Attention::Saved self, cross;
    nn::Mlp::Saved mlp;
  };
  bool is_last(const Block& b) const { return &b == &blocks_.back(); }
  void forward_block(nn::Context& ctx, const Block& block, Saved& s, View out, bool save) const;
  void backward_of_block(nn::Context& ctx, const Block& block, Saved& s, View d, View d_all, View d_encoded,
                         Write encoded_write) const;
  void pick_last(nn::Context& ctx, View from, View to) const;
  kernels::Mask mask() const { return memory_.flags.none() ? kernels::Mask::causal : kernels::Mask::per_example; }

  CappaOptions options_;
  Recompute recompute_;
  int64_t patches_, width_, length_;
  float dropout_;
  int embed_block_ = 0, table_ = -1, positions_ = -1;
  std::vector<float> position_table_;
  std::vector<Block> blocks_;

  Memory memory_;                    // of the pass under way
  const Selection* selection_ = nullptr;
  View ids_, table_there_;
  device::Arena::Mark start_{};
  std::vector<Saved> saved_;
};

}  // namespace models
