// SPDX-License-Identifier: Apache-2.0
// CUDA implementations of the small memory-bound ops. The host does not check ids, because it never
// waits for the GPU. A row that does not exist reads as NaN, and a write to it is skipped.
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/elementwise.hpp"

namespace kernels {
namespace {

constexpr float kNoSuchRow = NAN;

struct AddBody {
  float* y;
  const float *a, *b;
  float scale;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(a + i, N), w = load<true, N>(b + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] += scale * w[k];
    store<true>(y + i, v, N);
  }
};

struct AddTableBody {
  float* y;
  const float *x, *table;
  int64_t width, length;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t left) const {
    Floats<N> v = load<kAligned, N>(x + row * width + column, left);
    const Floats<N> w = load<kAligned, N>(table + row % length * width + column, left);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] += w[k];
    store<kAligned>(y + row * width + column, v, left);
  }
};

struct FillBody {
  float* y;
  float value;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = value;
    store<true>(y + i, v, N);
  }
};

template <class T>
struct GatherBody {
  T* y;
  const T* x;
  const int32_t* index;
  int64_t width, source_rows;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t left) const {
    const int32_t from = index[row];
    Floats<N> v;
    if (from >= 0 && from < source_rows) {
      v = load<kAligned, N>(x + from * width + column, left);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = from < 0 ? 0 : kNoSuchRow;
    }
    store<kAligned>(y + row * width + column, v, left);
  }
};

struct ScatterBody {
  float* y;
  const float* x;
  const int32_t* index;
  int64_t width, target_rows;
  bool add;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t left) const {
    const int32_t to = index[row];
    if (to < 0 || to >= target_rows) return;
    Floats<N> v = load<kAligned, N>(x + row * width + column, left);
    float* out = y + to * width + column;
    if (add) {
      const Floats<N> before = load<kAligned, N>(out, left);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] += before[k];
    }
    store<kAligned>(out, v, left);
  }
};

template <class T>
struct DropoutBody {
  T* y;
  const T* x;
  base::Stream stream;
  uint64_t first;
  float rate;

  __device__ float drop(float value, uint32_t bits) const {
    return float(bits >> 8) * 0x1p-24f >= rate ? value / (1 - rate) : 0;
  }
  template <int N>
  __device__ void run(int64_t i) const {
    const uint64_t draw = first + uint64_t(i);
    const unsigned skip = unsigned(draw % 4);
    Floats<N> v = load<true, N>(x + i, N);
    base::Philox4 block = stream.block(draw / 4);
    if constexpr (N == 1) {
      v[0] = drop(v[0], word_of(block, skip));
    } else {
#pragma unroll
      for (int g = 0; g < N / 4; ++g) {
        base::Philox4 next{};
        if (skip != 0 || g + 1 < N / 4) next = stream.block(draw / 4 + unsigned(g) + 1);
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) {
          const uint32_t bits = skip == 0      ? block[k]
                                : skip + k < 4 ? word_of(block, skip + k)
                                               : word_of(next, skip + k - 4);
          v[4 * g + int(k)] = drop(v[4 * g + int(k)], bits);
        }
        block = next;
      }
    }
    store<true>(y + i, v, N);
  }
};

template <class T>
void gather(const GatherRows& a, Queue& queue) {
  constexpr int kPack = int(16 / sizeof(T));
  GatherBody<T> body{static_cast<T*>(a.y.data), static_cast<const T*>(a.x.data), a.index.i32(),
                     a.width, a.source_rows};
  for_each_row<kPack>(body, a.rows, a.width, packs_fit(kPack, a.width, {a.y, a.x}), queue);
}

template <class T>
void drop_out(const Dropout& a, Queue& queue) {
  DropoutBody<T> body{static_cast<T*>(a.y.data), static_cast<const T*>(a.x.data), a.stream,
                      uint64_t(a.first), a.rate};
  for_each_element<int(16 / sizeof(T))>(body, a.x.count, queue, {a.y.data, a.x.data});
}

}  // namespace

void run_cuda(const Add& args, Queue& queue) {
  AddBody body{args.y.f32(), args.a.f32(), args.b.f32(), args.scale};
  for_each_element<4>(body, args.y.count, queue, {args.y.data, args.a.data, args.b.data});
}

void run_cuda(const AddTable& a, Queue& queue) {
  AddTableBody body{a.y.f32(), a.x.f32(), a.table.f32(), a.width, a.length};
  for_each_row<4>(body, a.rows, a.width, packs_fit(4, a.width, {a.y, a.x, a.table}), queue);
}

void run_cuda(const Copy& a, Queue& queue) {
  if (a.y.data == a.x.data || a.x.count == 0) return;
  device::check_cuda(cudaMemcpyAsync(a.y.data, a.x.data, size_t(a.x.bytes()),
                                     cudaMemcpyDeviceToDevice, device::stream_of(queue)),
                     "copying on the GPU");
}

void run_cuda(const Fill& a, Queue& queue) {
  for_each_element<4>(FillBody{a.y.f32(), a.value}, a.y.count, queue, {a.y.data});
}

void run_cuda(const GatherRows& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) { gather<decltype(element)>(a, queue); });
}

void run_cuda(const ScatterRows& a, Queue& queue) {
  ScatterBody body{a.y.f32(), a.x.f32(),     a.index.i32(),
                   a.width,   a.target_rows, a.write == Write::accumulate};
  for_each_row<4>(body, a.rows, a.width, packs_fit(4, a.width, {a.y, a.x}), queue);
}

void run_cuda(const Dropout& a, Queue& queue) {
  if (a.rate == 0) return run_cuda(Copy{a.y, a.x}, queue);  // keeps every bit
  with_activation(a.x.type, [&](auto element) { drop_out<decltype(element)>(a, queue); });
}

}  // namespace kernels
