// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "base/narrow.hpp"
#include "kernels/cuda/attention_padded.hpp"
#include "kernels/cuda/launch.cuh"

namespace kernels {
namespace {

constexpr int kPaddedTensors = 3, kPaddedThreads = 256;

// One launch copies the same rows of several tensors. blockIdx.y selects the tensor.
template <class Word>
struct PaddedRows {
  std::array<const Word*, kPaddedTensors> from;
  std::array<Word*, kPaddedTensors> to;
  std::array<int64_t, kPaddedTensors> next;  // words from a packed row to the next
  const int32_t* offsets;
  int64_t count;  // words of all whole sequences
  int words, length;
};

// Returns the element of this block's tensor. An index would copy the array to local memory.
template <class T>
__device__ T of_tensor(const std::array<T, kPaddedTensors>& all) {
  return blockIdx.y == 0 ? all[0] : blockIdx.y == 1 ? all[1] : all[2];
}

template <class Word, bool kPads>
__global__ void move_words(PaddedRows<Word> r) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= r.count) return;
  const int64_t row = i / r.words, example = row / r.length,
                packed = r.offsets[example] + row % r.length;
  const bool exists = packed < r.offsets[example + 1];
  const int64_t at = packed * of_tensor(r.next) + i % r.words;
  const Word* from = of_tensor(r.from);
  Word* to = of_tensor(r.to);
  if constexpr (kPads)
    to[i] = exists ? from[at] : Word{};
  else if (exists)
    to[at] = from[i];
}

__global__ void copy_real_lse(float* to, const float* from, const int32_t* offsets, int heads,
                              int length, int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t example = i / (int64_t(heads) * length);
  to[i] = i % length < offsets[example + 1] - offsets[example] ? from[i] : 0.0f;
}

struct PaddedMove {
  View from, to;
  int64_t next;  // elements from a packed row to the next
};

template <class Word, bool kPads>
void launch_padded_moves(const std::vector<PaddedMove>& moves, const View& offsets, int64_t length,
                         const AttentionShape& s, Queue& queue) {
  PaddedRows<Word> r{};
  for (size_t i = 0; i < moves.size(); ++i) {
    r.from[i] = static_cast<const Word*>(moves[i].from.data);
    r.to[i] = static_cast<Word*>(moves[i].to.data);
    r.next[i] = moves[i].next * device::size_of(moves[i].to.type) / int64_t(sizeof(Word));
  }
  r.offsets = static_cast<const int32_t*>(offsets.data);
  r.words = int(s.heads * s.head_dim * device::size_of(moves[0].to.type) / int64_t(sizeof(Word)));
  r.count = s.batch * length * r.words;
  r.length = int(length);
  launch(move_words<Word, kPads>,
         dim3(blocks_for(r.count, kPaddedThreads).x, unsigned(moves.size())), dim3(kPaddedThreads),
         0, queue, r);
}

// Moves rows between packed and whole sequences: kPads copies to whole ones.
template <bool kPads>
void move_rows(const std::vector<PaddedMove>& moves, const View& offsets, int64_t length,
               const AttentionShape& s, Queue& queue) {
  int64_t bits = s.heads * s.head_dim * device::size_of(moves[0].to.type);
  for (const PaddedMove& m : moves)
    bits |= int64_t(reinterpret_cast<uintptr_t>(m.from.data)) |
            int64_t(reinterpret_cast<uintptr_t>(m.to.data)) | m.next * device::size_of(m.to.type);
  if (bits % 16 == 0)
    launch_padded_moves<uint4, kPads>(moves, offsets, length, s, queue);
  else if (bits % 4 == 0)
    launch_padded_moves<uint32_t, kPads>(moves, offsets, length, s, queue);
  else
    launch_padded_moves<uint16_t, kPads>(moves, offsets, length, s, queue);
}

// Hands out the memory of copies.
struct PaddedCopies {
  char* next;
  View like(const View& packed, int64_t length, const AttentionShape& s) {
    return take(packed.type, s.batch * length * s.heads * s.head_dim);
  }
  View take(DType type, int64_t count) {
    const View v{next, type, count};
    next += base::round_up(v.bytes(), 256);
    return v;
  }
};

}  // namespace

AttentionShape with_padded_strides(AttentionShape s) {
  if (!s.query_offsets.none()) s.query_stride = 0;
  if (!s.key_offsets.none()) s.key_stride = 0;
  return s;
}

AttentionForward padded(const AttentionForward& a, char* memory, Queue& queue) {
  const AttentionShape& s = a.shape;
  AttentionForward out = a;
  PaddedCopies copies{memory};
  if (!s.query_offsets.none()) {
    out.q = copies.like(a.q, s.query_length, s);
    out.o = copies.like(a.o, s.query_length, s);
    move_rows<true>({{a.q, out.q, s.next_query()}}, s.query_offsets, s.query_length, s, queue);
  }
  if (!s.key_offsets.none()) {
    out.k = copies.like(a.k, s.key_length, s);
    out.v = copies.like(a.v, s.key_length, s);
    move_rows<true>({{a.k, out.k, s.next_key()}, {a.v, out.v, s.next_key()}}, s.key_offsets,
                    s.key_length, s, queue);
  }
  out.shape = with_padded_strides(s);
  out.shape.query_offsets = out.shape.key_offsets = {};
  return out;
}

AttentionBackward padded(const AttentionBackward& a, char* memory, Queue& queue) {
  const AttentionShape& s = a.shape;
  AttentionBackward out = a;
  PaddedCopies copies{memory};
  if (!s.query_offsets.none()) {
    for (View* v : {&out.q, &out.o, &out.d_o, &out.dq}) *v = copies.like(*v, s.query_length, s);
    move_rows<true>(
        {{a.q, out.q, s.next_query()}, {a.o, out.o, s.row()}, {a.d_o, out.d_o, s.row()}},
        s.query_offsets, s.query_length, s, queue);
    out.lse = copies.take(DType::f32, a.lse.count);
    launch(copy_real_lse, blocks_for(a.lse.count, kPaddedThreads), dim3(kPaddedThreads), 0, queue,
           static_cast<float*>(out.lse.data), static_cast<const float*>(a.lse.data),
           static_cast<const int32_t*>(s.query_offsets.data), int(s.heads), int(s.query_length),
           a.lse.count);
  }
  if (!s.key_offsets.none()) {
    for (View* v : {&out.k, &out.v, &out.dk, &out.dv}) *v = copies.like(*v, s.key_length, s);
    move_rows<true>({{a.k, out.k, s.next_key()}, {a.v, out.v, s.next_key()}}, s.key_offsets,
                    s.key_length, s, queue);
  }
  out.shape = with_padded_strides(s);
  out.shape.query_offsets = out.shape.key_offsets = {};
  return out;
}

void take_results(const AttentionForward& copies, const AttentionForward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  if (!s.query_offsets.none())
    move_rows<false>({{copies.o, a.o, s.row()}}, s.query_offsets, s.query_length, s, queue);
}

void take_results(const AttentionBackward& copies, const AttentionBackward& a, Queue& queue) {
  const AttentionShape& s = a.shape;
  if (!s.query_offsets.none())
    move_rows<false>({{copies.dq, a.dq, s.next_query()}}, s.query_offsets, s.query_length, s,
                     queue);
  if (!s.key_offsets.none())
    move_rows<false>({{copies.dk, a.dk, s.next_key()}, {copies.dv, a.dv, s.next_key()}},
                     s.key_offsets, s.key_length, s, queue);
}

}  // namespace kernels
