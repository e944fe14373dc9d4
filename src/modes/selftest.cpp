// SPDX-License-Identifier: Apache-2.0
// --mode selftest: checks the machine that a run would use, before the run: exchanges, the speed of
// each rank, small steps on all meshes, the file system of the run directory, clocks and threads.
// Prints a table with a row for each check, or with --json one object. The last line names what is
// bad: host, rank and cause. Exit 0, 3 (machine or exchange) or 5 (files).
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "host/machine_limits.hpp"
#include "host/threads.hpp"
#include "job/failure.hpp"
#include "modes/mode.hpp"
#include "modes/selftest_checks.hpp"

namespace modes {
namespace selftest {
namespace {
namespace log = base::log;
using Json = nlohmann::ordered_json;

constexpr size_t kMostListed = 8;  // complaints of a row in the table

// Returns the deck's mesh. Without a deck, or if its mesh does not fit, both axes get ranks. In the
// latter case `instead` gets the reason.
comm::MeshShape shape_of(const Call& call, int ranks, std::string& instead) {
  comm::MeshShape squarest{1, ranks};
  for (int replica = 2; replica * replica <= ranks; ++replica)
    if (ranks % replica == 0) squarest = {replica, ranks / replica};
  if (call.start.deck_path.empty()) return squarest;
  try {
    return comm::resolve_mesh(call.recipe.mesh, ranks, call.start.mesh_selector);
  } catch (const base::Error& e) {
    instead = fmt::format(" instead of the deck's mesh ({})", e.what());
    return squarest;
  }
}

const char* state_of(const Row& row) {
  return !row.bad.empty() ? "bad" : !row.warned.empty() ? "warn" : "ok";
}

std::string one_of(const Place& place, const Row& row, const Complaint& c) {
  return fmt::format("{}: {}: {}", row.check, place.name(c.rank), c.cause);
}

// Returns the first complaint, and the other ranks that have some.
std::string verdict_of(const Place& place, const std::vector<Row>& rows,
                       std::vector<Complaint> Row::*kind) {
  std::string first;
  int rank = 0;
  std::set<int> others;
  for (const Row& row : rows)
    for (const Complaint& c : row.*kind) {
      if (first.empty()) {
        first = one_of(place, row, c);
        rank = c.rank;
      }
      if (c.rank != rank) others.insert(c.rank);
    }
  if (!others.empty())
    first += fmt::format(" (also rank{} {}, above)", others.size() == 1 ? "" : "s",
                         fmt::join(others, ", "));
  return first;
}

void print_row(const Place& place, const Row& row) {
  log::line("check    {:<16} {:<4} {}", row.check, state_of(row), row.text);
  for (const auto& [complaints, word] : {std::pair{&row.bad, "bad"}, {&row.warned, "warn"}}) {
    for (size_t i = 0; i < std::min(complaints->size(), kMostListed); ++i)
      log::line("         {:<16} {:<4} {}: {}", "", word, place.name((*complaints)[i].rank),
                (*complaints)[i].cause);
    if (complaints->size() > kMostListed)
      log::line("         {:<16} {:<4} and {} more ranks", "", word,
                complaints->size() - kMostListed);
  }
}

Json json_of(const Place& place, const Row& row) {
  Json ranks = Json::array();
  for (const auto& [complaints, word] : {std::pair{&row.bad, "bad"}, {&row.warned, "warn"}})
    for (const Complaint& c : *complaints)
      ranks.push_back({{"rank", c.rank},
                       {"host", place.hosts[size_t(c.rank)]},
                       {"state", word},
                       {"cause", c.cause}});
  return {{"check", row.check}, {"state", state_of(row)}, {"text", row.text}, {"ranks", ranks}};
}

double median_of(const Place& place, double Speed::*what) {
  std::vector<double> all;
  for (const Speed& speed : place.speeds) all.push_back(speed.*what);
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : host::median_of(all);
}

std::vector<Row> check_all(Place& place) {
  std::vector<Row> rows;
  auto add = [&](const std::vector<Row>& more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  const train::SelftestOptions& options = place.recipe.selftest;
  if (options.has("exchange")) {
    base::set_phase("selftest exchange");
    add(check_exchanges(place));
  }
  const bool exchanges =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.bad.empty(); });
  if (options.has("speed")) {
    base::set_phase("selftest speed");
    add(check_speed(place));
  }
  if (options.has("mesh")) {
    base::set_phase("selftest mesh");
    if (exchanges)
      add({check_meshes(place)});
    else
      add({{.check = "mesh", .text = "not checked, because values of exchanges are wrong"}});
  }
  if (options.has("files")) {
    base::set_phase("selftest files");
    add(check_files(place));
  }
  if (options.has("clocks")) {
    base::set_phase("selftest clocks");
    add(check_clocks(place));
  }
  return rows;
}

int run(Call& call) {
  const base::Stopwatch watch;
  comm::Session& session = *call.session;
  const train::Recipe& recipe = call.recipe;
  recipe.log.set_levels();
  const int threads = host::choose_threads(recipe.run.threads, session.local_size());
  host::start_threads(threads);
  host::DeviceChoice device =
      host::choose_device(session, recipe.run.device, recipe.precision.compute);
  std::string instead;
  const comm::MeshShape shape = shape_of(call, session.world().size(), instead);
  comm::Mesh mesh =
      host::connect_ranks(session, recipe.mesh, shape, comm::SumOrder::library, device);
  Place place{.session = session,
              .mesh = mesh,
              .recipe = recipe,
              .deck = call.deck,
              .device = device,
              .threads = threads,
              .hosts = session.world().gather_text(session.host()),
              .job_tag = session.world().broadcast_text(fmt::format("{}", ::getpid()), 0)};
  const std::set<std::string> hosts(place.hosts.begin(), place.hosts.end());
  if (!call.json)
    log::line("selftest {} rank{} on {} host{}: replica {} x fsdp {}{}, {}; {}", place.ranks(),
              place.ranks() == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s",
              shape.replica, shape.fsdp, instead, device.text, device.exchange);
  const std::vector<Row> rows = check_all(place);
  base::Exit exit = base::Exit::finished;
  for (const Row& row : rows)
    if (!row.bad.empty() && exit == base::Exit::finished) exit = row.exit;
  const bool bad = exit != base::Exit::finished;
  const std::string verdict = verdict_of(place, rows, bad ? &Row::bad : &Row::warned);
  if (call.json) {
    Json checks = Json::array();
    for (const Row& row : rows) checks.push_back(json_of(place, row));
    log::line("{}", Json{{"mode", "selftest"},
                         {"exit", int(exit)},
                         {"verdict", verdict},
                         {"ranks", place.ranks()},
                         {"hosts", hosts},
                         {"dir", recipe.run.dir},
                         {"seconds", watch.seconds()},
                         {"gflops", median_of(place, &Speed::flops) / 1e9},
                         {"gbytes", median_of(place, &Speed::bytes) / 1e9},
                         {"checks", checks}}
                        .dump());
    return int(exit);
  }
  for (const Row& row : rows) print_row(place, row);
  if (bad)
    log::line("selftest bad, exit={}: {}", int(exit), verdict);
  else
    log::line("selftest ok in {:.1f} s{}{}", watch.seconds(),
              verdict.empty() ? "" : "; warning: ", verdict);
  return int(exit);
}

int run_selftest(Call& call) {
  return job::end_all_on_error(*call.session, [&] { return run(call); });
}

}  // namespace
}  // namespace selftest

Mode selftest_row() {
  return {.name = "selftest",
          .doc = "machine, network and disk",
          .on_ranks = true,
          .run = selftest::run_selftest,
          .own_deck = selftest::kSmallDeck,
          .prints_json = true};
}

}  // namespace modes
