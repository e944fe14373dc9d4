// SPDX-License-Identifier: Apache-2.0
#include "comm/shared_sum.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "comm/tree_exchange.hpp"

namespace comm {
namespace {

// Elements added up at once; their sums stay in the first cache.
constexpr int64_t kBlock = 1024;
// Elements of a piece, which one call of advance adds up. The main thread may wait for it.
constexpr int64_t kPiece = 32 * kBlock;
constexpr int64_t kLine = 64;  // bytes

template <class T>
void add(T* __restrict sum, const T* a, const T* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}
template <class T>
void add_into(T* __restrict sum, const T* __restrict a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += a[i];
}

// Adds up the ranks [begin, end) of `views`, at most kBlock elements from `first` on.
template <class T>
void add_tree(T* sum, char* const* views, int begin, int end, int64_t first, int64_t n) {
  auto of = [&](int rank) { return reinterpret_cast<const T*>(views[rank]) + first; };
  if (end - begin == 2) return add(sum, of(begin), of(begin + 1), n);
  const int middle = begin + int(std::bit_floor(unsigned(end - begin - 1)));
  add_tree<T>(sum, views, begin, middle, first, n);
  if (end - middle == 1) return add_into(sum, of(middle), n);
  alignas(kLine) T right[kBlock];
  add_tree<T>(right, views, middle, end, first, n);
  add_into(sum, right, n);
}

}  // namespace

std::unique_ptr<SharedGroup> SharedGroup::make(NodeMemory& node, MPI_Comm comm) {
  std::unique_ptr<SharedGroup> group(new SharedGroup);
  group->memory_ = node.allocate(sizeof(Shared));
  group->node_ranks_ = node.ranks_of(comm);
  if (!group->memory_ || group->size() < 2) return nullptr;
  CHECK_MPI(MPI_Comm_rank(comm, &group->rank_));
  group->node_ = &node;
  for (int rank : group->node_ranks_)
    group->shared_.push_back(reinterpret_cast<Shared*>(group->memory_->of_rank[size_t(rank)]));
  return group;
}

void SharedGroup::ring_others() {
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_) node_->bell(node_rank(rank)).ring();
}

SharedGroup::Exchange SharedGroup::begin(int64_t pieces) {
  std::atomic<int64_t>& began = shared_[size_t(rank_)]->began;
  Exchange e{.number = began.load(), .pieces = pieces};
  e.first =
      std::exchange(first_[size_t(e.number % kSlots)], first_[size_t(e.number % kSlots)] + pieces);
  CHECK(count_of_summed(e).load() == e.first * size(), "more than {} exchanges in flight", kSlots);
  began.store(e.number + 1);
  return e;
}

bool SharedGroup::all_began(const Exchange& exchange) const {
  return std::ranges::all_of(
      shared_, [&](const Shared* one) { return one->began.load() > exchange.number; });
}

bool SharedGroup::has_left(const Exchange& exchange, int rank) const {
  return taken(exchange, rank).load() < exchange.first + exchange.pieces;
}

bool SharedGroup::can_take(const Exchange& exchange) const {
  if (!all_began(exchange)) return false;
  for (int rank = 0; rank < size(); ++rank)
    if (has_left(exchange, rank)) return true;
  return false;
}

int64_t SharedGroup::take(const Exchange& exchange) {
  if (!all_began(exchange)) return -1;
  for (int i = 0; i < size(); ++i) {
    const int rank = (rank_ + i) % size();
    int64_t piece = taken(exchange, rank).load();
    while (piece < exchange.first + exchange.pieces)
      if (taken(exchange, rank).compare_exchange_weak(piece, piece + 1))
        return rank * exchange.pieces + piece - exchange.first;
  }
  return -1;
}

void SharedGroup::summed(const Exchange& exchange) {
  if (count_of_summed(exchange).fetch_add(1) + 1 == (exchange.first + exchange.pieces) * size())
    ring_others();
}

bool SharedGroup::all_summed(const Exchange& exchange) const {
  return count_of_summed(exchange).load() >= (exchange.first + exchange.pieces) * size();
}

void SharedSum::begin(SharedGroup& group, const SharedParts& parts, int node_rank,
                      const device::View& view) {
  group_ = &group;
  type_ = view.type;
  count_ = view.count;
  const int64_t offset = static_cast<const char*>(view.data) - parts.of_rank[size_t(node_rank)];
  views_.clear();
  for (int rank = 0; rank < group.size(); ++rank)
    views_.push_back(parts.of_rank[size_t(group.node_rank(rank))] + offset);
  const int64_t in_turn = kPiece * group.size();
  exchange_ = group.begin((count_ + in_turn - 1) / in_turn);
  wakes_ = group.all_began(exchange_);
}

template <class T>
void SharedSum::add_up(int64_t begin, int64_t count) {
  alignas(kLine) T sum[kBlock];
  for (int64_t i = begin; i < begin + count; i += kBlock) {
    const int64_t n = std::min(kBlock, begin + count - i);
    add_tree<T>(sum, views_.data(), 0, group_->size(), i, n);
    for (char* view : views_)
      std::memcpy(reinterpret_cast<T*>(view) + i, sum, size_t(n) * sizeof(T));
  }
}

bool SharedSum::advance() {
  if (std::exchange(wakes_, false)) group_->ring_others();
  if (const int64_t piece = group_->take(exchange_); piece >= 0) {
    const int64_t begin = std::min(piece * kPiece, count_),
                  count = std::min(kPiece, count_ - begin);
    if (type_ == device::DType::f32)
      add_up<float>(begin, count);
    else
      add_up<double>(begin, count);
    group_->summed(exchange_);
  }
  return group_->all_summed(exchange_);
}

bool SharedSum::idle() const { return !wakes_ && !group_->can_take(exchange_); }

}  // namespace comm
