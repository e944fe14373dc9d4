// Communicators on real ranks (run with 1, 2, 3 and 4): every collective against what each rank can compute by itself,
// both orders of summation, tickets in flight, groups and the mesh, agreements, and traffic counters against those of a
// plan.
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/random.hpp"
#include "comm/mesh.hpp"
#include "ranks.hpp"

namespace {

using comm::Comm;
using comm::SumOrder;
using device::DType;
using device::View;

int checks = 0, failures = 0;
int world_rank = 0;

void expect(bool good, const std::string& text) {
  ++checks;
  if (good) return;
  if (++failures <= 20) std::printf("FAILED on rank %d: %s\n", world_rank, text.c_str());
}

// What rank r contributes at place i: any rank can compute anybody's numbers. Magnitudes differ, so that the order of a
// sum shows.
template <class T>
T number(int r, int64_t i, const char* what) {
  base::Philox4 b = base::Stream(1, what).sub(uint64_t(r)).block(uint64_t(i));
  return std::ldexp(T(int32_t(b[0])), int(b[1] % 17) - 40);
}

// The sum over ranks [begin, end) of place i along the binary tree, neighbours first.
template <class T>
T tree(int begin, int end, int64_t i, const char* what) {
  if (end - begin == 1) return number<T>(begin, i, what);
  int middle = begin + (end - begin) / 2;
  return tree<T>(begin, middle, i, what) + tree<T>(middle, end, i, what);
}

template <class T>
View view(std::vector<T>& v) {
  return {v.data(), sizeof(T) == 4 ? DType::f32 : DType::f64, int64_t(v.size())};
}

// Tree: the bits of the serial tree. Library: the sum, to rounding.
template <class T>
bool is_sum(T actual, int size, int64_t i, const char* what, SumOrder order) {
  if (order == SumOrder::tree)
    return std::memcmp(&actual, std::array{tree<T>(0, size, i, what)}.data(), sizeof(T)) == 0;
  long double sum = 0, scale = 0;
  for (int r = 0; r < size; ++r) {
    long double x = number<T>(r, i, what);
    sum += x, scale += std::abs(x);
  }
  return std::abs(actual - sum) <= 4 * std::numeric_limits<T>::epsilon() * scale;
}

template <class T>
void sums(Comm& c, SumOrder order, int64_t n) {
  const std::string name = fmt::format(" of {} x {} bytes over {} ranks, {}", n, sizeof(T), c.size(),
                                       order == SumOrder::tree ? "tree" : "library");
  std::vector<T> mine(size_t(n * c.size()));
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = number<T>(c.rank(), int64_t(i), "scatter");
  const std::vector<T> before = mine;
  std::vector<T> part(size_t(n), T(-1));
  c.reduce_scatter(view(mine), view(part)).wait();
  bool good = true;
  for (int64_t i = 0; i < n; ++i) good &= is_sum(part[size_t(i)], c.size(), c.rank() * n + i, "scatter", order);
  expect(good, "reduce_scatter" + name);
  expect(mine == before, "reduce_scatter changed what was sent" + name);

  std::vector<T> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) all[size_t(i)] = number<T>(c.rank(), i, "reduce");
  c.all_reduce(view(all)).wait();
  good = true;
  for (int64_t i = 0; i < n; ++i) good &= is_sum(all[size_t(i)], c.size(), i, "reduce", order);
  expect(good, "all_reduce" + name);
  expect(c.same(base::xxh3(all.data(), all.size() * sizeof(T))), "all_reduce gave ranks different bits" + name);

  // The two must agree to the bit: which one is used depends on the sharding strategy.
  std::vector<T> whole(mine.size());
  c.reduce_scatter(view(mine), view(part)).wait();
  c.all_gather(view(part), view(whole)).wait();
  c.all_reduce(view(mine)).wait();
  if (order == SumOrder::tree) expect(whole == mine, "reduce_scatter + all_gather differs from all_reduce" + name);
}

template <class T>
void gather(Comm& c, DType type, int64_t n) {
  const std::string name = fmt::format("all_gather of {} {} over {} ranks", n, name_of(type), c.size());
  auto value = [](int r, int64_t i) { return T(base::Stream(2, "gather").sub(uint64_t(r)).bits(uint64_t(i))); };
  std::vector<T> send(static_cast<size_t>(n)), recv(size_t(n * c.size()), T(1));
  for (int64_t i = 0; i < n; ++i) send[size_t(i)] = value(c.rank(), i);
  auto right = [&] {
    bool good = true;
    for (int r = 0; r < c.size(); ++r)
      for (int64_t i = 0; i < n; ++i) good &= recv[size_t(r * n + i)] == value(r, i);
    return good;
  };
  c.all_gather({send.data(), type, n}, {recv.data(), type, int64_t(recv.size())}).wait();
  expect(right(), name);
  std::fill(recv.begin(), recv.end(), T(1));
  T* own = recv.data() + c.rank() * n;
  std::copy(send.begin(), send.end(), own);
  c.all_gather({own, type, n}, {recv.data(), type, int64_t(recv.size())}).wait();
  expect(right(), name + ", in place");
}

void in_flight(Comm& c, SumOrder order) {
  constexpr int kMany = 6;
  std::vector<std::vector<float>> send(kMany), gathered(kMany), scattered(kMany), reduced(kMany);
  for (int round = 0; round < 3; ++round) {  // later rounds use the requests of the first again
    std::vector<comm::Ticket> tickets;
    for (int k = 0; k < kMany; ++k) {
      size_t n = size_t(100 + 977 * k);
      send[size_t(k)].resize(n * size_t(c.size())), gathered[size_t(k)].assign(n * size_t(c.size()), 0);
      scattered[size_t(k)].assign(n, 0), reduced[size_t(k)].resize(n);
      for (size_t i = 0; i < send[size_t(k)].size(); ++i)
        send[size_t(k)][i] = number<float>(c.rank(), int64_t(i), "flight");
      for (size_t i = 0; i < n; ++i) reduced[size_t(k)][i] = number<float>(c.rank(), int64_t(i), "flight");
      tickets.push_back(c.all_gather(view(send[size_t(k)]).slice(0, int64_t(n)), view(gathered[size_t(k)])));
      tickets.push_back(c.reduce_scatter(view(send[size_t(k)]), view(scattered[size_t(k)])));
      tickets.push_back(c.all_reduce(view(reduced[size_t(k)])));
    }
    // Newest first, then oldest first, then every other one.
    for (size_t i = 0; i < tickets.size(); ++i)
      tickets[round == 0 ? tickets.size() - 1 - i : round == 1 ? i : (i * 5) % tickets.size()].wait();
    bool good = true;
    for (int k = 0; k < kMany; ++k) {
      int64_t n = int64_t(reduced[size_t(k)].size());
      for (int64_t i = 0; i < n; ++i) {
        good &= is_sum(reduced[size_t(k)][size_t(i)], c.size(), i, "flight", order);
        good &= is_sum(scattered[size_t(k)][size_t(i)], c.size(), c.rank() * n + i, "flight", order);
        for (int r = 0; r < c.size(); ++r)
          good &= gathered[size_t(k)][size_t(r * n + i)] == number<float>(r, i, "flight");
      }
    }
    expect(good, fmt::format("{} operations in flight at once, round {}", tickets.size(), round));
  }
  comm::Ticket nothing;
  nothing.wait();
}

void agreements(Comm& c) {
  int n = c.size(), r = c.rank();
  expect(c.min(int64_t{10} + r) == 10, "min");
  expect(c.max(int64_t{10} + r) == 9 + n, "max");
  expect(c.max(-int64_t{10} - r) == -10, "max of negative numbers");
  expect(c.sum(int64_t{1} << r) == (int64_t{1} << n) - 1, "sum");
  expect(c.max(0.5 * r) == 0.5 * (n - 1), "max of doubles");
  expect(c.same(0xfedcba9876543210ull), "same digest");
  for (int odd = 0; odd < n; ++odd)
    expect(c.same(odd == r ? 7 : 8) == (n == 1), fmt::format("rank {} differs and nobody notices", odd));
  expect(c.same(r == 0 ? 1ull << 63 : 0) == (n == 1), "the highest bit counts");

  auto text = [](int rank) {
    return rank == 1 ? std::string() : "rank " + std::to_string(rank) + std::string(size_t(rank * 1000), 'x');
  };
  std::vector<std::string> texts = c.gather_text(text(r));
  bool good = int(texts.size()) == n;
  for (int i = 0; good && i < n; ++i) good &= texts[size_t(i)] == text(i);
  expect(good, "gather_text");
  expect(c.gather_text("").size() == size_t(n), "gather_text of nothing");
  std::string binary("a\0b\xff", 4);
  for (int root = 0; root < n; ++root) {
    expect(c.broadcast_text(r == root ? text(root) : "mine", root) == text(root),
           fmt::format("broadcast_text from {}", root));
    expect(c.broadcast_text(r == root ? binary : "", root) == binary, "broadcast_text of any bytes");
    std::vector<float> v(37, float(r));
    c.broadcast(view(v), root);
    expect(v == std::vector<float>(37, float(root)), fmt::format("broadcast from {}", root));
  }
  c.barrier();
}

// The same calls on a communicator that exists only on paper.
void traffic(Comm& real) {
  auto paper = comm::make_plan_comm(real.size(), real.rank());
  std::vector<float> send(24), recv(24 * size_t(real.size()));
  std::vector<double> sums(9);
  real.reset_traffic();
  for (Comm* c : {&real, paper.get()}) {
    for (int64_t n : {24, 1, 7}) c->all_gather(view(send).slice(0, n), view(recv).slice(0, n * c->size())).wait();
    for (int64_t n : {24, 3}) c->reduce_scatter(view(recv).slice(0, n * c->size()), view(send).slice(0, n)).wait();
    for (int64_t n : {9, 0, 2}) c->all_reduce(view(sums).slice(0, n)).wait();
    c->barrier();
    c->sum(int64_t{1});
    c->broadcast_text("text", 0);
  }
  auto compare = [&](const comm::Traffic& a, const comm::Traffic& b, const char* what, int64_t calls, int64_t bytes) {
    expect(a.calls == b.calls && a.bytes == b.bytes,
           fmt::format("{}: {} calls and {} bytes, the plan says {} and {}", what, a.calls, a.bytes, b.calls, b.bytes));
    expect(real.size() == 1 ? a.calls == 0 : a.calls == calls && a.bytes == bytes,
           fmt::format("{}: {} bytes", what, a.bytes));
  };
  compare(real.gathered(), paper->gathered(), "all_gather", 3, 32 * 4 * real.size());
  compare(real.scattered(), paper->scattered(), "reduce_scatter", 2, 27 * 4 * real.size());
  compare(real.reduced(), paper->reduced(), "all_reduce", 2, 11 * 8);
  expect(real.size() == 1 || real.seconds() > 0, "time of the main thread is counted");
  expect(paper->seconds() == 0, "a plan takes no time");
}

void all_of(Comm& c, SumOrder order) {
  for (int64_t n : {1, 2, 3, 17, 1000, 4097}) sums<float>(c, order, n), sums<double>(c, order, n);
  sums<float>(c, order, 70001);  // beyond the eager limit
  in_flight(c, order);
  for (int64_t n : {1, 5, 30011}) {
    gather<uint32_t>(c, DType::f32, n), gather<uint64_t>(c, DType::f64, n), gather<uint16_t>(c, DType::bf16, n);
    gather<uint16_t>(c, DType::f16, n), gather<int32_t>(c, DType::i32, n), gather<int64_t>(c, DType::i64, n);
    gather<uint8_t>(c, DType::u8, n);
  }
  agreements(c);
  traffic(c);
}

int run(comm::Session& session, int, char**) {
  Comm& world = session.world();
  const int ranks = world.size();
  const bool power = std::has_single_bit(unsigned(ranks));
  world_rank = world.rank();
  expect(session.local_size() >= 1 && session.local_rank() < session.local_size(), "ranks of this node");
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
    all_of(*session.split(0, world.rank(), order), order);
  }
  agreements(world);

  // Ordered by key, not by world rank.
  auto reversed = session.split(5, ranks - 1 - world.rank(), SumOrder::library);
  expect(reversed->rank() == ranks - 1 - world.rank() && reversed->size() == ranks, "keys order the ranks");
  auto alone = session.split(world.rank(), 0, SumOrder::tree);
  expect(alone->size() == 1, "one colour each");
  all_of(*alone, SumOrder::tree);

  for (int replica = 1; replica <= ranks; ++replica) {
    if (ranks % replica) continue;
    comm::MeshShape shape{replica, ranks / replica};
    comm::Mesh m = comm::make_mesh(session, shape, power ? SumOrder::tree : SumOrder::library);
    const std::string name = fmt::format("mesh {}x{}", shape.replica, shape.fsdp);
    expect(m.rank() == world.rank() && m.world == &world, name);
    expect(m.fsdp->size() == shape.fsdp && m.fsdp->rank() == m.fsdp_index && m.fsdp_index == world.rank() % shape.fsdp,
           name + ": fsdp");
    expect(m.replica->size() == shape.replica && m.replica->rank() == m.replica_index &&
               m.replica_index == world.rank() / shape.fsdp,
           name + ": replica");
    // Sums stay within their groups.
    expect(m.fsdp->sum(int64_t{1} << world.rank()) == ((int64_t{1} << shape.fsdp) - 1) << m.replica_index * shape.fsdp,
           name + ": who is in the fsdp group");
    int64_t column = 0;
    for (int r = 0; r < shape.replica; ++r) column |= int64_t{1} << (r * shape.fsdp + m.fsdp_index);
    expect(m.replica->sum(int64_t{1} << world.rank()) == column, name + ": who is in the replica group");
    sums<float>(*m.fsdp, power ? SumOrder::tree : SumOrder::library, 33);
    sums<double>(*m.replica, power ? SumOrder::tree : SumOrder::library, 33);
  }

  int64_t total = world.sum(int64_t{failures});
  if (world.rank() == 0)
    std::printf("collectives: %d checks on each of %d ranks, %d failures\n", checks, ranks, int(total));
  return total ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
