// SPDX-License-Identifier: Apache-2.0
// Spans: the one way to say what a thread does, from here to the end of the scope. Steps, blocks,
// ops, waits, reading, saving and evaluating each have one. Every thread keeps its open spans where
// the watchdog and other processes can read them (flight_page.hpp). Spans that end go to the sinks
// that are on: the flight page's last spans, and a profiler.
//
// A span costs some nanoseconds while no sink is on (--mode bench measures it).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/clock.hpp"

namespace base {

enum class SpanKind : uint8_t {
  work = 0,
  wait = 1,   // for another thread or rank; waiting is not progress
  phase = 2,  // of the job; it may end within a step
  step = 3,
  block = 4,
  op = 5,
  load = 6,
  save = 7,
  restore = 8,
  evaluate = 9,
};

// A name of at most 31 bytes, as words that a span copies.
class SpanName {
 public:
  static constexpr size_t kMost = 31;

  template <size_t N>
  consteval SpanName(const char (&literal)[N]) : SpanName(std::string_view(literal, N - 1), 0) {
    static_assert(N - 1 <= kMost, "a span's name has at most 31 bytes");
  }
  // Cuts longer texts.
  static constexpr SpanName of(std::string_view text) { return {text.substr(0, kMost), 0}; }
  constexpr const std::array<uint64_t, 4>& words() const { return words_; }

 private:
  constexpr SpanName(std::string_view text, int) {
    for (size_t i = 0; i < text.size(); ++i)
      words_[i / 8] |= uint64_t(static_cast<unsigned char>(text[i])) << (8 * (i % 8));
  }
  std::array<uint64_t, 4> words_{};
};

struct SpanProfiler;

class Span {
 public:
  static constexpr int64_t kNoNumber = INT64_MIN;

  explicit Span(const SpanName& name, SpanKind kind = SpanKind::work)
      : Span(name, kNoNumber, kind) {}
  Span(const SpanName& name, int64_t number, SpanKind kind = SpanKind::work)
      : Span(name, number, kind, false) {}
  ~Span() {
    if (!ended_) end();
  }
  Span(const Span&) = delete;

 protected:
  Span(const SpanName& name, int64_t number, SpanKind kind, bool timed);
  // Returns its nanoseconds if they are known. The cost is for profilers.
  int64_t end(int64_t flops = 0, int64_t bytes = 0);

 private:
  SpanName name_;
  const SpanProfiler* told_ = nullptr;  // has seen the beginning, so it must see the end
  int64_t number_, begin_ns_ = 0;
  SpanKind kind_;
  bool ended_ = false;
};

// A span that the caller measures.
class TimedSpan : public Span {
 public:
  explicit TimedSpan(const SpanName& name, SpanKind kind = SpanKind::work)
      : Span(name, kNoNumber, kind, true) {}
  // Ends the span, whose work had this cost, and returns its seconds. Call it once.
  double end_s(int64_t flops = 0, int64_t bytes = 0) { return 1e-9 * double(end(flops, bytes)); }
};

// Starts or stops keeping the times of spans and the last spans.
void keep_spans(bool keep = true);
bool spans_are_kept();

// A profiler that wants to know of every span, and of the exchanges under plan. Set it while no
// other thread opens spans.
struct SpanProfiler {
  // `number` may be Span::kNoNumber.
  void (*begin)(std::string_view name, int64_t number, SpanKind kind);
  void (*end)(SpanKind kind, int64_t flops, int64_t bytes);
  void (*exchange_begins)(int64_t exchange, std::string_view text, int64_t bytes) = nullptr;
  void (*exchange_is_waited_for)(int64_t exchange) = nullptr;
};
void set_span_profiler(const SpanProfiler* profiler);
const SpanProfiler* span_profiler();

// An exchange between ranks, from its call until its last byte has arrived.
class ExchangeSpan {
 public:
  struct Call {
    std::string_view kind, group;  // at most 15 bytes each
    int type = 0;                  // device::DType
    int64_t count = 0;             // elements; 0 where ranks differ
  };
  void begin(const Call& call);
  void end();  // any thread may end it; the second end does nothing

 private:
  uint64_t call_ = 0;
};

// Marks an exchange that ends in this scope.
class WholeExchange {
 public:
  explicit WholeExchange(const ExchangeSpan::Call& call);
  ~WholeExchange() { exchange_.end(); }
  WholeExchange(const WholeExchange&) = delete;

 private:
  ExchangeSpan exchange_;
  Span wait_;
};

}  // namespace base
