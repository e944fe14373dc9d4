// SPDX-License-Identifier: Apache-2.0
#include "records/span_buffers.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.hpp"
#include "base/flight_page.hpp"
#include "base/span_recorder.hpp"

namespace records {
namespace {

// A part of a thread's spans. The thread fills it and goes on in the next one.
struct Chunk {
  static constexpr size_t kSpans = 256;
  std::atomic<size_t> filled{0};
  std::atomic<Chunk*> next{nullptr};
  alignas(TracedSpan) std::array<std::byte, kSpans * sizeof(TracedSpan)> memory;
  TracedSpan* spans() { return reinterpret_cast<TracedSpan*>(memory.data()); }
};
static_assert(std::is_trivially_copyable_v<TracedSpan>);

constexpr int64_t kMostChunks = 4096;  // of one thread, about a million spans

template <size_t N>
std::string text_of(const std::array<base::FlightWord, N>& words) {
  char chars[8 * N + 1] = {};
  for (size_t i = 0; i < N; ++i) {
    const uint64_t word = words[i].load(std::memory_order_relaxed);
    std::memcpy(chars + 8 * i, &word, sizeof word);
  }
  return chars;
}

TracedThread this_thread() {
  const int64_t id = ::gettid();
  for (const base::FlightPage::Thread& place : base::flight_page().threads)
    if (int64_t(place.tid.load()) == id) return {id, text_of(place.name)};
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return {id, name};
}

// The spans of one thread: a list of chunks, which the thread makes and the taker frees.
class Buffer {
 public:
  Buffer() : thread_(this_thread()), first_(new Chunk), last_(first_) {}
  ~Buffer() {
    while (first_) delete std::exchange(first_, first_->next.load());
    delete spare_.load();
  }
  Buffer(const Buffer&) = delete;

  // The thread of the buffer calls. Returns false if the span is lost.
  bool add(const base::EndedSpan& s) {
    size_t filled = last_->filled.load(std::memory_order_relaxed);
    if (filled == Chunk::kSpans) {
      if (chunks_.load(std::memory_order_relaxed) >= kMostChunks) return false;
      Chunk* next = spare_.exchange(nullptr);
      if (!next) next = new (std::nothrow) Chunk;
      if (!next) return false;
      chunks_.fetch_add(1, std::memory_order_relaxed);
      last_->next.store(next, std::memory_order_release);
      last_ = next;
      filled = 0;
    }
    new (last_->spans() + filled)
        TracedSpan{s.name, s.number, s.begin_ns, s.ns, s.flops, s.bytes, s.kind};
    last_->filled.store(filled + 1, std::memory_order_release);
    return true;
  }

  void take(const TakeSpans& take) {
    while (true) {
      // A chunk that has a next one is full.
      Chunk* next = first_->next.load(std::memory_order_acquire);
      const size_t filled = first_->filled.load(std::memory_order_acquire);
      if (filled > taken_) take(thread_, {first_->spans() + taken_, filled - taken_});
      taken_ = filled;
      if (!next) return;
      taken_ = 0;
      Chunk* done = std::exchange(first_, next);
      chunks_.fetch_sub(1, std::memory_order_relaxed);
      done->filled = 0;
      done->next = nullptr;
      delete spare_.exchange(done);
    }
  }

  std::atomic<bool> thread_ended{false};

 private:
  const TracedThread thread_;
  Chunk* first_;  // the taker's
  size_t taken_ = 0;
  Chunk* last_;  // the thread's
  std::atomic<int64_t> chunks_{1};
  std::atomic<Chunk*> spare_{nullptr};
};

struct Collected {
  std::mutex mutex;
  std::vector<std::shared_ptr<Buffer>> buffers;
  std::vector<TracedExchange> exchanges;
  std::atomic<int64_t> lost{0};
};
// Never destroyed, because threads may end after static objects.
Collected& collected() {
  static Collected& all = *new Collected;
  return all;
}

struct OwnBuffer {
  std::shared_ptr<Buffer> buffer;
  ~OwnBuffer() {
    if (buffer) buffer->thread_ended = true;
  }
  Buffer& get() {
    if (!buffer) {
      buffer = std::make_shared<Buffer>();
      const std::lock_guard lock(collected().mutex);
      collected().buffers.push_back(buffer);
    }
    return *buffer;
  }
};
thread_local OwnBuffer t_own;

// A phase may end within a step, so it cannot be a bar of the same row.
void add_span(const base::EndedSpan& span) {
  if (span.kind == base::SpanKind::phase) return;
  if (!t_own.get().add(span)) ++collected().lost;
}

void add_exchange(const base::EndedExchange& e) {
  const std::lock_guard lock(collected().mutex);
  collected().exchanges.push_back({std::string(e.what.kind), std::string(e.what.group), e.what.type,
                                   e.what.count, e.begin_ns, e.ns, e.call});
}

constexpr base::SpanRecorder kRecorder = {add_span, add_exchange};

}  // namespace

void collect_spans(bool on) {
  if (on) {
    take_spans([](const TracedThread&, std::span<const TracedSpan>) {});
    take_exchanges();
    collected().lost = 0;
  }
  base::set_span_recorder(on ? &kRecorder : nullptr);
}

void take_spans(const TakeSpans& take) {
  std::vector<std::shared_ptr<Buffer>> all;
  {
    const std::lock_guard lock(collected().mutex);
    all = collected().buffers;
  }
  std::vector<std::shared_ptr<Buffer>> ended;
  for (const std::shared_ptr<Buffer>& buffer : all) {
    // Read before taking: a thread that has ended has already added all its spans.
    if (buffer->thread_ended) ended.push_back(buffer);
    buffer->take(take);
  }
  const std::lock_guard lock(collected().mutex);
  std::erase_if(collected().buffers,
                [&](const auto& b) { return std::ranges::find(ended, b) != ended.end(); });
}

std::vector<TracedExchange> take_exchanges() {
  const std::lock_guard lock(collected().mutex);
  return std::exchange(collected().exchanges, {});
}

int64_t spans_lost() { return collected().lost; }

std::vector<OpenSpans> open_spans() {
  using base::FlightPage;
  const int64_t now_ns = base::now_ns();
  std::vector<OpenSpans> out;
  for (const FlightPage::Thread& place : base::flight_page().threads) {
    if (place.tid == 0) continue;
    OpenSpans& found = out.emplace_back();
    found.thread = {int64_t(place.tid.load()), text_of(place.name)};
    const uint64_t depth =
        std::min<uint64_t>(place.depth.load(std::memory_order_acquire), FlightPage::kDepth);
    for (uint64_t i = 0; i < depth; ++i) {
      const FlightPage::Open& open = place.open[i];
      const auto begin_ns = int64_t(open.begin_ns.load());
      if (begin_ns == 0) continue;
      const auto kind = base::SpanKind(open.name[3].load() >> 56);
      if (kind == base::SpanKind::phase) continue;
      found.spans.push_back({base::SpanName::of(text_of(open.name).substr(0, 31)),
                             int64_t(open.number.load()), begin_ns, now_ns - begin_ns, 0, 0, kind});
    }
  }
  return out;
}

}  // namespace records
