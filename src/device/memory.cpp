// SPDX-License-Identifier: Apache-2.0
#include "device/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/narrow.hpp"
#include "base/shortage.hpp"
#include "device/gpu.hpp"
#include "device/live_buffers.hpp"
#include "device/transfers.hpp"

namespace device {
namespace {
constexpr int64_t kAlign = 64;
// address offset of the high end of a measuring arena
constexpr int64_t kFakeEnd = int64_t{1} << 46;
constexpr int64_t kHugePage = 2 << 20, kSmallPage = 4 << 10;

// Large memory is in huge pages if the system grants them. Products that stream through hundreds of
// megabytes would otherwise spend noticeable time on address translation, above all on virtual
// machines. The system zeroes a page at its first touch, near the thread that computes there, and
// not before a run needs it. The rest behind the last whole huge page is in small pages: dozens of
// tensors would otherwise waste a megabyte each.
bool is_large(int64_t bytes) { return bytes >= kHugePage; }

void* allocate_zeroed(int64_t bytes) {
  if (!is_large(bytes)) {
    void* data = std::aligned_alloc(kAlign, size_t(bytes));
    if (data) std::memset(data, 0, size_t(bytes));
    return data;
  }
  const size_t whole = size_t(base::round_up(bytes, kSmallPage)), room = whole + size_t(kHugePage);
  void* mapped = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char *begin = static_cast<char*>(mapped), *end = begin + room;
  char* data =
      begin + (size_t(kHugePage) - reinterpret_cast<uintptr_t>(begin) % size_t(kHugePage)) %
                  size_t(kHugePage);
  if (data > begin) ::munmap(begin, size_t(data - begin));
  if (end > data + whole) ::munmap(data + whole, size_t(end - (data + whole)));
  ::madvise(data, whole, MADV_HUGEPAGE);  // advice only; the system may ignore it
  return data;
}

void release(void* data, int64_t bytes) {
  if (is_large(bytes))
    ::munmap(data, size_t(base::round_up(bytes, kSmallPage)));
  else
    std::free(data);
}
}  // namespace

void Ledger::add(const std::string& category, int64_t bytes) {
  Entry& e = entries_[category];
  e.now += bytes;
  e.peak = std::max(e.peak, e.now);
}

int64_t Ledger::peak_of(const std::string& category) const {
  auto it = entries_.find(category);
  return it == entries_.end() ? 0 : it->second.peak;
}

int64_t Ledger::total_peak() const {
  int64_t sum = 0;
  for (auto& [name, e] : entries_) sum += e.peak;
  return sum;
}

Buffer::Buffer(Kind kind, Ledger& ledger, std::string category, int64_t bytes)
    : bytes_(base::round_up(bytes, kAlign)),
      kind_(kind),
      ledger_(&ledger),
      category_(std::move(category)) {
  CHECK(bytes >= 0);
  ledger_->add(category_, bytes_);
  if (bytes_ == 0) return;
  if (kind == Kind::plan) {
    data_ = reinterpret_cast<void*>(4096);
    return;
  }
  data_ = kind == Kind::cuda ? gpu::allocate(size_t(bytes_)) : allocate_zeroed(bytes_);
  if (!data_) {
    base::note_shortage(bytes_, category_.c_str());
    base::fail(base::Exit::mesh,
               "out of memory: {} MiB for {}; see `--mode plan` for what this deck needs per rank",
               (bytes_ >> 20) + 1, category_);
  }
  add_live_buffer(data_, category_, bytes_, kind == Kind::cuda);
}

Buffer::Buffer(Ledger& ledger, std::string category, std::shared_ptr<void> memory, int64_t bytes)
    : data_(memory.get()),
      bytes_(base::round_up(bytes, kAlign)),
      ledger_(&ledger),
      category_(std::move(category)),
      foreign_(std::move(memory)) {
  ledger_->add(category_, bytes_);
  if (data_) add_live_buffer(data_, category_, bytes_, false);
}

Buffer::~Buffer() {
  if (ledger_) ledger_->add(category_, -bytes_);
  if (data_ && kind_ != Kind::plan) remove_live_buffer(data_);
  if (foreign_) return;
  if (kind_ == Kind::cuda && data_) gpu::release(data_);
  if (kind_ == Kind::cpu && data_) release(data_, bytes_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
  std::swap(ledger_, other.ledger_);
  std::swap(category_, other.category_);
  std::swap(foreign_, other.foreign_);
}

void upload(const View& to, const void* from, Queue& queue) {
  if (queue.kind() == Kind::plan || to.count == 0 || to.data == from) return;
  if (queue.kind() == Kind::cpu) {
    std::memcpy(to.data, from, size_t(to.bytes()));
  } else {
    queue.uploads().upload(to.data, from, to.bytes(), queue);
  }
}

void upload_pinned(const View& to, const void* from, Queue& queue) {
  if (queue.kind() != Kind::cuda) return upload(to, from, queue);
  CHECK(!queue.recording(), "an upload while a graph is recorded");
  count_upload(to.bytes());
  gpu::copy(to.data, from, size_t(to.bytes()), queue.stream());
}

void download(void* to, const View& from, Queue& queue) {
  if (queue.kind() == Kind::plan || from.count == 0 || from.data == to) return;
  if (queue.kind() == Kind::cpu) {
    std::memcpy(to, from.data, size_t(from.bytes()));
  } else {
    count_download(from.bytes());
    // a copy to pageable memory would wait by itself, and while_waiting could not end that wait
    queue.synchronize("a copy to the host");
    gpu::copy(to, from.data, size_t(from.bytes()), queue.stream());
    queue.synchronize("a copy to the host");
  }
}

void copy(const View& to, const View& from, Queue& queue) {
  CHECK(to.bytes() == from.bytes(), "copying {} bytes to {}", from.bytes(), to.bytes());
  if (queue.kind() == Kind::plan || to.count == 0 || to.data == from.data) return;
  if (queue.kind() == Kind::cpu)
    std::memcpy(to.data, from.data, size_t(to.bytes()));
  else
    gpu::copy(to.data, from.data, size_t(to.bytes()), queue.stream());
}

Arena::Arena(Kind kind, Ledger& ledger, const std::string& category, int64_t bytes)
    : buffer_(kind, ledger, category, bytes),
      base_(static_cast<char*>(buffer_.data())),
      capacity_(buffer_.bytes()) {}

View Arena::save(int64_t count, DType type) {
  View v{base_ + low_, type, count};
  low_ += base::round_up(v.bytes(), kAlign);
  note_peak();
  return v;
}

View Arena::temporary(int64_t count, DType type) {
  high_ += base::round_up(count * size_of(type), kAlign);
  note_peak();
  return {base_ + (measuring() ? kFakeEnd : capacity_) - high_, type, count};
}

void Arena::note_peak() {
  peak_ = std::max(peak_, low_ + high_);
  if (!measuring() && low_ + high_ > capacity_)
    base::note_shortage(low_ + high_, "the activation arena, which was planned smaller");
  CHECK(measuring() || low_ + high_ <= capacity_,
        "activation arena of {} bytes is too small: the plan missed something", capacity_);
}

}  // namespace device
