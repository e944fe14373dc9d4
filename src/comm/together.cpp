// SPDX-License-Identifier: Apache-2.0
#include "comm/together.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "base/memory_limit.hpp"
#include "base/span.hpp"
#include "comm/worker.hpp"

namespace comm {

// Returns 'T' + result, or 'E' + exit code as one byte + message.
std::string outcome(const std::function<std::string()>& work) {
  auto failed = [](base::Exit code, const char* what) {
    return std::string{'E', char(code)} + what;
  };
  try {
    return std::string("T").append(work());
  } catch (const base::Error& e) {
    return failed(e.code(), e.what());
  } catch (const std::exception& e) {
    const base::Error error = base::error_of(e);
    return failed(error.code(), error.what());
  }
}

std::vector<std::string> agree_on(comm::Comm& comm, const std::string& mine) {
  std::vector<std::string> all = comm.gather_text(mine);
  std::optional<size_t> first;
  std::string others;
  size_t count = 0;
  constexpr size_t kMaxRanks = 8;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] != 'E') continue;
    if (!first)
      first = rank;
    else if (++count <= kMaxRanks)
      others += fmt::format("{}{}", others.empty() ? "; also failed: rank " : ", ", rank);
  }
  if (count > kMaxRanks) others += fmt::format(" and {} more", count - kMaxRanks);
  if (first) {
    const std::string& e = all[*first];
    // An error that is equal on all ranks is reported without a rank.
    if (std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == e; }))
      throw base::Error(base::Exit(static_cast<unsigned char>(e[1])), e.substr(2), true);
    std::string where = all.size() > 1 ? fmt::format("rank {}: ", *first) : "";
    throw base::Error(base::Exit(static_cast<unsigned char>(e[1])), where + e.substr(2) + others,
                      true, int(*first));
  }
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

std::vector<std::string> beside(comm::Comm& comm, const LongWork& work, const Poll& poll) {
  std::stop_source cancel;
  std::atomic<bool> failed{false};
  Worker worker;  // declared last, so it ends before the variables that its work uses
  worker.start([&]() -> std::string {
    try {
      base::Span span("work aside");
      return work(cancel.get_token());
    } catch (...) {
      if (cancel.stop_requested()) return "";  // cancelled work is not a failure
      failed = true;
      throw;
    }
  });
  try {
    base::Span span("wait for work aside", base::SpanKind::wait);
    for (base::Stopwatch watch; comm.min(int64_t(worker.done())) == 0;) {
      poll();
      if (comm.max(int64_t(failed)) != 0) cancel.request_stop();
      // The pause is at most 2 % of the elapsed time and at most 20 ms.
      std::this_thread::sleep_for(
          std::chrono::duration<double>(std::clamp(0.02 * watch.seconds(), 50e-6, 0.02)));
    }
  } catch (...) {
    cancel.request_stop();
    throw;
  }
  return agree_on(comm, worker.take());
}

std::string on_first(comm::Comm& comm, const std::function<std::string()>& work) {
  std::string text = comm.broadcast_text(comm.rank() == 0 ? outcome(work) : "", 0);
  if (text[0] == 'E')
    throw base::Error(base::Exit(static_cast<unsigned char>(text[1])), text.substr(2), true);
  return text.substr(1);
}

}  // namespace comm
