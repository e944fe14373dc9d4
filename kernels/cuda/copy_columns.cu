// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of copies of columns. One launch copies many matrices.
#include "kernels/copy_columns.hpp"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/many.cuh"

namespace kernels {
namespace {

constexpr int kColumnThreads = 256;

template <class T>
struct ColumnsItem {
  T* y;
  const T* x;
  int64_t count, columns, y_row, x_row;  // in packs
  bool add;
};

// Numbers of 16 bits are only moved.
template <class T, int N>
__global__ void copy_columns(const ManyItems<ColumnsItem<T>> __grid_constant__ all) {
  const Share share = share_of_block(all);
  const ColumnsItem<T>& item = all.items[share.item];
  const int64_t i = int64_t(share.block) * kColumnThreads + threadIdx.x;
  if (i >= item.count) return;
  const int64_t row = i / item.columns, column = i - row * item.columns;
  T* y = item.y + (row * item.y_row + column) * N;
  Pack<T, N> v = load_pack<N>(item.x + (row * item.x_row + column) * N);
  if constexpr (sizeof(T) == sizeof(float))
    if (item.add) {
      const Pack<T, N> before = load_pack<N>(y);
#pragma unroll
      for (int k = 0; k < N; ++k) v.at[k] = before.at[k] + v.at[k];
    }
  store_pack(y, v);
}

template <class T, int N>
void copy_all(std::span<const CopyColumns> all, Queue& queue) {
  ManyLaunch launch_all(copy_columns<T, N>, kColumnThreads, queue);
  for (const CopyColumns& a : all) {
    const int64_t count = a.rows * a.columns / N;
    launch_all.add(
        {static_cast<T*>(a.y.data), static_cast<const T*>(a.x.data), count, a.columns / N,
         a.leading_of_y() / N, a.leading_of_x() / N, a.write == Write::accumulate},
        base::ceil_div(count, kColumnThreads));
  }
  launch_all.start();
}

template <class T>
void copy_all(std::span<const CopyColumns> all, Queue& queue) {
  constexpr int kPack = int(16 / sizeof(T));
  bool packs = true;
  for (const CopyColumns& a : all)
    packs =
        packs && (a.columns | a.leading_of_y() | a.leading_of_x()) % kPack == 0 &&
        (reinterpret_cast<uintptr_t>(a.y.data) | reinterpret_cast<uintptr_t>(a.x.data)) % 16 == 0;
  if (packs)
    copy_all<T, kPack>(all, queue);
  else
    copy_all<T, 1>(all, queue);
}

}  // namespace

// Runs the copies of one type together.
void run_cuda(std::span<const CopyColumns> all, Queue& queue) {
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    const bool wide = all[begin].x.type == DType::f32;
    while (end < all.size() && (all[end].x.type == DType::f32) == wide) ++end;
    if (wide)
      copy_all<float>(all.subspan(begin, end - begin), queue);
    else
      copy_all<uint16_t>(all.subspan(begin, end - begin), queue);
  }
}

}  // namespace kernels
