// SPDX-License-Identifier: Apache-2.0
#include "modes/bench_spans.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/clock.hpp"
#include "base/flight_page.hpp"
#include "base/span.hpp"
#include "records/trace_file.hpp"

namespace modes {
namespace {

// Returns the nanoseconds of one call, the best of some rounds.
template <class Work>
double ns_of(const Work& work) {
  constexpr int kRounds = 9, kCalls = 20000;
  int64_t best = INT64_MAX;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t begin = base::now_ns();
    for (int i = 0; i < kCalls; ++i) work(i);
    best = std::min(best, base::now_ns() - begin);
  }
  return double(best) / kCalls;
}

// Returns the nanoseconds of a span of a traced step, including the write to a file.
double traced_ns() {
  std::string folder = (std::filesystem::temp_directory_path() / "trainer-bench-XXXXXX").string();
  if (!::mkdtemp(folder.data())) return std::nan("");
  constexpr int kSpans = 4000;  // of a step
  double best = 1e300;
  {
    records::TraceFile file(folder + "/trace.json", {.begin_ns = base::now_ns()});
    records::collect_spans(true);
    for (int round = 0; round < 9; ++round) {
      const int64_t begin = base::now_ns();
      for (int i = 0; i < kSpans; ++i) {
        base::TimedSpan measured("measured", base::SpanKind::op);
        measured.end_s(i + 1, i + 1);
      }
      file.write();
      best = std::min(best, double(base::now_ns() - begin));
    }
    records::collect_spans(false);
  }
  std::filesystem::remove_all(folder);
  return best / kSpans;
}

}  // namespace

SpanMark mark_spans() {
  const base::FlightPage::Head& head = base::flight_page().head;
  return {head.spans.load(), head.exchanges.load()};
}

SpanCost measure_spans(const SpanMark& begun) {
  SpanCost cost;
  cost.begun = begun;
  const bool kept = base::spans_are_kept();
  auto span = [](int i) { const base::Span measured("measured", i); };
  base::keep_spans(false);
  cost.idle_ns = ns_of(span);
  base::keep_spans(true);
  cost.kept_ns = ns_of(span);
  cost.traced_ns = traced_ns();
  base::keep_spans(kept);
  cost.exchange_ns = ns_of([](int i) {
    base::ExchangeSpan exchange;
    exchange.begin({"measured", "self", 0, i});
    exchange.end();
  });
  return cost;
}

double SpanCost::share_of(double span_ns, double step_ms, int64_t steps) const {
  const double ns = span_ns * double(begun.spans) + exchange_ns * double(begun.exchanges);
  return ns * 1e-6 / (step_ms * double(steps));
}

std::string SpanCost::text(double step_ms, int64_t steps) const {
  return fmt::format(
      "idle {:.0f} ns, kept {:.0f} ns, traced {:.0f} ns, an exchange {:.0f} ns; {:.0f} spans and "
      "{:.0f} exchanges a step = {:.3f} % of it, while traced {:.3f} %",
      idle_ns, kept_ns, traced_ns, exchange_ns, double(begun.spans) / double(steps),
      double(begun.exchanges) / double(steps), 100 * share(step_ms, steps),
      100 * traced_share(step_ms, steps));
}

}  // namespace modes
