// SPDX-License-Identifier: Apache-2.0
#include "comm/shared_sum.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/tree_exchange.hpp"

namespace comm {
namespace {

// Elements added up at once; their sums stay in the first cache.
constexpr int64_t kBlock = 1024;
// Elements added up by one call of advance. The main thread may wait for it.
constexpr int64_t kPiece = 64 * kBlock;
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
  group->memory_ = node.allocate(sizeof(Progress));
  group->node_ranks_ = node.ranks_of(comm);
  if (!group->memory_ || group->size() < 2) return nullptr;
  CHECK_MPI(MPI_Comm_rank(comm, &group->rank_));
  group->node_ = &node;
  for (int rank : group->node_ranks_)
    group->progress_.push_back(reinterpret_cast<Progress*>(group->memory_->of_rank[size_t(rank)]));
  return group;
}

int64_t SharedGroup::least(std::atomic<int64_t> Progress::*count) const {
  int64_t all = (progress_.front()->*count).load();
  for (const Progress* one : progress_) all = std::min(all, (one->*count).load());
  return all;
}

void SharedGroup::ring_others() {
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_) node_->bell(node_rank(rank)).ring();
}

int64_t SharedGroup::begin() {
  const int64_t number = own().began.fetch_add(1);
  if (all_began(number)) ring_others();
  return number;
}

void SharedGroup::summed() {
  const int64_t number = own().summed.fetch_add(1);
  if (all_summed(number)) ring_others();
}

void SharedSum::begin(SharedGroup& group, const SharedParts& parts, int node_rank,
                      const device::View& view) {
  group_ = &group;
  type_ = view.type;
  const int64_t offset = static_cast<const char*>(view.data) - parts.of_rank[size_t(node_rank)];
  views_.clear();
  for (int rank = 0; rank < group.size(); ++rank)
    views_.push_back(parts.of_rank[size_t(group.node_rank(rank))] + offset);
  const int64_t line = kLine / device::size_of(type_), lines = (view.count + line - 1) / line;
  next_ = std::min(view.count, lines * group.rank() / group.size() * line);
  end_ = std::min(view.count, lines * (group.rank() + 1) / group.size() * line);
  number_ = group.begin();
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
  if (group_->is_next(number_) && group_->all_began(number_)) {
    const int64_t count = std::min(kPiece, end_ - next_);
    if (type_ == device::DType::f32)
      add_up<float>(next_, count);
    else
      add_up<double>(next_, count);
    next_ += count;
    if (next_ == end_) group_->summed();
  }
  return group_->all_summed(number_);
}

bool SharedSum::idle() const { return !group_->is_next(number_) || !group_->all_began(number_); }

}  // namespace comm
