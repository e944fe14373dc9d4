// SPDX-License-Identifier: Apache-2.0
#include "records/trace_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "base/clock.hpp"
#include "device/types.hpp"

namespace records {
namespace {

// Perfetto shows a row as the main thread if its number is the process's.
constexpr int kProcesses = 1000000;
// Rows of threads count from 1.
constexpr int kDeviceRow = 90000, kExchangeRows = 100000;
// Lines that wait for room on a full disk.
constexpr int64_t kMostUnwritten = int64_t{64} << 20;

const char* category_of(base::SpanKind kind) {
  switch (kind) {
    case base::SpanKind::work:
      return "work";
    case base::SpanKind::wait:
      return "wait";
    case base::SpanKind::phase:
      return "phase";
    case base::SpanKind::step:
      return "step";
    case base::SpanKind::block:
      return "block";
    case base::SpanKind::op:
      return "op";
    case base::SpanKind::load:
      return "load";
    case base::SpanKind::save:
      return "save";
    case base::SpanKind::restore:
      return "restore";
    case base::SpanKind::evaluate:
      return "evaluate";
  }
  return "work";
}

std::string_view name_of(const base::SpanName& name, char (&chars)[32]) {
  std::memcpy(chars, name.words().data(), base::SpanName::kMost);
  chars[base::SpanName::kMost] = '\0';
  return chars;
}

void put_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    // Names are UTF-8 that may be cut within a character.
    out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e ? '?' : c;
  }
  out += '"';
}

void put_number(std::string& out, int64_t number) {
  const fmt::format_int text(number);
  out.append(text.data(), text.size());
}

void put_microseconds(std::string& out, int64_t ns) {
  if (ns < 0) out += '-';
  const auto size = uint64_t(ns < 0 ? -ns : ns);
  const fmt::format_int whole(size / 1000);
  out.append(whole.data(), whole.size());
  const auto rest = unsigned(size % 1000);
  out += '.';
  out += char('0' + rest / 100);
  out += char('0' + rest / 10 % 10);
  out += char('0' + rest % 10);
}

void put_argument(std::string& out, std::string_view name, int64_t number) {
  if (!out.empty()) out += ',';
  out += '"';
  out += name;
  out += "\":";
  put_number(out, number);
}

std::string arguments_of(const TracedSpan& span) {
  std::string out;
  if (span.number != base::Span::kNoNumber) put_argument(out, "number", span.number);
  if (span.flops != 0) put_argument(out, "flops", span.flops);
  if (span.bytes != 0) put_argument(out, "bytes", span.bytes);
  return out;
}

std::string json_text(std::string_view text) {
  std::string out;
  put_text(out, text);
  return out;
}

}  // namespace

std::string trace_path(const std::string& run, int64_t step, int rank) {
  return fmt::format("{}/logs/trace/step{:010}.rank{:05}.json", run, step, rank);
}

TraceFile::TraceFile(const std::string& path, const TraceHead& head)
    : head_(head), lines_(path, kMostUnwritten) {
  io::remove_file(path);
  std::string groups;
  for (const auto& [name, first] : head.groups) put_argument(groups, name, first);
  text_ = fmt::format(
      "[{{\"ph\":\"M\",\"name\":\"trainer_trace\",\"pid\":{10},\"args\":{{\"rank\":{0},\"ranks\":{"
      "1}"
      ","
      "\"host\":{2},\"attempt\":{3},\"first_step\":{4},\"last_step\":{5},\"unix_ns\":{6},"
      "\"clock_shift_ns\":{7},\"clock_unsure_ns\":{8},\"groups\":{{{9}}}}}}}\n"
      ",{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{10},\"args\":{{\"name\":\"rank "
      "{0}\"}}}}\n"
      ",{{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":{10},\"args\":{{\"labels\":{2}}}}}\n"
      ",{{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{10},\"args\":{{\"sort_index\":{0}}}"
      "}"
      "}"
      "\n",
      head.rank, head.ranks, json_text(head.host), head.attempt, head.first_step, head.last_step,
      head.unix_ns, head.shift_ns, head.unsure_ns, groups, kProcesses + head.rank);
  row_of({::getpid(), "main"});
  for (const OpenSpans& found : open_spans()) {
    Row& row = row_of(found.thread);
    for (const TracedSpan& span : found.spans)
      if (row.open.insert(span.begin_ns).second) add_begin(span, row.id);
  }
  flush();
}

void TraceFile::name_row(int id, const std::string& name) {
  text_ += fmt::format(
      ",{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{0},\"tid\":{1},\"args\":{{\"name\":{2}}}}}"
      "\n"
      ",{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{0},\"tid\":{1},\"args\":"
      "{{\"sort_index\":{1}}}}}\n",
      kProcesses + head_.rank, id, json_text(name));
}

TraceFile::Row& TraceFile::row_of(const TracedThread& thread) {
  const auto [at, added] = rows_.try_emplace({thread.id, thread.name});
  if (added) {
    at->second.id = int(rows_.size());
    name_row(at->second.id, thread.name);
  }
  return at->second;
}

// Returns the first row of exchanges that is free when this one begins.
int TraceFile::exchange_row(const TracedExchange& e) {
  auto free = std::ranges::find_if(exchange_rows_, [&](int64_t end) { return end <= e.begin_ns; });
  if (free == exchange_rows_.end()) {
    name_row(kExchangeRows + int(exchange_rows_.size()),
             fmt::format("exchanges {}", exchange_rows_.size() + 1));
    free = exchange_rows_.insert(free, 0);
  }
  *free = e.begin_ns + e.ns;
  return kExchangeRows + int(free - exchange_rows_.begin());
}

// Writes the beginning of an event, up to its time.
void TraceFile::begin_event(char phase, int row, int64_t ns) {
  text_ += ",{\"ph\":\"";
  text_ += phase;
  text_ += "\",\"pid\":";
  put_number(text_, kProcesses + head_.rank);
  text_ += ",\"tid\":";
  put_number(text_, row);
  text_ += ",\"ts\":";
  put_microseconds(text_, ns - head_.shift_ns);
  ++events_;
}

void TraceFile::add(const Shown& shown, int row) {
  begin_event('X', row, shown.begin_ns);
  text_ += ",\"dur\":";
  put_microseconds(text_, shown.ns);
  text_ += ",\"name\":";
  put_text(text_, shown.name);
  text_ += ",\"cat\":\"";
  text_ += shown.category;
  text_ += "\",\"args\":{";
  text_ += shown.arguments;
  text_ += "}}\n";
}

void TraceFile::add_begin(const TracedSpan& span, int row) {
  char name[32];
  begin_event('B', row, head_.begin_ns);
  text_ +=
      fmt::format(",\"name\":{},\"cat\":\"{}\",\"args\":{{{}}}}}\n",
                  json_text(name_of(span.name, name)), category_of(span.kind), arguments_of(span));
}

void TraceFile::add_span(const TracedSpan& span, Row& row) {
  if (row.open.erase(span.begin_ns)) {
    begin_event('E', row.id, span.begin_ns + span.ns);
    text_ += "}\n";
  } else if (span.begin_ns >= head_.begin_ns) {
    char name[32];
    add({name_of(span.name, name), category_of(span.kind), span.begin_ns, span.ns,
         arguments_of(span)},
        row.id);
  }
}

void TraceFile::add_exchange(const TracedExchange& e) {
  if (e.begin_ns < head_.begin_ns) return;
  const auto type = device::DType(e.type);
  const int row = exchange_row(e);
  std::string arguments = fmt::format("\"group\":{},\"call\":{}", json_text(e.group), e.call);
  if (e.count > 0)
    arguments += fmt::format(",\"type\":\"{}\",\"count\":{},\"bytes\":{}", device::name_of(type),
                             e.count, e.count * device::size_of(type));
  add({e.kind, "exchange", e.begin_ns, e.ns, arguments}, row);
  // An arrow must begin in a span, and every moment of a step is in one.
  const bool called_in_step = std::ranges::any_of(steps_, [&](const auto& step) {
    return step.first <= e.begin_ns && e.begin_ns < step.second;
  });
  if (!called_in_step) return;
  for (const bool end : {false, true}) {
    begin_event(end ? 'f' : 's', end ? row : 1, e.begin_ns);
    text_ += fmt::format(",\"id\":{},\"name\":\"exchange\",\"cat\":\"call\"{}}}\n",
                         uint64_t(head_.rank) << 32 | e.call, end ? ",\"bp\":\"e\"" : "");
  }
}

void TraceFile::add_step(int64_t step, int64_t begin_ns, int64_t end_ns) {
  steps_.emplace_back(begin_ns, end_ns);
  std::string arguments;
  put_argument(arguments, "number", step);
  add({"whole step", "step", begin_ns, end_ns - begin_ns, arguments}, 1);
  write_exchanges();
  write();
}

void TraceFile::add_device_op(const std::string& name, int64_t flops, int64_t bytes,
                              int64_t begin_ns, int64_t end_ns) {
  if (!std::exchange(device_row_, true)) name_row(kDeviceRow, "GPU");
  std::string arguments;
  put_argument(arguments, "flops", flops);
  put_argument(arguments, "bytes", bytes);
  add({name, "device", begin_ns, end_ns - begin_ns, arguments}, kDeviceRow);
}

void TraceFile::write() {
  take_spans([this](const TracedThread& thread, std::span<const TracedSpan> spans) {
    Row& row = row_of(thread);
    for (const TracedSpan& span : spans) add_span(span, row);
  });
  flush();
}

void TraceFile::write_exchanges() {
  std::vector<TracedExchange> exchanges = take_exchanges();
  std::ranges::sort(exchanges, {}, &TracedExchange::begin_ns);
  for (const TracedExchange& e : exchanges) add_exchange(e);
}

void TraceFile::flush() {
  lines_.append(text_);
  text_.clear();
}

void TraceFile::close(const std::string& reason) {
  const std::vector<OpenSpans> still_open = open_spans();
  write_exchanges();
  write();
  const int64_t now_ns = base::now_ns();
  for (const OpenSpans& found : still_open) {
    Row& row = row_of(found.thread);
    for (TracedSpan span : found.spans)
      if (span.begin_ns >= head_.begin_ns) {
        span.ns = now_ns - span.begin_ns;
        add_span(span, row);
      }
  }
  for (auto& [thread, row] : rows_)
    for (size_t i = row.open.size(); i > 0; --i) {
      begin_event('E', row.id, now_ns);
      text_ += "}\n";
    }
  text_ += fmt::format(
      ",{{\"ph\":\"M\",\"name\":\"trainer_trace_end\",\"pid\":{},\"args\":{{\"reason\":{},"
      "\"events\":{},\"lost\":{}}}}}\n]\n",
      kProcesses + head_.rank, json_text(reason), events_, spans_lost());
  flush();
}

}  // namespace records
