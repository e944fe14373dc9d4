// SPDX-License-Identifier: Apache-2.0
// Dense, layer norm, MLP, multi-head attention (cappa.md 1.3). Rows are examples * positions, or
// what of them is computed.
#pragma once

#include "kernels/attention.hpp"
#include "nn/context.hpp"

namespace nn {

// How many rows, and how they are cut into the context's slices: equally (a plain number), or at
// cuts[slices + 1].
struct Rows {
  int64_t count;
  const int64_t* cuts = nullptr;
  Rows(int64_t equal) : count(equal) {}
  Rows(const std::vector<int64_t>& at) : count(at.back()), cuts(at.data()) {}
  int64_t begin(const Context& ctx, int64_t j) const {
    return cuts ? cuts[j] : count / ctx.slices * j;
  }
  int64_t size(const Context& ctx, int64_t j) const { return begin(ctx, j + 1) - begin(ctx, j); }
  View slice(const Context& ctx, int64_t j, View v, int64_t columns) const {
    return v.none() ? v : v.slice(begin(ctx, j) * columns, size(ctx, j) * columns);
  }
};

// The rows of sequences: `length` each, or, packed, rows [offsets[b], offsets[b + 1]) for example
// b, its first ones.
struct Sequences {
  int64_t length;
  Rows rows;
  View offsets{};  // i32 [batch + 1]
};

struct Linear {
  int kernel = -1, bias = -1;  // [in, out], optional [out]
  int64_t in = 0, out = 0;

  // y [rows, out] = x [rows, in] . kernel + bias (+ residual [rows, out]). x, y, dx and dy may be
  // f32 or activations; a residual is f32, and so is what is added to. gelu [rows, out], if given,
  // becomes GELU(y).
  void forward(Context& ctx, View x, Rows rows, View y, View residual = {}, View gelu = {}) const;
  // dx (if any) = (+=) dy . kernel^T; parameter gradients
  void backward(Context& ctx, View dy, View x, Rows rows, View dx,
                Write dx_write = Write::overwrite) const;

  // Of these the parts, for slice j, where products of several layers run together; x and d are
  // operands (Context::operand).
  kernels::Gemm product(Context& ctx, View x, Rows rows, int64_t j, View y, View residual = {},
                        View gelu = {}) const;
  // If gelu_of [rows, in] is given, x was GELU of it, and dx becomes the gradient of that.
  kernels::Gemm input_product(Context& ctx, View d, Rows rows, int64_t j, View dx, Write dx_write,
                              View gelu_of = {}) const;
  // Of kernel and bias, of the dy that products take.
  void parameter_gradients(Context& ctx, View d, View x, Rows rows) const;
  // For `rows` rows, x being an operand too: written or added to the targets, of which any may be
  // none.
  using Target = shard::GradientStore::Target;
  void parameter_gradients(Context& ctx, const Target& of_kernel, const Target& of_bias, View d,
                           View x, int64_t rows) const;
};

struct LayerNorm {
  int scale = -1, bias = -1;
  int64_t width = 0;
  struct Saved {
    View mean, rstd;
  };
  Saved make_saved(Context& ctx, bool saved, Rows rows) const {
    return {ctx.make(saved, rows.count), ctx.make(saved, rows.count)};
  }
  void forward(Context& ctx, View x, Rows rows, View y, const Saved& saved) const;
  void backward(Context& ctx, View dy, View x, Rows rows, const Saved& saved, View dx,
                Write dx_write) const;
};

// Dropout of a whole tensor of `per_example` elements an example; layers are told apart by `name`.
void dropout(Context& ctx, View y, View x, float rate, const char* name, int layer,
             int64_t per_example);

struct Mlp {
  Linear hidden, output;
  float dropout_rate = 0;  // between GELU and the second product
  const char* dropout_name = "";
  int layer = 0;
  struct Saved {
    View before_gelu, after_gelu;  // [rows, hidden]; after dropout, if there is any
  };
  Saved make_saved(Context& ctx, bool before, bool after, Rows rows) const {
    return {ctx.make_activation(before, rows.count * hidden.out),
            ctx.make_activation(after, rows.count * hidden.out)};
  }
  // fills saved
  void forward(Context& ctx, View x, Rows rows, const Saved& saved, View y, View residual) const;
  // that alone
  void forward_hidden(Context& ctx, View x, Rows rows, const Saved& saved) const;
  // after_gelu anew from before_gelu, the same bits.
  void activate(Context& ctx, Rows rows, const Saved& saved) const;
  // dx is overwritten
  void backward(Context& ctx, View dy, View x, Rows rows, const Saved& saved, View dx) const;

 private:
  bool drops(const Context& ctx) const { return ctx.train && dropout_rate > 0; }
  // Of the hidden layer, in place; all rows of an example are there.
  void drop(Context& ctx, View h, Rows rows) const;
};

struct Attention {
  Linear query, key, value, output;
  int64_t heads = 1;
  float weight_dropout = 0;
  const char* dropout_name = "";
  int layer = 0;
  struct Saved {
    View q, k, v, o, lse;
  };
  Saved make_saved(Context& ctx, bool saved, const Sequences& queries, const Sequences& keys) const;
  // Everything but the output projection: fills saved. Self-attention: memory = x.
  void forward_heads(Context& ctx, View x, const Sequences& queries, View memory,
                     const Sequences& keys, kernels::Mask mask, View flags,
                     const Saved& saved) const;
  void forward_output(Context& ctx, const Saved& saved, Rows rows, View y, View residual) const {
    output.forward(ctx, saved.o, rows, y, residual);
  }
  // dx overwritten; dmemory written with memory_write, or, for self-attention (memory none), part
  // of dx.
  void backward(Context& ctx, View dy, View x, const Sequences& queries, View memory,
                const Sequences& keys, kernels::Mask mask, View flags, const Saved& saved, View dx,
                View dmemory, Write memory_write) const;

 private:
  kernels::AttentionShape shape(Context& ctx, const Sequences& queries, const Sequences& keys,
                                kernels::Mask mask, View flags) const;
};

}  // namespace nn
