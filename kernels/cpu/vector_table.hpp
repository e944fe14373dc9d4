// SPDX-License-Identifier: Apache-2.0
// Tables of the inner loops that are compiled once per instruction set. On x86-64 the build targets
// x86-64-v3, and vector_table chooses the loops for wider instructions at run time. Other
// processors have one table. Portable tables give the same bits on every CPU, but for the sign and
// the digits of NaN, which processors choose. All of them have 16 lanes and call no library.
#pragma once

#include <cstdint>
#include <vector>

#include "device/types.hpp"
#include "kernels/cpu/batch_norm_rows.hpp"
#include "kernels/cpu/direct_convolution_rows.hpp"
#include "kernels/cpu/pool_rows.hpp"
#include "kernels/cpu/product_tile.hpp"
#include "kernels/cpu/weight_gradient_rows.hpp"

namespace kernels {

struct SoftmaxRow {
  float* logits;  // [columns]; written if gradient
  int64_t columns;
  int64_t label;  // if outside [0, columns), the target is `off` everywhere
  float on, off;  // target at the label, and elsewhere
  bool gradient;
  float scale;
  const float* next;  // the row that the thread computes next; null: none
};

template <class T>
struct LayerNormRows {  // forward
  T* y;
  float *mean, *rstd;
  const float *x, *scale, *bias;  // bias may be null
  int64_t rows, columns;
  float eps;
};

struct LayerNormGradientRows {
  float *dx, *dscale, *dbias;  // each may be null; dscale and dbias are added to
  const float *dy, *x, *mean, *rstd, *scale;
  int64_t rows, columns;
  bool add_dx;
};

template <class T>
struct DropoutRange {
  T* y;
  const T* x;
  int64_t count;
  uint64_t first;  // draw index of x[0]
  uint64_t key;    // of the stream
  float rate;
};

// One (batch, head) of attention. Rows of a tensor are `stride` elements apart. There are many
// members because each operand of the forward and the backward pass has one; the sizes are shared.
template <class T>
struct AttentionHead {
  const T *q, *k, *v;
  T* o;
  float* lse;       // forward: may be null; backward: read
  const T* d_o;     // backward
  T *dq, *dk, *dv;  // backward
  int64_t query_length, key_length, head_dim, stride;
  // Distances to the rows of a later head to prefetch, in elements; 0: none.
  int64_t next_queries, next_keys;
  bool causal;
  float dropout;
  uint64_t key, first_draw;  // stream and draw index of weight (0, 0)
};

// One head of one query that attends to rows of a cache. Rows are `stride` elements apart.
template <class T>
struct DecodeHead {
  T* o;                  // [head_dim]
  const T* q;            // [head_dim]
  const T *k, *v;        // the head's elements in row 0 of the cache
  const int32_t* index;  // [keys]: rows of the keys; null: the rows from `first` on
  int64_t first, keys, head_dim, stride;
  int64_t ahead;  // elements from a key to the next head's or query's key; 0: not known
};

// Some rows and columns of a product: sums = a . b.
template <class T>
struct RowProductPart {
  float* sums;      // [rows, columns], rows are `stride` elements apart
  const float* a;   // [rows, k]
  const T* stored;  // [rows, k]: a as it is stored
  const T* b;       // [k, columns], rows are n elements apart
  int64_t rows, columns, k, n, stride;
};

// Loops over activations of one type: float, or bf16 as uint16_t. They compute in float. There are
// many members because each loop has one.
template <class T>
struct ActivationLoops {
  void (*gelu_forward)(T* y, const T* x, int64_t count);
  void (*gelu_backward)(T* dx, const T* dy, const T* x, int64_t count);
  void (*layer_norm_forward)(const LayerNormRows<T>&);
  void (*dropout)(const DropoutRange<T>&);
  // sums[j] += x[r][j], row after row
  void (*add_rows)(float* sums, const T* x, int64_t rows, int64_t n);
  void (*attention_forward)(const AttentionHead<T>&, float* scratch);
  void (*attention_backward)(const AttentionHead<T>&, float* scratch);
  // return the floats of scratch that a head needs
  int64_t (*attention_forward_scratch)(int64_t query_length, int64_t key_length, int64_t head_dim);
  int64_t (*attention_backward_scratch)(int64_t query_length, int64_t key_length, int64_t head_dim);
  void (*decode_attention)(const DecodeHead<T>&, float* scratch);
  void (*row_product)(const RowProductPart<T>&);
  void (*batch_norm_forward)(const BatchNormRows<T>&);
  void (*batch_norm_sums)(const BatchNormSumRows<T>&);
  void (*batch_norm_gradient_sums)(const BatchNormGradientSumRows<T>&);
  void (*batch_norm_backward)(const BatchNormGradientRows<T>&);
  void (*max_pool_forward)(const MaxPoolWindow<T>&);
  void (*max_pool_backward)(const MaxPoolPixel<T>&);
  // null where the instruction set has no pairs of bf16
  void (*pack_panels)(const PanelRows<T>&);
  void (*add_tile)(const WeightGradientTile<T>&);
  void (*pack_lines)(const PanelOfLines<T>&);
  void (*pack_columns)(const PanelsOfColumns<T>&);
};

struct VectorTable {
  const char* name;
  ActivationLoops<float> f32;
  ActivationLoops<uint16_t> bf16;
  void (*to_bf16)(uint16_t* y, const float* x, int64_t count);
  void (*from_bf16)(float* y, const uint16_t* x, int64_t count);
  // y = exp(x), y may be x; x is first clamped to [-86, 87]. NaN stays NaN
  void (*exp_of)(float* y, const float* x, int64_t count);
  float (*softmax_xent_row)(const SoftmaxRow&);  // returns the loss
  void (*layer_norm_backward)(const LayerNormGradientRows&);
  void (*convolve_tile)(const DirectTile&);  // null with AVX-512, where oneDNN is faster
  ProductLoops product;
  bool pairs;  // has instructions for pairs of bf16

  // Calls f(loops, element) with the loops over activations of this type.
  template <class F>
  void with(device::DType type, const F& f) const {
    if (type == device::DType::bf16) return f(bf16, uint16_t{});
    CHECK(type == device::DType::f32, "only GPUs have activations of {}", device::name_of(type));
    f(f32, float{});
  }
};

extern const VectorTable kGenericTable;                               // CPUs other than x86-64
extern const VectorTable kAvx2Table, kAvx512Table, kAvx512Bf16Table;  // x86-64
// The portable ones. x86-64 has them all, so one machine can play another.
extern const VectorTable kGenericWideTable, kAvx2WideTable, kAvx512PortableTable;

// Returns the tables that this CPU runs, the widest last.
const std::vector<const VectorTable*>& vector_tables();
const std::vector<const VectorTable*>& portable_vector_tables();
// Returns the widest vector table, with bf16 instructions only if products use them
// (bf16_is_native), or the widest portable one.
const VectorTable& vector_table();

}  // namespace kernels
