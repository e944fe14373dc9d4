// SPDX-License-Identifier: Apache-2.0
// Dense, layer norm, MLP, multi-head attention (cappa.md 1.3). Rows are examples * positions, or
// only the computed ones.
#pragma once

#include <span>

#include "base/narrow.hpp"
#include "kernels/attention.hpp"
#include "nn/context.hpp"

namespace nn {

// The number of rows, and their cuts into the context's slices: equal ones (a plain number), or
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

// The rows of sequences. Each has `length` rows, or, if packed, example b has rows [offsets[b],
// offsets[b + 1]) for its first positions.
struct Sequences {
  int64_t length;
  Rows rows;
  View offsets{};  // i32 [batch + 1]
  // f32 [rows of an example, 2, head_dim / 2]: turns queries and keys (kernels/rotate_heads.hpp)
  View rotation{};
};

// The gradient of a residual stream, f32 [rows, width]. On GPUs the norm that adds to this gradient
// also writes `rounded` and `sums` for the layer before, which saves separate ops.
struct StreamGradient {
  View d;
  View rounded{};  // optional [rows, width]: d as an operand of products
  View sums{};     // optional f32 [slices, width]: the sums over rows, the gradient of a bias
  StreamGradient(View plain) : d(plain) {}
  // On GPUs, allocates `rounded` and `sums` as needed, until the current scope ends. Fills neither.
  StreamGradient(Context& ctx, View d, int64_t width, bool with_sums);
  View operand(Context& ctx) const { return rounded.none() ? ctx.operand(d) : rounded; }
  // Fills `rounded` from d.
  void round(Context& ctx) const {
    if (!rounded.none()) ctx.run(kernels::Cast{.y = rounded, .x = d});
  }
};

struct Linear {
  int kernel = -1, bias = -1;  // [in, out], optional [out]
  int64_t in = 0, out = 0;
  bool rows_are_outputs = false;  // the kernel is [out, in], as in torch
  // True: on GPUs, rows of x start at multiples of 16 bytes, as products there want. The widths of
  // other layers already satisfy this.
  bool aligned_rows = false;

  // Returns the elements from a row of x to the next.
  int64_t row_of_x(const Context& ctx) const {
    return aligned_rows && ctx.on_gpu() ? base::round_up(in, 16 / device::size_of(ctx.activation()))
                                        : in;
  }

  // y [rows, out] = x [rows, in] . kernel + bias (+ residual [rows, out]). x, y, dx and dy may be
  // f32 or of the activations' type. A residual and an accumulated dx are f32. gelu [rows, out], if
  // given, becomes GELU(y).
  void forward(Context& ctx, View x, Rows rows, View y, View residual = {}, View gelu = {}) const;
  // dx (if any) = (+=) dy . kernel^T. Computes the parameter gradients as well.
  void backward(Context& ctx, const StreamGradient& dy, View x, Rows rows, View dx,
                Write dx_write = Write::overwrite) const;

  // The parts of forward and backward for slice j, for callers that run products of several layers
  // together. x and d are operands (Context::operand).
  kernels::Gemm product(Context& ctx, View x, Rows rows, int64_t j, View y, View residual = {},
                        View gelu = {}) const;
  // If gelu_of [rows, in] is given, x was GELU(gelu_of), and dx becomes the gradient of gelu_of.
  kernels::Gemm input_product(Context& ctx, View d, Rows rows, int64_t j, View dx, Write dx_write,
                              View gelu_of = {}) const;
  // Rows of one size of images, of several in a pass.
  struct Passed {
    View d;  // an operand
    View x;
    Rows rows;
    View sums{};  // see StreamGradient
  };
  // Computes the gradients of kernel and bias, slice by slice, and within a slice in the order of
  // `all`, because the sums of a slice may not depend on the mesh.
  void parameter_gradients(Context& ctx, std::span<const Passed> all) const;
  void parameter_gradients(Context& ctx, View d, View x, Rows rows, View sums = {}) const {
    const Passed one{d, x, rows, sums};
    parameter_gradients(ctx, {&one, 1});
  }
  // Computes these gradients for `rows` rows of x and d, both operands. Any target may be none.
  using Target = shard::GradientStore::Target;
  void parameter_gradients(Context& ctx, const Target& kernel_target, const Target& bias_target,
                           View d, View x, int64_t rows) const;
};

struct LayerNorm {
  int scale = -1, bias = -1;
  int64_t width = 0;
  float epsilon = 1e-6f;
  struct Saved {
    View mean, rstd;
  };
  Saved make_saved(Context& ctx, bool saved, Rows rows) const {
    return {ctx.make(saved, rows.count), ctx.make(saved, rows.count)};
  }
  void forward(Context& ctx, View x, Rows rows, View y, const Saved& saved) const;
  // Rows of one size of images, of several in a pass.
  struct Passed {
    View dy;  // f32 or of the activations' type
    View x;
    Rows rows;
    Saved saved;
    StreamGradient dx;
  };
  // Fills dx.rounded and dx.sums too. Sums have the same order as in Linear::parameter_gradients.
  void backward(Context& ctx, std::span<const Passed> all, Write dx_write) const;
  void backward(Context& ctx, View dy, View x, Rows rows, const Saved& saved,
                const StreamGradient& dx, Write dx_write) const {
    const Passed one{dy, x, rows, saved, dx};
    backward(ctx, {&one, 1}, dx_write);
  }
};

// The end of a residual branch: y = residual + scale * x, with one trained factor for each channel.
struct LayerScale {
  int scale = -1;
  int64_t width = 0;
  // y may be residual.
  void forward(Context& ctx, View x, Rows rows, View residual, View y) const;
  // dx, of x's type, becomes the gradient of x. That of the residual is dy.
  void backward(Context& ctx, View dy, View x, Rows rows, View dx) const;
};

// Dropout of a whole tensor with `per_example` elements an example. `name` and `layer` choose the
// random numbers.
void dropout(Context& ctx, View y, View x, float rate, const char* name, int layer,
             int64_t per_example);

enum class Gelu { tanh, erf, quick };  // kernels/gelu.hpp, kernels/activation.hpp

struct Mlp {
  Linear hidden, output;
  // If it has a kernel, the layer is SwiGLU: in the place of GELU, the hidden product is multiplied
  // by silu of this one (kernels/swiglu.hpp).
  Linear gate{};
  Gelu gelu = Gelu::tanh;  // only this form is computed together with the products
  float dropout_rate = 0;  // between GELU and the second product
  const char* dropout_name = "";
  int layer = 0;
  struct Saved {
    View before_gelu, after_gelu;  // [rows, hidden]; after dropout, if there is any
    View gate{};                   // [rows, hidden]: the gate's product, if there is one
  };
  Saved make_saved(Context& ctx, bool before, bool after, Rows rows) const {
    const int64_t count = rows.count * hidden.out;
    return {ctx.make_activation(before, count), ctx.make_activation(after, count),
            gated() ? ctx.make_activation(before, count) : View{}};
  }
  // Allocates a hidden layer that no backward pass reads. CPUs apply GELU in place, so that half as
  // many bytes pass through the caches.
  Saved make_unsaved(Context& ctx, Rows rows) const {
    if (ctx.on_gpu()) return make_saved(ctx, false, false, rows);
    const View h = ctx.make_activation(false, rows.count * hidden.out);
    return {h, h, gated() ? ctx.make_activation(false, h.count) : View{}};
  }
  // Allocates the gradient of x. GPUs round it if one product writes it.
  View make_input_gradient(Context& ctx, int64_t count) const {
    return gated() ? ctx.arena.temporary(count) : ctx.make_norm_gradient(count);
  }
  // Fills saved and y.
  void forward(Context& ctx, View x, Rows rows, const Saved& saved, View y, View residual) const;
  // Fills saved alone.
  void forward_hidden(Context& ctx, View x, Rows rows, const Saved& saved) const;
  // Computes after_gelu again from before_gelu, with the same bits.
  void activate(Context& ctx, Rows rows, const Saved& saved) const;
  // Overwrites dx.
  void backward(Context& ctx, const StreamGradient& dy, View x, Rows rows, const Saved& saved,
                View dx) const;

 private:
  bool drops(const Context& ctx) const { return ctx.train && dropout_rate > 0; }
  bool gated() const { return gate.kernel >= 0; }
  // True if the products compute GELU and its derivative.
  bool fused() const { return gelu == Gelu::tanh && !gated(); }
  // True if something comes between the two products that they cannot do themselves.
  bool between_products(const Context& ctx) const { return drops(ctx) || !fused(); }
  // Applies dropout to the hidden layer h in place. All rows of an example must be present.
  void drop(Context& ctx, View h, Rows rows) const;
  void forward_gated(Context& ctx, View x, Rows rows, const Saved& saved) const;
  void backward_gated(Context& ctx, View dh, View x, Rows rows, const Saved& saved, View dx) const;
};

class JoinedLinear;  // joined_linear.hpp

struct Attention {
  Linear query, key, value, output;
  int64_t heads = 1;
  float weight_dropout = 0;
  const char* dropout_name = "";
  int layer = 0;
  // On GPUs one product computes keys and values, and in self-attention queries too: they are
  // columns of one matrix. If the pass is cut into slices, they are separate matrices.
  struct Saved {
    View q, k, v, o, lse;
    View joined{};  // [rows, columns of q (in self-attention), k and v], or none
  };
  // self: forward_heads will get the same rows as x and as memory.
  Saved make_saved(Context& ctx, bool saved, bool self, const Sequences& queries,
                   const Sequences& keys) const;
  // Allocates the gradient of x for self-attention. GPUs round it if one product writes it.
  View make_input_gradient(Context& ctx, int64_t count) const {
    return joins(ctx) ? ctx.make_norm_gradient(count) : ctx.arena.temporary(count);
  }
  // Computes everything but the output projection and fills saved. Self-attention: memory = x.
  void forward_heads(Context& ctx, View x, const Sequences& queries, View memory,
                     const Sequences& keys, kernels::Mask mask, View flags,
                     const Saved& saved) const;
  void forward_output(Context& ctx, const Saved& saved, Rows rows, View y, View residual) const {
    output.forward(ctx, saved.o, rows, y, residual);
  }
  // Overwrites dx, and writes dmemory with memory_write. Self-attention: memory and dmemory are
  // none, and dx contains both gradients.
  void backward(Context& ctx, const StreamGradient& dy, View x, const Sequences& queries,
                View memory, const Sequences& keys, kernels::Mask mask, View flags,
                const Saved& saved, View dx, View dmemory, Write memory_write) const;

 private:
  bool joins(const Context& ctx) const { return ctx.on_gpu() && ctx.slices == 1; }
  JoinedLinear joined(bool self) const;
  // Turns queries or keys, or with `backward` their gradients, if their positions are rotary.
  void rotate(Context& ctx, View x, const Sequences& of, int64_t stride, bool backward) const;
  // Allocates q, k and v, or their gradients.
  Saved make_heads(Context& ctx, bool saved, bool self, const Sequences& queries,
                   const Sequences& keys) const;
  kernels::AttentionShape shape(Context& ctx, bool self, const Sequences& queries,
                                const Sequences& keys, kernels::Mask mask, View flags) const;
};

}  // namespace nn
