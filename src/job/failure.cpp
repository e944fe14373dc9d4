// SPDX-License-Identifier: Apache-2.0
#include "job/failure.hpp"

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/memory_limit.hpp"
#include "base/shortage.hpp"
#include "base/text.hpp"
#include "comm/exchange_error.hpp"
#include "job/failure_report.hpp"
#include "job/flight.hpp"
#include "job/hooks.hpp"
#include "job/watchdog.hpp"

namespace job {

namespace {

int leave(const AskedToStop& e) {
  if (!e.way_out().empty())
    write_report(int(e.code()), fmt::format("{}; {}", e.what(), e.way_out()));
  base::log::line("stopped  before the first step ({}): {}; {}", base::where().phase, e.what(),
                  e.way_out().empty() ? "start the same command to continue" : e.way_out());
  base::log::line("done     exit={}", int(e.code()));
  Hooks::before_first_step(int(e.code()), e.what());
  return int(e.code());
}

// Returns the prefix for an error of one rank among several.
std::string rank_text() {
  return base::where().ranks > 1 ? fmt::format("rank {}: ", base::where().rank) : "";
}

// Logs what is known of the memory, if it ran out.
void log_shortage() {
  for (const std::string& text : base::split(base::shortage_text(), '\n'))
    if (!text.empty()) base::log::line("{}", text);
}

// Adds to an error of an exchange what this rank was doing and which rank's calls differ.
std::string with_exchange(const std::string& text) {
  const FlightExchange last = own_flight().last;
  if (last.call == 0) return text;
  // Errors of sealed texts already name the rank that took no part (comm/sealed_text.hpp).
  const std::string parted = Watchdog::who_parted(text.find("MPI_") != text.npos);
  return fmt::format("{}; this rank's newest exchange is call {}, {}{}{}", text, last.call,
                     last.text, parted.empty() ? "" : "; ", parted);
}

void log_error(int code, const std::string& text, bool of_all_ranks) {
  const bool reports = write_report(code, text);
  base::log::error("{}step {} ({}): {}", of_all_ranks ? "" : rank_text(), base::where().step,
                   base::where().phase, text);
  log_shortage();
  Hooks::after_error(reports, code, text);
}

int try_and_agree(comm::Comm& world, const std::function<void()>& work) {
  int code = 0, teller = world.rank();
  std::string text;
  try {
    work();
  } catch (const AskedToStop& e) {
    return leave(e);
  } catch (const comm::ExchangeError&) {
    throw;
  } catch (const base::Error& e) {
    code = int(e.code());
    text = e.what();
    if (e.agreed()) teller = e.teller();
  } catch (const std::exception& e) {
    const base::Error error = base::error_of(e);
    code = int(error.code());
    text = error.what();
  }
  if (world.max(int64_t(code)) == 0) return 0;
  std::vector<std::string> tellers = world.gather_text(std::to_string(teller));
  std::vector<std::string> codes = world.gather_text(std::to_string(code));
  const bool alike = world.same(base::xxh3(text));
  size_t first = 0;
  while (codes[first] == "0") ++first;
  if (world.rank() == std::stoi(tellers[first])) {
    const bool reports = write_report(code, text);
    base::log::error("{}{}", alike ? "" : rank_text(), text);
    log_shortage();
    Hooks::after_error(reports, code, text);
  }
  return std::stoi(codes[first]);
}

// Waits until all ranks have logged what they have to. An exchange that fails here as well changes
// nothing: the job ends with the first error.
void meet(comm::Comm& world) {
  try {
    world.barrier();
  } catch (const std::exception&) {
  }
}

}  // namespace

int try_on_all(comm::Comm& world, const std::function<void()>& work) {
  try {
    return try_and_agree(world, work);
  } catch (const comm::ExchangeError& e) {  // the ranks cannot agree on it
    log_error(int(e.code()), with_exchange(e.what()), false);
    comm::Session::abort(int(e.code()));
  }
}

int end_all_on_error(comm::Session& session, const std::function<int()>& work) {
  int code = int(base::Exit::internal);
  try {
    return work();
  } catch (const AskedToStop& e) {
    return leave(e);
  } catch (const comm::ExchangeError& e) {
    code = int(e.code());
    log_error(code, with_exchange(e.what()), false);
  } catch (const base::Error& e) {
    code = int(e.code());
    // An error that every rank throws is logged once, and before any rank aborts the job.
    bool logs = !e.agreed() || session.world().rank() == e.teller();
    if (logs) log_error(code, e.what(), e.agreed());
    if (e.agreed()) meet(session.world());
  } catch (const std::exception& e) {
    const base::Error error = base::error_of(e);
    code = int(error.code());
    log_error(code, error.what(), false);
  }
  if (session.world().size() > 1) comm::Session::abort(code);
  return code;
}

}  // namespace job
