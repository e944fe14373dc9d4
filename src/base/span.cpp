// SPDX-License-Identifier: Apache-2.0
#include "base/span.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/flight_page.hpp"
#include "base/span_recorder.hpp"
#include "base/thread_place.hpp"

namespace base {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// With this alignment a file can be mapped over the memory, whatever the system's page size is.
constexpr size_t kAlignment = 64 << 10;
static_assert(kFlightBytes == kAlignment);
alignas(kAlignment) constinit std::array<FlightWord, kFlightBytes / 8> g_memory{};

// The sinks that need the times of spans, as bits.
constexpr int kKeeper = 1, kRecorder = 2;
std::atomic<int> g_timed_for{0};
std::atomic<const SpanProfiler*> g_profiler{nullptr};
std::atomic<const SpanRecorder*> g_recorder{nullptr};

void time_for(int whom, bool on) {
  if (on)
    g_timed_for |= whom;
  else
    g_timed_for &= ~whom;
}

constinit thread_local FlightPage::Thread t_own{};
constinit thread_local FlightPage::Thread* t_place = nullptr;

FlightPage::Thread& own_place() { return t_place ? *t_place : t_own; }

// One writer, so this needs no locked instruction.
void count_up(FlightWord& word) { word.store(word.load(kRelaxed) + 1, kRelaxed); }

uint64_t place_index(const FlightPage::Thread& place) {
  return &place == &t_own ? 255 : uint64_t(&place - flight_page().threads.data());
}

void put_name(FlightName& into, const SpanName& name, SpanKind kind) {
  into[0].store(name.words()[0], kRelaxed);
  into[1].store(name.words()[1], kRelaxed);
  into[2].store(name.words()[2], kRelaxed);
  into[3].store(name.words()[3] | uint64_t(kind) << 56, kRelaxed);
}

void put_text(std::array<FlightWord, 2>& into, std::string_view text) {
  std::array<uint64_t, 2> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), sizeof words - 1));
  into[0].store(words[0], kRelaxed);
  into[1].store(words[1], kRelaxed);
}

// A text of the page.
struct Text {
  explicit Text(const std::array<FlightWord, 2>& words) {
    for (size_t i = 0; i < words.size(); ++i) {
      const uint64_t word = words[i].load(kRelaxed);
      std::memcpy(chars + 8 * i, &word, sizeof word);
    }
  }
  char chars[17] = {};
};

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

FlightPage& flight_page() { return *std::launder(reinterpret_cast<FlightPage*>(g_memory.data())); }

const char* map_flight_page(int file) {
  // Other threads may write between the two calls. At most their last spans are lost.
  const ssize_t written = ::pwrite(file, g_memory.data(), kFlightBytes, 0);
  if (written != ssize_t(kFlightBytes)) return written < 0 ? std::strerror(errno) : "a short write";
  void* mapped = ::mmap(g_memory.data(), kFlightBytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, file, 0);
  return mapped == MAP_FAILED ? std::strerror(errno) : "";
}

void set_thread_place(FlightPage::Thread* place) { t_place = place; }
FlightPage::Thread* thread_place() { return t_place; }

void keep_spans(bool keep) { time_for(kKeeper, keep); }
bool spans_are_kept() { return g_timed_for & kKeeper; }
void set_span_profiler(const SpanProfiler* profiler) { g_profiler = profiler; }
const SpanProfiler* span_profiler() { return g_profiler; }
void set_span_recorder(const SpanRecorder* recorder) {
  g_recorder = recorder;
  time_for(kRecorder, recorder);
}

Span::Span(const SpanName& name, int64_t number, SpanKind kind, bool timed)
    : name_(name), number_(number), kind_(kind) {
  FlightPage::Thread& place = own_place();
  if (timed || g_timed_for.load(kRelaxed) != 0) begin_ns_ = now_ns();
  const uint64_t depth = place.depth.load(kRelaxed);
  if (depth < FlightPage::kDepth) {
    FlightPage::Open& open = place.open[depth];
    put_name(open.name, name, kind);
    open.number.store(uint64_t(number), kRelaxed);
    open.begin_ns.store(uint64_t(begin_ns_), kRelaxed);
  }
  place.depth.store(depth + 1, std::memory_order_release);
  if (kind != SpanKind::wait) count_up(place.begun);
  told_ = g_profiler.load(kRelaxed);
  if (told_) {
    std::array<char, SpanName::kMost + 1> text{};
    std::memcpy(text.data(), name.words().data(), SpanName::kMost);
    told_->begin(text.data(), number, kind);
  }
}

int64_t Span::end(int64_t flops, int64_t bytes) {
  ended_ = true;
  FlightPage::Thread& place = own_place();
  const uint64_t depth = place.depth.load(kRelaxed);
  if (depth > 0) place.depth.store(depth - 1, kRelaxed);
  if (told_) told_->end(kind_, flops, bytes);
  if (begin_ns_ == 0) return 0;
  const int64_t ns = now_ns() - begin_ns_;
  const int timed_for = g_timed_for.load(kRelaxed);
  if (timed_for & kRecorder)
    if (const SpanRecorder* recorder = g_recorder.load())
      recorder->span({name_, number_, begin_ns_, ns, flops, bytes, kind_});
  if (!(timed_for & kKeeper)) return ns;
  FlightPage& page = flight_page();
  const uint64_t record = page.head.spans.fetch_add(1, kRelaxed);
  FlightPage::Record& into = page.spans[record % FlightPage::kSpans];
  into.place.store(0, kRelaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  into.begin_ns.store(uint64_t(begin_ns_), kRelaxed);
  into.ns.store(uint64_t(ns), kRelaxed);
  into.number.store(uint64_t(number_), kRelaxed);
  put_name(into.name, name_, kind_);
  into.place.store((record + 1) << 8 | place_index(place), std::memory_order_release);
  return ns;
}

void ExchangeSpan::begin(const Call& call) {
  FlightPage& page = flight_page();
  call_ = page.head.exchanges.fetch_add(1, kRelaxed) + 1;
  FlightPage::Exchange& into = page.exchanges[call_ % FlightPage::kExchanges];
  into.call.store(0, kRelaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  into.begin_ns.store(uint64_t(now_ns()), kRelaxed);
  into.ns.store(0, kRelaxed);
  into.count.store(uint64_t(call.count), kRelaxed);
  into.type.store(uint64_t(call.type), kRelaxed);
  put_text(into.kind, call.kind);
  put_text(into.group, call.group);
  const FlightPage::Thread& place = own_place();
  const uint64_t depth = std::min<uint64_t>(place.depth.load(kRelaxed), FlightPage::kDepth);
  uint64_t hash = page.head.calls_hash.load(kRelaxed);
  for (size_t i = 0; i < into.site.size(); ++i) {
    const uint64_t word = depth > 0 ? place.open[depth - 1].name[i].load(kRelaxed) : 0;
    into.site[i].store(word, kRelaxed);
    hash = mixed(hash, word);
  }
  for (const FlightWord* word :
       {&into.count, &into.type, &into.kind[0], &into.kind[1], &into.group[0], &into.group[1]})
    hash = mixed(hash, word->load(kRelaxed));
  page.head.calls_hash.store(hash, kRelaxed);
  into.call.store(call_, std::memory_order_release);
}

void ExchangeSpan::end() {
  if (call_ == 0) return;
  FlightPage::Exchange& into = flight_page().exchanges[call_ % FlightPage::kExchanges];
  // After kExchanges further calls the place belongs to another exchange.
  if (into.call.load(kRelaxed) == call_) {
    const uint64_t begin_ns = into.begin_ns.load(kRelaxed);
    const uint64_t ns = std::max<uint64_t>(uint64_t(now_ns()) - begin_ns, 1);
    into.ns.store(ns, kRelaxed);
    if (const SpanRecorder* recorder = g_recorder.load()) {
      const Text kind(into.kind), group(into.group);
      recorder->exchange({{kind.chars, group.chars, int(into.type.load(kRelaxed)),
                           int64_t(into.count.load(kRelaxed))},
                          call_,
                          int64_t(begin_ns),
                          int64_t(ns)});
    }
  }
  call_ = 0;
}

WholeExchange::WholeExchange(const ExchangeSpan::Call& call)
    : wait_((exchange_.begin(call), SpanName::of(call.kind)), SpanKind::wait) {}

}  // namespace base
