// SPDX-License-Identifier: Apache-2.0
// Tests communicators on real ranks (run with 1, 2, 3 and 4). The suite runs on whole worlds in
// both orders of summation, on groups and on the mesh.
#include <signal.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/flight_page.hpp"
#include "base/span.hpp"
#include "comm/large_count.hpp"
#include "comm/shared_sum.hpp"
#include "comm_suite.hpp"
#include "ranks.hpp"

namespace {

using namespace tests;

// The next agreement finds a rank that has called a different exchange than the others.
void unlike_calls(comm::Comm& world) {
  base::flight_page().head.calls_hash = 0;
  bool alike = false;
  expect(world.max(int64_t(world.rank()), alike) == world.size() - 1 && alike, "like calls");
  base::ExchangeSpan call;
  call.begin({"all_reduce", "fsdp", 0, world.rank() == 0 ? 8 : 9});
  call.end();
  expect(world.max(int64_t{1}, alike) == 1 && alike == (world.size() == 1), "unlike calls");
  base::flight_page().head.calls_hash = 0;
}

// An exchange ends while the main thread calls no MPI. Only a failing test reaches the time limit.
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

// Sums of shared buffers have the bits of the tree in either order, as sums by messages do.
// Exchanges in flight touch neither each other nor the numbers beside them.
template <class T>
void in_shared_memory(Comm& world, Comm& c, SumOrder order, device::Queue& queue) {
  constexpr std::array<int64_t, 7> kCounts = {1, 2, 17, 1000, 4097, 70001, 300007};
  const DType type = sizeof(T) == 4 ? DType::f32 : DType::f64;
  int64_t all = 1;
  for (int64_t n : kCounts) all += n + 1;
  device::Ledger ledger;
  const device::Buffer memory =
      world.shared_buffer(queue.kind(), ledger, "test", all * int64_t(sizeof(T)));
  expect(ledger.peak_of("test") == memory.bytes(), "the ledger counts a shared buffer");
  std::vector<T> sent(size_t(memory.bytes()) / sizeof(T)), by_messages;
  auto* numbers = static_cast<T*>(memory.data());
  expect(std::count(numbers, numbers + sent.size(), T(0)) == int64_t(sent.size()),
         "a shared buffer is zero-filled");
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < sent.size(); ++i)
      numbers[i] = sent[i] = number<T>(c.rank(), int64_t(i) + round, "shared");
    by_messages = sent;
    std::vector<comm::Ticket> tickets;
    int64_t at = 1;
    for (int64_t n : kCounts) {
      tickets.push_back(c.all_reduce(memory.view(type).slice(at, n), queue));
      c.all_reduce(view(by_messages).slice(at, n), queue).wait();
      at += n + 1;
    }
    for (size_t i = 0; i < tickets.size(); ++i)
      tickets[round == 0 ? tickets.size() - 1 - i : i].wait();
    bool good = numbers[0] == sent[0];
    at = 1;
    for (int64_t n : kCounts) {
      for (int64_t i = at; i < at + n; ++i) {
        const T sum = tree<T>(0, c.size(), i + round, "shared");
        good &= std::memcmp(&numbers[i], &sum, sizeof sum) == 0;
      }
      good &= numbers[at + n] == sent[size_t(at + n)];
      at += n + 1;
    }
    expect(good, fmt::format("sums in shared memory over {} ranks, round {}", c.size(), round));
    expect(std::memcmp(numbers, by_messages.data(), by_messages.size() * sizeof(T)) == 0,
           fmt::format("messages give the bits of shared memory, {}",
                       order == SumOrder::tree ? "tree" : "library"));
  }
}

// The background threads also finish an exchange in shared memory.
void shared_beside_main(comm::Session& session) {
  Comm& world = session.world();
  if (world.size() == 1) return;
  device::Ledger ledger;
  const device::Buffer memory =
      world.shared_buffer(device::Kind::cpu, ledger, "test", int64_t{4} << 20);
  const device::View numbers = memory.view(DType::f32);
  for (int round = 0; round < 20; ++round) {
    std::fill_n(numbers.f32(), numbers.count, 1.0f);
    const int64_t before = session.background().finished;
    comm::Ticket ticket = world.all_reduce(numbers);
    base::Stopwatch watch;
    while (session.background().finished == before && watch.seconds() < 60)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    expect(session.background().finished > before, "an exchange ends in the background threads");
    ticket.wait();
    expect(std::count(numbers.f32(), numbers.f32() + numbers.count, float(world.size())) ==
               numbers.count,
           "and its sums are there");
  }
}

// The ranks of a node read what one of them wrote. The node's first rank counts the memory.
void one_copy_of_a_node(comm::Session& session) {
  Comm& world = session.world();
  const bool shares = world.size() == 1 || session.exchange_text() == "mpi, sums in shared memory";
  for (const int64_t count : {int64_t{1}, int64_t{5000}, int64_t{3} << 19}) {
    device::Ledger ledger;
    const comm::NodeBuffer node = world.node_buffer(ledger, "test", count * 4);
    auto* numbers = static_cast<float*>(node.memory.data());
    expect(node.only == shares, "all ranks of one node have one copy");
    expect(node.first == (!shares || session.local_rank() == 0), "one rank is the first");
    expect(ledger.peak_of("test") == node.memory.bytes() && (node.memory.bytes() > 0) == node.first,
           "the first rank counts the copy");
    expect(std::count(numbers, numbers + count, 0.0f) == count, "a copy is zero-filled");
    world.barrier();
    for (int64_t i = 0; i < count; ++i)
      if (!shares || i % world.size() == world.rank()) numbers[i] = float(i + 1);
    world.barrier();
    bool good = true;
    for (int64_t i = 0; i < count; ++i) good &= numbers[i] == float(i + 1);
    expect(good, fmt::format("all ranks read all of {} numbers", count));
    world.barrier();
  }
}

// A new group waits for all its ranks, although the memory is older than the group.
void shared_in_new_groups(comm::Session& session) {
  Comm& world = session.world();
  device::Ledger ledger;
  const device::Buffer memory = world.shared_buffer(device::Kind::cpu, ledger, "test", 4096);
  const device::View numbers = memory.view(DType::f32);
  for (int round = 0; round < 200; ++round) {
    std::fill_n(numbers.f32(), numbers.count, 1.0f);
    auto group = session.split(0, world.rank(), SumOrder::library);
    group->all_reduce(numbers).wait();
    expect(std::count(numbers.f32(), numbers.f32() + numbers.count, float(world.size())) ==
               numbers.count,
           fmt::format("new group {} adds up all its ranks", round));
  }
}

// Returns the letter of a process's state in /proc; T: stopped.
char state_of(const std::string& pid) {
  std::ifstream in("/proc/" + pid + "/stat");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const size_t at = text.rfind(')');
  return at == text.npos ? '?' : text[at + 2];
}

// A rank begins an exchange and is stopped. The other ranks add up its part and finish.
void shared_without_first(comm::Session& session) {
  Comm& world = session.world();
  if (session.exchange_text() != "mpi, sums in shared memory") return;
  device::Ledger ledger;
  const device::Buffer memory =
      world.shared_buffer(device::Kind::cpu, ledger, "test", int64_t{4} << 20);
  const device::View numbers = memory.view(DType::f32);
  std::fill_n(numbers.f32(), numbers.count, 1.0f);
  const std::string first = world.gather_text(std::to_string(::getpid())).front();
  if (world.rank() > 0)
    while (state_of(first) != 'T') std::this_thread::sleep_for(std::chrono::milliseconds(1));
  comm::Ticket ticket = world.all_reduce(numbers);
  if (world.rank() == 0) ::raise(SIGSTOP);
  ticket.wait();
  expect(std::count(numbers.f32(), numbers.f32() + numbers.count, float(world.size())) ==
             numbers.count,
         "ranks that run add up everything");
  if (world.rank() == 1) {
    expect(state_of(first) == 'T', "the first rank is still stopped");
    ::kill(std::stoi(first), SIGCONT);
  }
}

// Ranks that begin early may sleep. The one that begins last rings their bells, so that they add up
// pieces, too. Otherwise the last rank would do all the work.
void shared_last_wakes_the_others(comm::Session& session) {
  Comm& world = session.world();
  if (session.exchange_text() != "mpi, sums in shared memory") return;
  comm::NodeMemory node;
  const auto group = comm::SharedGroup::make(node, MPI_COMM_WORLD);
  const auto parts = node.allocate(int64_t{2} << 20);
  expect(group && parts, "the ranks share memory");
  const View mine{parts->of_rank[size_t(node.rank())], DType::f32, parts->bytes / 4};
  comm::Bell& bell = node.bell(node.rank());
  for (int last = 0; last < world.size(); ++last) {
    const bool is_last = world.rank() == last;
    std::fill_n(mine.f32(), mine.count, 1.0f);
    comm::SharedSum sum;
    if (!is_last) sum.begin(*group, *parts, node.rank(), mine);
    world.barrier();
    expect(is_last || sum.idle(), "nothing can be done before all have begun");
    const uint32_t heard = bell.heard();
    world.barrier();
    if (is_last) sum.begin(*group, *parts, node.rank(), mine);
    expect(!is_last || !sum.idle(), "the last one has others to wake");
    if (is_last) sum.advance();
    world.barrier();
    // The session's own exchanges may ring any bell, even the last rank's.
    expect(is_last || bell.heard() != heard, "the last rank rings the bells of the others");
    while (!sum.advance()) std::this_thread::yield();
    world.barrier();
    expect(std::count(mine.f32(), mine.f32() + mine.count, float(world.size())) == mine.count,
           "and the sums are there");
  }
}

// Exchanges of more than a thousand elements go by messages, or by calls of MPI 4.
void beyond_one_call(comm::Session& session, device::Queue& queue) {
  const int64_t longest = std::exchange(comm::counted::longest_call(), 1000);
  const bool long_calls = std::exchange(comm::counted::counts_long(), false);
  if (session.world().rank() == 0)
    std::printf("calls of MPI 4: %s\n", long_calls ? "tested" : "skipped, this MPI has none");
  for (const bool by_calls : {false, true}) {
    if (by_calls && !long_calls) continue;
    comm::counted::counts_long() = by_calls;
    all_of(*session.split(0, session.world().rank(), SumOrder::library), SumOrder::library, queue);
  }
  comm::counted::longest_call() = longest;
  comm::counted::counts_long() = long_calls;
}

int64_t available_bytes() {
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;)
    if (int64_t kib = 0; word == "MemAvailable:" && in >> kib) return kib << 10;
  return 0;
}

// Exchanges of 2^31 + 8 elements of a byte, which no int can count.
int large(comm::Session& session) {
  Comm& world = session.world();
  constexpr int64_t kCount = (int64_t{1} << 31) + 8, kSpare = int64_t{3} << 30;
  const int64_t bytes = kCount * world.size() * world.size(), free = world.min(available_bytes());
  if (free < bytes + kSpare) {
    if (world.rank() == 0)
      std::printf("skipped: %lld bytes of memory are free, and the exchange needs %lld\n",
                  static_cast<long long>(free), static_cast<long long>(bytes + kSpare));
    return 77;
  }
  auto value = [](int rank, int64_t i) {
    return uint8_t((uint64_t(i) * 0x9e3779b97f4a7c15) >> 56) + rank;
  };
  device::Queue queue(device::Kind::cpu);
  device::Ledger ledger;
  const device::Buffer memory(device::Kind::cpu, ledger, "test", kCount * world.size());
  const View all = memory.view(DType::u8).slice(0, kCount * world.size()),
             own = all.slice(world.rank() * kCount, kCount);
  for (int64_t i = 0; i < kCount; ++i) own.u8()[i] = uint8_t(value(world.rank(), i));
  auto differing = [&](int r, int from) {
    int64_t count = 0;
    const uint8_t* part = all.u8() + r * kCount;
    for (int64_t i = 0; i < kCount; ++i) count += part[i] != uint8_t(value(from, i));
    return count;
  };
  world.all_gather(own, all, queue).wait();
  for (int r = 0; r < world.size(); ++r)
    expect(differing(r, r) == 0, fmt::format("all_gather of the part of rank {}", r));
  const int last = world.size() - 1;
  world.broadcast(all.slice(world.rank() == last ? last * kCount : 0, kCount), last);
  expect(world.rank() == last || differing(0, last) == 0, "broadcast");
  return verdict(world, "large counts");
}

int run(comm::Session& session, int argc, char** argv) {
  Comm& world = session.world();
  const int ranks = world.size();
  const bool power = std::has_single_bit(unsigned(ranks));
  world_rank = world.rank();
  if (argc > 1 && std::string_view(argv[1]) == "large") return large(session);
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
    auto group = session.split(0, world.rank(), order);
    all_of(*group, order, queue);
    in_shared_memory<float>(world, *group, order, queue);
    in_shared_memory<double>(world, *group, order, queue);
  }
  beyond_one_call(session, queue);
  agreements(world);
  unlike_calls(world);
  beside_main(session);
  shared_beside_main(session);
  shared_without_first(session);
  shared_last_wakes_the_others(session);
  shared_in_new_groups(session);
  one_copy_of_a_node(session);

  // The group is ordered by key, not by world rank.
  auto reversed = session.split(5, ranks - 1 - world.rank(), SumOrder::library);
  expect(reversed->rank() == ranks - 1 - world.rank() && reversed->size() == ranks,
         "keys order the ranks");
  in_shared_memory<float>(world, *reversed, SumOrder::library, queue);
  // Groups that exchange at once share the memory of the node.
  auto parity = session.split(world.rank() % 2, world.rank(), SumOrder::library);
  in_shared_memory<float>(world, *parity, SumOrder::library, queue);
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
