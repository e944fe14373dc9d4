// SPDX-License-Identifier: Apache-2.0
#include "comm/long_exchange.hpp"

#include <algorithm>
#include <cstring>

#include "comm/large_count.hpp"
#include "comm/tree_exchange.hpp"

namespace comm {
namespace {

constexpr int64_t kMessageBytes = 16 << 20;

int64_t elements_of_message(const device::View& view) {
  return std::min(kMessageBytes / device::size_of(view.type), counted::longest_call());
}

device::View message_of(const device::View& view, int64_t number) {
  const int64_t most = elements_of_message(view), begin = std::min(number * most, view.count);
  return view.slice(begin, std::min(most, view.count - begin));
}

// Returns consecutive parts of the view, one for each rank, whose sizes differ by at most 1.
std::vector<device::View> parts_of(const device::View& view, int parts) {
  std::vector<device::View> out;
  for (int64_t p = 0; p < parts; ++p) {
    auto begin = [&](int64_t i) {
      return view.count / parts * i + std::min(i, view.count % parts);
    };
    out.push_back(view.slice(begin(p), begin(p + 1) - begin(p)));
  }
  return out;
}

}  // namespace

void LongExchange::begin(MPI_Comm comm, int64_t sequence) {
  comm_ = comm;
  CHECK_MPI(MPI_Comm_rank(comm, &rank_));
  CHECK_MPI(MPI_Comm_size(comm, &size_));
  sequence_ = sequence;
  rounds_.clear();
  round_ = 0;
  piece_ = 0;
  posted_ = false;
}

// In round k a rank sends to the rank k above it: out[that rank] goes there, and in[the rank below]
// comes.
void LongExchange::add_rounds(const std::vector<device::View>& out,
                              const std::vector<device::View>& in, bool adds) {
  for (int k = 1; k < size_; ++k) {
    const int to = (rank_ + k) % size_, from = (rank_ - k + size_) % size_;
    rounds_.push_back({to, from, out[size_t(to)], in[size_t(from)], adds});
  }
}

void LongExchange::begin_gather(MPI_Comm comm, int64_t sequence, device::View send,
                                device::View recv) {
  begin(comm, sequence);
  const std::vector<device::View> parts = parts_of(recv, size_);
  const device::View& own = parts[size_t(rank_)];
  if (own.data != send.data) std::memcpy(own.data, send.data, size_t(send.bytes()));
  add_rounds(std::vector(size_t(size_), own), parts, false);
}

void LongExchange::begin_scatter(MPI_Comm comm, int64_t sequence, device::View send,
                                 device::View recv) {
  begin(comm, sequence);
  const std::vector<device::View> parts = parts_of(send, size_);
  std::memcpy(recv.data, parts[size_t(rank_)].data, size_t(recv.bytes()));
  add_rounds(parts, std::vector(size_t(size_), recv), true);
}

// Each rank sums a part, and then gives it to the others.
void LongExchange::begin_sum(MPI_Comm comm, int64_t sequence, device::View view) {
  begin(comm, sequence);
  const std::vector<device::View> parts = parts_of(view, size_);
  const std::vector<device::View> own(size_t(size_), parts[size_t(rank_)]);
  add_rounds(parts, own, true);
  add_rounds(own, parts, false);
}

// Posts the next piece. Returns false if there is none.
bool LongExchange::post() {
  for (; round_ < rounds_.size(); ++round_, piece_ = 0) {
    const Round& round = rounds_[round_];
    const device::View out = message_of(round.out, piece_);
    due_ = message_of(round.in, piece_);
    if (out.count == 0 && due_.count == 0) continue;
    const int tag = int(sequence_ % 128 * 256 + piece_ % 256);
    void* in = due_.data;
    if (round.adds) {
      room_.resize(size_t(std::min(kMessageBytes, round.in.bytes())));
      in = room_.data();
    }
    if (due_.count > 0)
      CHECK_MPI(MPI_Irecv(in, int(due_.bytes()), MPI_BYTE, round.from, tag, comm_, &requests_[0]));
    if (out.count > 0)
      CHECK_MPI(
          MPI_Isend(out.data, int(out.bytes()), MPI_BYTE, round.to, tag, comm_, &requests_[1]));
    return true;
  }
  room_ = {};
  return false;
}

bool LongExchange::advance() {
  while (true) {
    if (!posted_ && !post()) return true;
    posted_ = true;
    int done = 0;
    CHECK_MPI(MPI_Testall(2, requests_, &done, MPI_STATUSES_IGNORE));
    if (!done) return false;
    if (rounds_[round_].adds) add_into(due_.data, room_.data(), due_.type, due_.count);
    posted_ = false;
    ++piece_;
  }
}

}  // namespace comm
