// The inner loops that are compiled once per instruction set. The build targets x86-64-v3; what a CPU offers above it
// is chosen here, at run time.
#pragma once

#include <cstdint>

namespace kernels {

struct SoftmaxRow {
  float* logits;        // [columns]; written if gradient
  int64_t columns;
  int64_t label;        // outside [0, columns): all-off target
  float on, off;        // soft target at the label and elsewhere
  bool gradient;
  float scale;
};

struct LayerNormRows {  // forward
  float *y, *mean, *rstd;
  const float *x, *scale, *bias;  // bias may be null
  int64_t rows, columns;
  float eps;
};

struct LayerNormGradientRows {
  float *dx, *dscale, *dbias;     // each may be null; dscale and dbias are added to
  const float *dy, *x, *mean, *rstd, *scale;
  int64_t rows, columns;
  bool add_dx;
};

struct DropoutRange {
  float* y;
  const float* x;
  int64_t count;
  uint64_t first;                 // draw index of x[0]
  uint64_t key;                   // of the stream
  float rate;
};

// One (batch, head) of attention. Rows of a tensor are `stride` floats apart.
struct AttentionHead {
  const float *q, *k, *v;
  float *o, *lse;                 // forward: lse may be null; backward: read
  const float* d_o;               // backward
  float *dq, *dk, *dv;            // backward
  int64_t query_length, key_length, head_dim, stride;
  bool causal;
  float dropout;
  uint64_t key, first_draw;       // stream and draw index of weight (0, 0)
};

struct VectorTable {
  const char* name;
  void (*gelu_forward)(float* y, const float* x, int64_t count);
  void (*gelu_backward)(float* dx, const float* dy, const float* x, int64_t count);
  void (*to_bf16)(uint16_t* y, const float* x, int64_t count);
  void (*from_bf16)(float* y, const uint16_t* x, int64_t count);
  void (*exp_of)(float* y, const float* x, int64_t count);  // for tests
  float (*softmax_xent_row)(const SoftmaxRow&);             // returns the loss
  void (*layer_norm_forward)(const LayerNormRows&);
  void (*layer_norm_backward)(const LayerNormGradientRows&);
  void (*dropout)(const DropoutRange&);
  int64_t (*attention_forward_scratch)(int64_t query_length, int64_t key_length, int64_t head_dim);  // floats
  void (*attention_forward)(const AttentionHead&, float* scratch);
  int64_t (*attention_backward_scratch)(int64_t query_length, int64_t key_length, int64_t head_dim);
  void (*attention_backward)(const AttentionHead&, float* scratch);
};

extern const VectorTable kAvx2Table, kAvx512Table;

bool cpu_has_avx512();

// The widest table this CPU can run.
const VectorTable& vector_table();

// For tests: use this table instead; nullptr goes back to the widest.
void force_vector_table(const VectorTable* table);

}  // namespace kernels
