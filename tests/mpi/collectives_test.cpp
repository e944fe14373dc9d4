// SPDX-License-Identifier: Apache-2.0
// Tests communicators on real ranks (run with 1, 2, 3 and 4). The suite runs on whole worlds in
// both orders of summation, on groups and on the mesh.
#include <bit>
#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "comm_suite.hpp"
#include "ranks.hpp"

namespace {

using namespace tests;

// An exchange ends while the main thread calls no MPI. The limit of time is for a failure alone.
void beside_main(comm::Session& session) {
  const int ranks = session.world().size();
  if (ranks == 1) return;
  for (SumOrder order : {SumOrder::library, SumOrder::tree}) {
    if (order == SumOrder::tree && !std::has_single_bit(unsigned(ranks))) continue;
    auto group = session.split(0, session.world().rank(), order);
    std::vector<float> ones(1 << 20, 1.0f);
    const int64_t before = session.background().finished;
    comm::Ticket ticket = group->all_reduce(view(ones));
    base::Stopwatch watch;
    while (session.background().finished == before && watch.seconds() < 60)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    expect(session.background().finished > before, "an exchange ends beside the main thread");
    ticket.wait();
    expect(ones == std::vector<float>(ones.size(), float(ranks)), "and its sum is right");
  }
}

int run(comm::Session& session, int, char**) {
  Comm& world = session.world();
  const int ranks = world.size();
  const bool power = std::has_single_bit(unsigned(ranks));
  world_rank = world.rank();
  device::Queue queue(device::Kind::cpu);
  expect(session.local_size() >= 1 && session.local_rank() < session.local_size(),
         "ranks of this node");
  expect(!session.host().empty() && !comm::mpi_version().empty(), "names");

  for (SumOrder order : {SumOrder::library, SumOrder::tree}) {
    if (order == SumOrder::tree && !power) {
      try {
        session.split(0, world.rank(), order);
        expect(false, "tree sums over three ranks were accepted");
      } catch (const base::Error& e) {
        expect(std::string(e.what()).find("power of two") != std::string::npos, e.what());
      }
      continue;
    }
    all_of(*session.split(0, world.rank(), order), order, queue);
  }
  agreements(world);
  beside_main(session);

  // The group is ordered by key, not by world rank.
  auto reversed = session.split(5, ranks - 1 - world.rank(), SumOrder::library);
  expect(reversed->rank() == ranks - 1 - world.rank() && reversed->size() == ranks,
         "keys order the ranks");
  auto alone = session.split(world.rank(), 0, SumOrder::tree);
  expect(alone->size() == 1, "one colour each");
  all_of(*alone, SumOrder::tree, queue);

  for (int replica = 1; replica <= ranks; ++replica) {
    if (ranks % replica) continue;
    comm::MeshShape shape{replica, ranks / replica};
    comm::Mesh m = comm::make_mesh(session, shape, power ? SumOrder::tree : SumOrder::library);
    const std::string name = fmt::format("mesh {}x{}", shape.replica, shape.fsdp);
    expect(m.rank() == world.rank() && m.world == &world, name);
    expect(m.fsdp->size() == shape.fsdp && m.fsdp->rank() == m.fsdp_index &&
               m.fsdp_index == world.rank() % shape.fsdp,
           name + ": fsdp");
    expect(m.replica->size() == shape.replica && m.replica->rank() == m.replica_index &&
               m.replica_index == world.rank() / shape.fsdp,
           name + ": replica");
    // Sums must stay within their groups.
    expect(m.fsdp->sum(int64_t{1} << world.rank()) == ((int64_t{1} << shape.fsdp) - 1)
                                                          << m.replica_index * shape.fsdp,
           name + ": who is in the fsdp group");
    int64_t column = 0;
    for (int r = 0; r < shape.replica; ++r) column |= int64_t{1} << (r * shape.fsdp + m.fsdp_index);
    expect(m.replica->sum(int64_t{1} << world.rank()) == column,
           name + ": who is in the replica group");
    sums<float>(*m.fsdp, power ? SumOrder::tree : SumOrder::library, 33, queue);
    sums<double>(*m.replica, power ? SumOrder::tree : SumOrder::library, 33, queue);
  }

  return verdict(world, "collectives");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
