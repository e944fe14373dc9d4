// SPDX-License-Identifier: Apache-2.0
// The checks of --mode selftest. Each one returns rows of the table. All ranks call them, and all
// get the same rows, so all agree on the exit code.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "comm/clocks.hpp"
#include "host/device_choice.hpp"
#include "train/recipe.hpp"

namespace modes::selftest {

using comm::Offset;
using comm::Readings;

// What is wrong with one rank.
struct Complaint {
  int rank = 0;
  std::string cause;
  bool operator==(const Complaint&) const = default;
};

// One row of the table. A row with bad ranks decides the exit code; warnings do not.
struct Row {
  std::string check;                   // "exchange fsdp"
  std::string text;                    // figures
  base::Exit exit = base::Exit::mesh;  // the exit code if the row is bad
  std::vector<Complaint> bad{}, warned{};
};

// What a rank did in a fixed time while all others did the same.
struct Speed {
  double flops = 0;       // FLOP/s of the fastest product
  double mean_flops = 0;  // FLOP/s over the whole time, pauses included
  double bytes = 0;       // bytes/s of copies, read and written bytes added up
  double waited = 0;      // share of the time that the main thread waited for a core
  uint64_t digest = 0;    // of the result of one product
};

// The job that the checks look at. It has many members, because the checks need different ones.
struct Place {
  comm::Session& session;
  comm::Mesh& mesh;
  const train::Recipe& recipe;
  const config::Deck& deck;
  host::DeviceChoice device{};
  int threads = 1;
  std::vector<std::string> hosts{};  // by rank
  std::string job_tag{};             // distinguishes this job's files from other jobs' on the host
  std::vector<Speed> speeds{};       // by rank, once they are measured

  comm::Comm& world() const { return session.world(); }
  int ranks() const { return int(hosts.size()); }
  // Returns "host n3 rank 7".
  std::string name(int rank) const {
    return fmt::format("host {} rank {}", hosts[size_t(rank)], rank);
  }
};

// Latency, speed and values of the exchanges of the world and of both axes of the mesh.
std::vector<Row> check_exchanges(Place& place);
// Loss and norms of a small step on all meshes of this number of ranks.
Row check_meshes(Place& place);
// Products and copies of each rank. Fills place.speeds.
std::vector<Row> check_speed(Place& place);
// The file system of the run directory: written, renamed, locked, synced, and seen by all ranks;
// room for checkpoints.
std::vector<Row> check_files(Place& place);
// Clocks, and threads and cores.
std::vector<Row> check_clocks(Place& place);

// Measures the ranks' speed for about `seconds` each, if nobody has yet.
void need_speeds(Place& place, double seconds);
// Returns the bytes of a checkpoint of the deck's run; 0 if the deck does not determine them.
int64_t checkpoint_bytes(const Place& place);

// The deck of a selftest without a deck: a small CapPa on made-up data.
extern const char* const kSmallDeck;

// ---- parts, for tests

// One exchange of two ranks, as both saw it.
struct Pair {
  int a = 0, b = 0;
  bool wrong_at_a = false, wrong_at_b = false;
};
// Returns the ranks to blame for wrong sums: ranks whose pairs all fail. Such a rank is not blamed
// if it saw only right sums and each partner is such a rank that saw a wrong one.
std::set<int> blamed_by_pairs(const std::vector<Pair>& pairs);

// Returns the ranks to blame for wrong blocks: senders whose block was wrong at all other members
// of their group, and receivers of other wrong blocks. In a group of two ranks, both are blamed.
// `wrong[r]` holds the senders whose block was wrong at r, `members[r]` the ranks of r's group.
std::set<int> blamed_by_blocks(const std::vector<std::set<int>>& wrong,
                               const std::vector<std::vector<int>>& members);

// Returns the ranks whose rate is below `share` of the median of all.
std::vector<int> slow_ranks(const std::vector<double>& rates, double share);

// Returns the ranks whose clocks certainly differ by more than `most_s` from most ranks' clocks. If
// no time has a majority, rank 0's clock counts as right.
std::vector<int> wrong_clocks(const std::vector<Offset>& offsets, double most_s);

// Returns the number of the island of each rank. Ranks are on one island if they see each other's
// files, directly or through other ranks. Island 0 is the largest one; among equals, the one with
// the lowest rank.
std::vector<int> islands(const std::vector<std::set<int>>& unseen);

}  // namespace modes::selftest
