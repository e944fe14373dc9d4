// Small memory-bound ops: sums, copies, row gathers, dropout, means.
#pragma once

#include "base/random.hpp"
#include "kernels/dispatch.hpp"

namespace kernels {

struct Add {              // y = a + b; y may be a or b
  static constexpr Op op = Op::add;
  View y, a, b;           // same count
};
void check(const Add&);
Cost cost(const Add&);
void run_cpu(const Add&, Queue&);
void run_cuda(const Add&, Queue&);

struct AddTable {         // y[r] = x[r] + table[r % length]; y may be x
  static constexpr Op op = Op::add_table;
  View y, x;              // [rows, width]
  View table;             // [length, width]
  int64_t rows = 0, width = 0, length = 0;
};
void check(const AddTable&);
Cost cost(const AddTable&);
void run_cpu(const AddTable&, Queue&);
void run_cuda(const AddTable&, Queue&);

struct Copy {             // y = x
  static constexpr Op op = Op::copy;
  View y, x;              // same type and count
};
void check(const Copy&);
Cost cost(const Copy&);
void run_cpu(const Copy&, Queue&);
void run_cuda(const Copy&, Queue&);

struct Fill {             // y = value
  static constexpr Op op = Op::fill;
  View y;
  float value = 0;
};
void check(const Fill&);
Cost cost(const Fill&);
void run_cpu(const Fill&, Queue&);
void run_cuda(const Fill&, Queue&);

struct GatherRows {       // y[i] = index[i] >= 0 ? x[index[i]] : 0
  static constexpr Op op = Op::gather_rows;
  View y;                 // [rows, width], of x's type
  View x;                 // [source_rows, width], f32, bf16 or f16
  View index;             // i32 [rows], each < source_rows
  int64_t rows = 0, width = 0, source_rows = 0;
};
void check(const GatherRows&);
Cost cost(const GatherRows&);
void run_cpu(const GatherRows&, Queue&);
void run_cuda(const GatherRows&, Queue&);

struct ScatterRows {      // y[index[i]] = (+=) x[i] where index[i] >= 0 (indices are distinct); other rows of y stay
  static constexpr Op op = Op::scatter_rows;
  View y;                 // [target_rows, width]
  View x;                 // [rows, width]
  View index;             // i32 [rows]
  int64_t rows = 0, width = 0, target_rows = 0;
  Write write = Write::overwrite;
};
void check(const ScatterRows&);
Cost cost(const ScatterRows&);
void run_cpu(const ScatterRows&, Queue&);
void run_cuda(const ScatterRows&, Queue&);

// y[i] = keep(i) ? x[i] / (1 - rate) : 0, keep(i) = stream.uniform(first + i) >= rate. y may be x. Never saved: backward runs
// the same op on the gradient.
struct Dropout {
  static constexpr Op op = Op::dropout;
  View y, x;              // same count and type, f32, bf16 or f16
  float rate = 0;
  base::Stream stream;
  int64_t first = 0;      // draw index of element 0: global example number * elements per example
};
void check(const Dropout&);
Cost cost(const Dropout&);
void run_cpu(const Dropout&, Queue&);
void run_cuda(const Dropout&, Queue&);

struct MeanRows {         // y[b] = mean over the rows of x[b]
  static constexpr Op op = Op::mean_rows;
  View y;                 // [batch, width]
  View x;                 // [batch, rows, width]
  int64_t batch = 0, rows = 0, width = 0;
};
void check(const MeanRows&);
Cost cost(const MeanRows&);
void run_cpu(const MeanRows&, Queue&);
void run_cuda(const MeanRows&, Queue&);

}  // namespace kernels
