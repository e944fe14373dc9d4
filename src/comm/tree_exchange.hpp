// SPDX-License-Identifier: Apache-2.0
// Sums over ranks along a binary tree, neighbours first, as an exchange that never waits: `advance`
// does what can be done now. The number of ranks is a power of two. Only the communicator includes
// this file.
//
// Data is exchanged in pieces, several at a time. One piece is added while others travel. The order
// of additions does not depend on pieces, because each element goes its own way through the tree.
#pragma once

#include <array>
#include <vector>

#include "comm/mpi.hpp"
#include "device/types.hpp"

namespace comm {

// Throws Error(Exit::mesh) with MPI's text unless the code means success.
void check_mpi(int code, const char* what);
#define CHECK_MPI(call) ::comm::check_mpi(call, #call)

// Adds x to y; f32 and f64.
void add_into(void* y, const void* x, device::DType type, int64_t count);

class TreeExchange {
 public:
  // `sequence` numbers the exchanges of a communicator, alike on all ranks, so that messages of two
  // exchanges are not confused. A reduce-scatter writes its result to recv. Without recv this is an
  // all-reduce, which writes its result to send.
  void begin(MPI_Comm comm, int64_t sequence, device::View send, device::View recv);
  bool advance();  // true when all is done

 private:
  struct Piece {
    int64_t number = 0, begin = 0, count = 0;  // elements of each part
    int bit = 0;                               // number of the round, log2 of the distance
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    bool active = false, posted = false;
  };
  bool scatters() const { return !recv_.none(); }
  bool next_piece(Piece& piece);
  char* room(const Piece& piece, int which);  // the piece's buffer of that number
  bool advance(Piece& piece);                 // true when the piece is done
  void post(Piece& piece);
  void combine(Piece& piece);

  static constexpr int kPieces = 8;  // in flight
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  int64_t sequence_ = 0;
  device::View send_, recv_;
  int64_t piece_count_ = 0, next_ = 0, length_ = 0;
  std::array<Piece, kPieces> pieces_;
  std::vector<char> room_;
};

}  // namespace comm
