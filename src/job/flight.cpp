// SPDX-License-Identifier: Apache-2.0
#include "job/flight.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/flight_page.hpp"
#include "base/span.hpp"
#include "device/types.hpp"

namespace job {
namespace {

using base::FlightPage;
using base::FlightWord;

// Copies the text of these words, which may have no final zero.
template <size_t N>
std::string text_of(const std::array<FlightWord, N>& words, size_t most = 8 * N) {
  char text[8 * N + 1] = {};
  for (size_t i = 0; i < N; ++i) {
    const uint64_t word = words[i].load();
    std::memcpy(text + 8 * i, &word, 8);
  }
  text[most] = '\0';
  return text;
}
std::string name_of(const base::FlightName& name) { return text_of(name, base::SpanName::kMost); }

base::SpanKind kind_of(const base::FlightName& name) {
  return base::SpanKind(name[3].load() >> 56);
}

// Returns the newest time that spans, exchanges or the watchdog have left in the page.
int64_t last_sign_ns(const FlightPage& page) {
  uint64_t last = std::max(page.head.alive_ns.load(), page.head.spent_until_ns.load());
  for (const FlightPage::Thread& t : page.threads)
    if (t.tid.load() != 0)
      for (uint64_t i = 0; i < std::min<uint64_t>(t.depth.load(), FlightPage::kDepth); ++i)
        last = std::max(last, t.open[i].begin_ns.load());
  for (const FlightPage::Exchange& e : page.exchanges)
    if (e.call.load() != 0) last = std::max(last, e.begin_ns.load() + e.ns.load());
  for (const FlightPage::Record& r : page.spans)
    if (r.place.load() != 0) last = std::max(last, r.begin_ns.load() + r.ns.load());
  return int64_t(last);
}

Flight flight_of(const FlightPage& page) {
  Flight f;
  f.process = int64_t(page.head.pid.load());
  f.rank = int64_t(page.head.rank.load());
  f.step = int64_t(page.head.step.load());
  f.host = text_of(page.head.host);
  f.phase = name_of(page.head.phase);
  f.exchanges = page.head.exchanges.load();
  f.alive_ns = int64_t(page.head.alive_ns.load());
  for (const FlightPage::Thread& t : page.threads) {
    f.begun += t.begun.load();
    if (t.tid.load() == 0) continue;
    FlightThread thread{text_of(t.name), {}};
    const uint64_t depth = std::min<uint64_t>(t.depth.load(), FlightPage::kDepth);
    // The outermost span of the main thread is the phase, which `phase` already holds.
    const uint64_t first = thread.name == "main" && depth > 0 && name_of(t.open[0].name) == f.phase;
    for (uint64_t i = first; i < depth; ++i) {
      const FlightPage::Open& open = t.open[i];
      const auto number = int64_t(open.number.load());
      std::string text = name_of(open.name);
      if (number != base::Span::kNoNumber) text += fmt::format(" {}", number);
      thread.open.push_back({std::move(text), kind_of(open.name) == base::SpanKind::wait,
                             int64_t(open.begin_ns.load())});
    }
    f.threads.push_back(std::move(thread));
  }
  f.main_ran_ppm = int64_t(page.head.main_ran_ppm.load());
  for (size_t i = 0; i < Spent::kKinds; ++i)
    f.spent.by[i] = 1e-9 * double(page.head.spent_ns[i].load());
  f.spent_until_ns = int64_t(page.head.spent_until_ns.load());
  f.resident_bytes = int64_t(page.head.resident_kib.load()) << 10;
  f.last_sign_ns = last_sign_ns(page);
  f.unix_offset_ns = int64_t(page.head.unix_offset_ns.load());
  const uint64_t known = std::min<uint64_t>(f.exchanges, FlightPage::kExchanges - 1);
  for (uint64_t call = f.exchanges - known + 1; call <= f.exchanges; ++call) {
    const FlightPage::Exchange& e = page.exchanges[call % FlightPage::kExchanges];
    if (e.call.load() == call)
      f.calls.push_back({call, describe(e), int64_t(e.begin_ns.load()), e.ns.load() != 0});
  }
  if (!f.calls.empty() && f.calls.back().call == f.exchanges) f.last = f.calls.back();
  const auto open = std::ranges::find_if(f.calls, [](const FlightExchange& e) { return !e.ended; });
  f.oldest = open == f.calls.end() ? f.last : *open;
  return f;
}

void fill_head(const std::string& host) {
  using std::chrono::duration_cast;
  FlightPage::Head& head = base::flight_page().head;
  const int64_t now = base::now_ns();
  const int64_t unix_ns =
      duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  head.pid = uint64_t(::getpid());
  head.start_ns = uint64_t(now);
  head.unix_offset_ns = uint64_t(unix_ns - now);
  char text[64] = {};
  std::memcpy(text, host.data(), std::min(host.size(), sizeof text - 1));
  for (size_t i = 0; i < head.host.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, text + 8 * i, 8);
    head.host[i] = word;
  }
  head.magic = FlightPage::kMagic;
}

}  // namespace

std::string describe(const FlightPage::Exchange& e) {
  std::string text = fmt::format("{} of {}", text_of(e.kind), text_of(e.group));
  if (const auto count = int64_t(e.count.load()); count > 0)
    text += fmt::format(", {} x {}", device::name_of(device::DType(e.type.load())), count);
  if (const std::string site = name_of(e.site); !site.empty()) text += ", in " + site;
  return text;
}

std::string list_of_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 4;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(kMost, ranks.size()); ++i)
    text += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

std::string flight_file(const std::string& directory, int rank) {
  return fmt::format("{}/{:05}", directory, rank);
}

std::string open_flight_file(const std::string& directory, int rank, const std::string& host) {
  fill_head(host);
  const std::string path = flight_file(directory, rank);
  // Makes a new file, because another process may still read or map the previous attempt's file.
  ::unlink(path.c_str());
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return fmt::format("{}: {}", path, std::strerror(errno));
  // Without reserved room, a store into the mapped page on a full disk would end the process.
  const int reserved = ::posix_fallocate(file, 0, off_t(base::kFlightBytes));
  std::string problem = reserved ? std::strerror(reserved) : base::map_flight_page(file);
  ::close(file);
  return problem.empty() ? "" : fmt::format("{}: {}", path, problem);
}

std::string share_flight_page(const std::string& host) {
  fill_head(host);
  const int file = ::memfd_create("flight", MFD_CLOEXEC);
  if (file < 0) return "";
  if (::posix_fallocate(file, 0, off_t(base::kFlightBytes)) != 0 ||
      base::map_flight_page(file)[0] != '\0') {
    ::close(file);
    return "";
  }
  return fmt::format("/proc/{}/fd/{}", ::getpid(), file);
}

std::optional<Flight> read_flight(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  auto page = std::make_unique<FlightPage>();
  if (!in.read(reinterpret_cast<char*>(page.get()), sizeof(FlightPage)) ||
      page->head.magic.load() != FlightPage::kMagic)
    return {};
  return flight_of(*page);
}

uint64_t work_in(const std::string& path) {
  uint64_t work = 0;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const off_t at = offsetof(FlightPage, head) + offsetof(FlightPage::Head, work);
  if (::pread(file, &work, sizeof work, at) != ssize_t(sizeof work)) work = 0;
  ::close(file);
  return work;
}

Flight own_flight() { return flight_of(base::flight_page()); }

size_t describe_main_thread(char* buffer, size_t size) {
  const FlightPage::Thread& main = base::flight_page().threads[0];
  const uint64_t depth = std::min<uint64_t>(main.depth.load(), FlightPage::kDepth);
  size_t used = 0;
  for (uint64_t i = 0; i < depth && used < size; ++i) {
    char name[32] = {};
    for (size_t w = 0; w < 4; ++w) {
      const uint64_t word = main.open[i].name[w].load();
      std::memcpy(name + 8 * w, &word, 8);
    }
    name[base::SpanName::kMost] = '\0';
    const auto number = int64_t(main.open[i].number.load());
    const char* between = i == 0 ? "" : " > ";
    const size_t room = size - used;
    const auto end = number == base::Span::kNoNumber
                         ? fmt::format_to_n(buffer + used, room, "{}{}", between, name)
                         : fmt::format_to_n(buffer + used, room, "{}{} {}", between, name, number);
    used += std::min(room, end.size);
  }
  return used;
}

}  // namespace job
