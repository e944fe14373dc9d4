// SPDX-License-Identifier: Apache-2.0
#include "comm/tree_exchange.hpp"

#include <algorithm>
#include <cstring>

#include "base/narrow.hpp"

namespace comm {
namespace {

constexpr int64_t kPieceBytes = 256 << 10;

template <class T>
void add_numbers(T* __restrict y, const T* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}
}  // namespace

void add_into(void* y, const void* x, device::DType type, int64_t count) {
  if (type == device::DType::f32)
    return add_numbers(static_cast<float*>(y), static_cast<const float*>(x), count);
  CHECK(type == device::DType::f64, "a sum of numbers that are moved only");
  add_numbers(static_cast<double*>(y), static_cast<const double*>(x), count);
}

void TreeExchange::begin(MPI_Comm comm, int64_t sequence, device::View send, device::View recv) {
  comm_ = comm;
  CHECK_MPI(MPI_Comm_rank(comm, &rank_));
  CHECK_MPI(MPI_Comm_size(comm, &size_));
  sequence_ = sequence;
  send_ = send;
  recv_ = recv;
  const int64_t count = scatters() ? recv.count : send.count, parts = scatters() ? size_ : 1,
                line = 64 / device::size_of(send.type);
  length_ = std::max(line, kPieceBytes / (parts * device::size_of(send.type)) / line * line);
  length_ = std::min(length_, std::max<int64_t>(count, 1));
  piece_count_ = (count + length_ - 1) / length_;
  next_ = 0;
  const int64_t of_piece = length_ * device::size_of(send.type) * (scatters() ? 2 * size_ : 1),
                bytes = of_piece * std::min<int64_t>(piece_count_, kPieces);
  if (int64_t(room_.size()) < bytes) room_.resize(size_t(bytes));
  for (Piece& piece : pieces_) piece.active = next_piece(piece);
}

bool TreeExchange::next_piece(Piece& piece) {
  if (next_ == piece_count_) return false;
  const int64_t count = scatters() ? recv_.count : send_.count;
  piece.number = next_++;
  piece.begin = piece.number * length_;
  piece.count = std::min(length_, count - piece.begin);
  piece.bit = 0;
  piece.posted = false;
  if (scatters()) {
    const int64_t bytes = piece.count * device::size_of(send_.type);
    for (int part = 0; part < size_; ++part)
      std::memcpy(room(piece, 0) + part * bytes,
                  send_.slice(part * recv_.count + piece.begin, piece.count).data, size_t(bytes));
  }
  return true;
}

// An all-reduce has one buffer, which receives. A reduce-scatter has three: the parts that this
// rank still sums, the half that it sends and the half that it receives.
char* TreeExchange::room(const Piece& piece, int which) {
  const int64_t unit = length_ * device::size_of(send_.type), place = &piece - pieces_.data();
  if (!scatters()) return room_.data() + place * unit;
  const int64_t before[] = {0, size_, size_ + size_ / 2};
  return room_.data() + (place * 2 * size_ + before[which]) * unit;
}

// In round b a rank exchanges with the rank 2^b away. A reduce-scatter sends half of the parts that
// it holds, and keeps parts whose number agrees with its own rank in bits 0..b. An all-reduce sends
// the whole. Both partners of an all-reduce then hold the same bits, because a + b = b + a.
void TreeExchange::post(Piece& piece) {
  const int partner = rank_ ^ (1 << piece.bit);
  const int tag = int(sequence_ % 128 * 256 + piece.number % 256);
  int64_t bytes = piece.count * device::size_of(send_.type);
  char *out, *in;
  if (scatters()) {
    const int parts = size_ >> piece.bit, mine = (rank_ >> piece.bit) & 1;
    out = room(piece, 1);
    in = room(piece, 2);
    for (int i = 0; i < parts / 2; ++i)
      std::memcpy(out + i * bytes, room(piece, 0) + (2 * i + 1 - mine) * bytes, size_t(bytes));
    bytes *= parts / 2;
  } else {
    out = static_cast<char*>(send_.slice(piece.begin, piece.count).data);
    in = room(piece, 0);
  }
  CHECK_MPI(
      MPI_Irecv(in, base::narrow<int>(bytes), MPI_BYTE, partner, tag, comm_, &piece.requests[0]));
  CHECK_MPI(
      MPI_Isend(out, base::narrow<int>(bytes), MPI_BYTE, partner, tag, comm_, &piece.requests[1]));
  piece.posted = true;
}

void TreeExchange::combine(Piece& piece) {
  const int64_t bytes = piece.count * device::size_of(send_.type);
  if (scatters()) {
    const int parts = size_ >> piece.bit, mine = (rank_ >> piece.bit) & 1;
    char* held = room(piece, 0);
    for (int i = 0; i < parts / 2; ++i) {
      std::memmove(held + i * bytes, held + (2 * i + mine) * bytes, size_t(bytes));
      add_into(held + i * bytes, room(piece, 2) + i * bytes, send_.type, piece.count);
    }
  } else {
    add_into(send_.slice(piece.begin, piece.count).data, room(piece, 0), send_.type, piece.count);
  }
  piece.posted = false;
  ++piece.bit;
}

bool TreeExchange::advance(Piece& piece) {
  while ((1 << piece.bit) < size_) {
    if (!piece.posted) post(piece);
    int done = 0;
    CHECK_MPI(MPI_Testall(2, piece.requests, &done, MPI_STATUSES_IGNORE));
    if (!done) return false;
    combine(piece);
  }
  if (scatters())
    std::memcpy(recv_.slice(piece.begin, piece.count).data, room(piece, 0),
                size_t(piece.count * device::size_of(send_.type)));
  return true;
}

bool TreeExchange::advance() {
  bool any = false;
  for (Piece& piece : pieces_) {
    while (piece.active && advance(piece)) piece.active = next_piece(piece);
    any |= piece.active;
  }
  return !any;
}

}  // namespace comm
