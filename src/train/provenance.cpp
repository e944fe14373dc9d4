// SPDX-License-Identifier: Apache-2.0
#include "train/provenance.hpp"

#include <algorithm>
#include <array>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "device/gpu.hpp"
#include "host/surroundings.hpp"
#include "io/version.hpp"
#include "job/flight.hpp"
#include "train/console.hpp"

namespace train {
namespace {

// "n0113 x 4, n0114 x 4", in the order of the ranks.
std::string hosts_text(const std::vector<std::string>& hosts) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < hosts.size();) {
    size_t end = i;
    while (end < hosts.size() && hosts[end] == hosts[i]) ++end;
    parts.push_back(fmt::format("{} x {}", hosts[i], end - i));
    i = end;
  }
  return base::join(parts, ", ");
}

// True for facts that differ even between equal jobs, such as the scheduler's names for them.
// Changed keys of a deck are reported elsewhere, one by one.
bool always_changes(const std::string& name) {
  constexpr std::array kBeginnings = {"env.SLURM_", "env.PBS_", "env.TMPDIR", "deck."};
  return std::ranges::any_of(kBeginnings, [&](const char* b) { return name.starts_with(b); });
}

std::string shown(const job::Facts& facts, const std::string& name) {
  constexpr size_t kLongest = 100;
  const auto found = facts.find(name);
  return found == facts.end() ? "absent" : base::one_line(found->second, kLongest);
}

}  // namespace

job::Facts provenance_of(Attempt& attempt) {
  job::Facts here;
  host::add_environment(host::own_environment(), here);
  host::add_limits(here);
  host::add_libraries(here);
  host::add_machine(here);
  here["program.digest"] = host::program_digest();
  comm::Comm& world = attempt.world();
  std::string text;
  for (const auto& [name, value] : here) text += name + "=" + value + "\n";
  const std::vector<std::string> prints =
      world.gather_text(fmt::format("{:016x}", base::xxh3(text)));
  std::vector<int> others;
  for (int rank = 0; rank < world.size(); ++rank)
    if (prints[size_t(rank)] != prints[0]) others.push_back(rank);
  if (!others.empty()) here["ranks.differ"] = job::list_of_ranks(others);

  Job& job = attempt.job;
  const comm::Mesh& mesh = job.mesh();
  here["mesh.shape"] = fmt::format("replica {} x fsdp {}", mesh.shape.replica, mesh.shape.fsdp);
  here["mesh.hosts"] = hosts_text(world.gather_text(job.session().host()));
  here["mesh.threads"] = fmt::format("{}", job.threads());
  here["mesh.device"] = job.device().name;
  here["mesh.exchange"] = job.device().exchange;
  here["program.version"] = version_line();
  here["program.build"] = build_features();
  here["library.mpi"] = comm::mpi_version();
  here["library.hdf5"] = io::hdf5_version();
  here["library.data"] = library_features();
  here["deck.digest"] = job.deck().digest();
  here["deck.file"] = attempt.start.deck_path;
  here["data.training"] = attempt.state.data;
  if (!attempt.state.tokenizers.empty())
    here["data.tokenizers"] = base::one_line(attempt.state.tokenizers);
  return here;
}

std::vector<std::string> changes_since(const job::Facts& before, const job::Facts& now) {
  constexpr size_t kMost = 8;
  std::vector<std::string> names, out;
  for (const auto& [name, value] : now)
    if (const auto was = before.find(name); was == before.end() || was->second != value)
      names.push_back(name);
  for (const auto& [name, value] : before)
    if (!now.contains(name)) names.push_back(name);
  std::erase_if(names, always_changes);
  std::ranges::sort(names);
  for (const std::string& name : names)
    if (out.size() < kMost)
      out.push_back(fmt::format("{}: {} -> {}", name, shown(before, name), shown(now, name)));
  if (names.size() > kMost)
    out.push_back(
        fmt::format("and {} facts more: tools/status --provenance", names.size() - kMost));
  return out;
}

void keep_provenance(Attempt& attempt) {
  const job::Facts facts = provenance_of(attempt);
  job::AttemptLog* log = attempt.directory->attempts();
  if (!log) return;
  if (const job::Facts* before = log->facts_before())
    for (const std::string& text : changes_since(*before, facts))
      base::log::line("changed  {}", text);
  log->has(facts);
}

}  // namespace train
