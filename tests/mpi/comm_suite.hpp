// SPDX-License-Identifier: Apache-2.0
// Checks that every communicator must pass, on real ranks, with data in the memory of a queue.
// Every collective is compared with results that each rank computes by itself, in both orders of
// summation. The suite also covers tickets in flight, agreements, and traffic counters, which must
// equal a plan's.
#pragma once

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
#include "device/memory.hpp"

namespace tests {

using comm::Comm;
using comm::SumOrder;
using device::DType;
using device::View;

inline int checks = 0, failures = 0;
inline int world_rank = 0;

inline void expect(bool good, const std::string& text) {
  ++checks;
  if (good) return;
  if (++failures <= 20) std::printf("FAILED on rank %d: %s\n", world_rank, text.c_str());
}

// Returns the contribution of rank r at place i, which every rank can compute. Magnitudes differ,
// so that the order of a sum changes its bits.
//
// Drawing took most of the time of these programs. Several ranks and checks ask for each number, so
// a thread keeps what it has drawn last for each rank.
template <class T>
T number(int r, int64_t i, const char* what) {
  struct Drawn {
    int rank = -1;
    std::string what{};
    base::Stream stream{};
    std::vector<T> numbers{};
  };
  thread_local std::array<Drawn, 64> drawn;
  Drawn& mine = drawn[size_t(r) % drawn.size()];
  if (mine.rank != r || mine.what != what)
    mine = {r, what, base::Stream(1, what).sub(uint64_t(r)), {}};
  while (int64_t(mine.numbers.size()) <= i) {
    const base::Philox4 b = mine.stream.block(mine.numbers.size());
    mine.numbers.push_back(std::ldexp(T(int32_t(b[0])), int(b[1] % 17) - 40));
  }
  return mine.numbers[size_t(i)];
}

// Returns the sum over ranks [begin, end) of place i along the binary tree, neighbours first. The
// tree lacks its right end if the number of ranks is not a power of two.
template <class T>
T tree(int begin, int end, int64_t i, const char* what) {
  if (end - begin == 1) return number<T>(begin, i, what);
  int middle = begin + int(std::bit_floor(unsigned(end - begin - 1)));
  return tree<T>(begin, middle, i, what) + tree<T>(middle, end, i, what);
}

template <class T>
View view(std::vector<T>& v) {
  return {v.data(), sizeof(T) == 4 ? DType::f32 : DType::f64, int64_t(v.size())};
}

// Numbers in the memory of a queue. The host only moves them as `T`.
template <class T>
class Array {
 public:
  Array(device::Queue& queue, const std::vector<T>& values,
        DType type = sizeof(T) == 4 ? DType::f32 : DType::f64)
      : queue_(queue), buffer_(queue.kind(), ledger_, "test", int64_t(values.size() * sizeof(T))) {
    view = buffer_.view(type).slice(0, int64_t(values.size()));
    set(values);
  }
  void set(const std::vector<T>& values, int64_t begin = 0) {
    device::upload(view.slice(begin, int64_t(values.size())), values.data(), queue_);
  }
  std::vector<T> get() const {
    std::vector<T> out(size_t(view.count));
    device::download(out.data(), view, queue_);
    return out;
  }
  View view;

 private:
  device::Queue& queue_;
  device::Ledger ledger_;
  device::Buffer buffer_;
};

// Tree order must give the bits of the serial tree; library order the sum, to rounding.
template <class T>
bool is_sum(T actual, int size, int64_t i, const char* what, SumOrder order) {
  if (order == SumOrder::tree)
    return std::memcmp(&actual, std::array{tree<T>(0, size, i, what)}.data(), sizeof(T)) == 0;
  long double sum = 0, scale = 0;
  for (int r = 0; r < size; ++r) {
    long double x = number<T>(r, i, what);
    sum += x;
    scale += std::abs(x);
  }
  return std::abs(actual - sum) <= 4 * std::numeric_limits<T>::epsilon() * scale;
}

template <class T>
void sums(Comm& c, SumOrder order, int64_t n, device::Queue& queue) {
  const std::string name = fmt::format(" of {} x {} bytes over {} ranks, {}", n, sizeof(T),
                                       c.size(), order == SumOrder::tree ? "tree" : "library");
  std::vector<T> before(size_t(n * c.size()));
  for (size_t i = 0; i < before.size(); ++i) before[i] = number<T>(c.rank(), int64_t(i), "scatter");
  Array<T> mine(queue, before), part(queue, std::vector<T>(size_t(n), T(-1)));
  c.reduce_scatter(mine.view, part.view, queue).wait();
  bool good = true;
  std::vector<T> sum = part.get();
  for (int64_t i = 0; i < n; ++i)
    good &= is_sum(sum[size_t(i)], c.size(), c.rank() * n + i, "scatter", order);
  expect(good, "reduce_scatter" + name);
  expect(mine.get() == before, "reduce_scatter changed its input" + name);

  std::vector<T> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) all[size_t(i)] = number<T>(c.rank(), i, "reduce");
  Array<T> reduced(queue, all);
  c.all_reduce(reduced.view, queue).wait();
  all = reduced.get();
  good = true;
  for (int64_t i = 0; i < n; ++i) good &= is_sum(all[size_t(i)], c.size(), i, "reduce", order);
  expect(good, "all_reduce" + name);
  expect(c.same(base::xxh3(all.data(), all.size() * sizeof(T))),
         "all_reduce gave ranks different bits" + name);

  // The two must agree to the bit, because the sharding strategy selects one of them.
  Array<T> whole(queue, std::vector<T>(before.size()));
  c.reduce_scatter(mine.view, part.view, queue).wait();
  c.all_gather(part.view, whole.view, queue).wait();
  c.all_reduce(mine.view, queue).wait();
  if (order == SumOrder::tree)
    expect(whole.get() == mine.get(), "reduce_scatter + all_gather differs from all_reduce" + name);
}

template <class T>
void gather(Comm& c, DType type, int64_t n, device::Queue& queue) {
  const std::string name =
      fmt::format("all_gather of {} {} over {} ranks", n, name_of(type), c.size());
  auto value = [](int r, int64_t i) {
    return T(base::Stream(2, "gather").sub(uint64_t(r)).bits(uint64_t(i)));
  };
  std::vector<T> mine(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) mine[size_t(i)] = value(c.rank(), i);
  Array<T> send(queue, mine, type), recv(queue, std::vector<T>(size_t(n * c.size()), T(1)), type);
  auto right = [&] {
    bool good = true;
    std::vector<T> all = recv.get();
    for (int r = 0; r < c.size(); ++r)
      for (int64_t i = 0; i < n; ++i) good &= all[size_t(r * n + i)] == value(r, i);
    return good;
  };
  c.all_gather(send.view, recv.view, queue).wait();
  expect(right(), name);
  recv.set(std::vector<T>(size_t(n * c.size()), T(1)));
  recv.set(mine, c.rank() * n);
  c.all_gather(recv.view.slice(c.rank() * n, n), recv.view, queue).wait();
  expect(right(), name + ", in place");
}

inline void in_flight(Comm& c, SumOrder order, device::Queue& queue) {
  constexpr int kMany = 6;
  struct Three {
    Array<float> send, gathered, scattered, reduced;
  };
  std::vector<std::unique_ptr<Three>> all;
  for (int round = 0; round < 3; ++round) {  // later rounds reuse the requests of the first
    std::vector<comm::Ticket> tickets;
    for (int k = 0; k < kMany; ++k) {
      size_t n = size_t(100 + 977 * k), many = n * size_t(c.size());
      std::vector<float> send(many), reduced(n);
      for (size_t i = 0; i < many; ++i) send[i] = number<float>(c.rank(), int64_t(i), "flight");
      for (size_t i = 0; i < n; ++i) reduced[i] = number<float>(c.rank(), int64_t(i), "flight");
      if (round == 0)
        all.push_back(std::make_unique<Three>(Three{{queue, send},
                                                    {queue, std::vector<float>(many)},
                                                    {queue, std::vector<float>(n)},
                                                    {queue, reduced}}));
      Three& a = *all[size_t(k)];
      a.send.set(send);
      a.gathered.set(std::vector<float>(many));
      a.scattered.set(std::vector<float>(n));
      a.reduced.set(reduced);
      tickets.push_back(c.all_gather(a.send.view.slice(0, int64_t(n)), a.gathered.view, queue));
      tickets.push_back(c.reduce_scatter(a.send.view, a.scattered.view, queue));
      tickets.push_back(c.all_reduce(a.reduced.view, queue));
    }
    // Waits for the newest first, then the oldest first, then every other one.
    for (size_t i = 0; i < tickets.size(); ++i)
      tickets[round == 0   ? tickets.size() - 1 - i
              : round == 1 ? i
                           : (i * 5) % tickets.size()]
          .wait();
    bool good = true;
    for (int k = 0; k < kMany; ++k) {
      std::vector<float> gathered = all[size_t(k)]->gathered.get(),
                         scattered = all[size_t(k)]->scattered.get(),
                         reduced = all[size_t(k)]->reduced.get();
      int64_t n = int64_t(reduced.size());
      for (int64_t i = 0; i < n; ++i) {
        good &= is_sum(reduced[size_t(i)], c.size(), i, "flight", order);
        good &= is_sum(scattered[size_t(i)], c.size(), c.rank() * n + i, "flight", order);
        for (int r = 0; r < c.size(); ++r)
          good &= gathered[size_t(r * n + i)] == number<float>(r, i, "flight");
      }
    }
    expect(good, fmt::format("{} operations in flight at once, round {}", tickets.size(), round));
  }
  comm::Ticket nothing;
  nothing.wait();
}

inline void agreements(Comm& c) {
  int n = c.size(), r = c.rank();
  expect(c.min(int64_t{10} + r) == 10, "min");
  expect(c.max(int64_t{10} + r) == 9 + n, "max");
  expect(c.max(-int64_t{10} - r) == -10, "max of negative numbers");
  expect(c.sum(int64_t{1} << r) == (int64_t{1} << n) - 1, "sum");
  expect(c.max(0.5 * r) == 0.5 * (n - 1), "max of doubles");
  expect(c.same(0xfedcba9876543210ull), "same digest");
  for (int odd = 0; odd < n; ++odd)
    expect(c.same(odd == r ? 7 : 8) == (n == 1),
           fmt::format("rank {} differs without an error", odd));
  expect(c.same(r == 0 ? 1ull << 63 : 0) == (n == 1), "the highest bit counts");

  auto text = [](int rank) {
    return rank == 1 ? std::string()
                     : "rank " + std::to_string(rank) + std::string(size_t(rank * 1000), 'x');
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
    expect(c.broadcast_text(r == root ? binary : "", root) == binary,
           "broadcast_text of any bytes");
    std::vector<float> v(37, float(r));
    c.broadcast(view(v), root);
    expect(v == std::vector<float>(37, float(root)), fmt::format("broadcast from {}", root));
  }
  c.barrier();
}

// Makes equal calls on a plan's communicator and compares the traffic.
inline void traffic(Comm& real, device::Queue& queue) {
  auto paper = comm::make_plan_comm(real.size(), real.rank());
  Array<float> send(queue, std::vector<float>(24)),
      recv(queue, std::vector<float>(24 * size_t(real.size())));
  Array<double> sums(queue, std::vector<double>(9));
  real.reset_traffic();
  for (Comm* c : {&real, paper.get()}) {
    for (int64_t n : {24, 1, 7})
      c->all_gather(send.view.slice(0, n), recv.view.slice(0, n * c->size()), queue).wait();
    for (int64_t n : {24, 3})
      c->reduce_scatter(recv.view.slice(0, n * c->size()), send.view.slice(0, n), queue).wait();
    for (int64_t n : {9, 0, 2}) c->all_reduce(sums.view.slice(0, n), queue).wait();
    c->barrier();
    c->sum(int64_t{1});
    c->broadcast_text("text", 0);
  }
  auto compare = [&](const comm::Traffic& a, const comm::Traffic& b, const char* what,
                     int64_t calls, int64_t bytes) {
    expect(a.calls == b.calls && a.bytes == b.bytes,
           fmt::format("{}: {} calls and {} bytes, the plan says {} and {}", what, a.calls, a.bytes,
                       b.calls, b.bytes));
    expect(real.size() == 1 ? a.calls == 0 : a.calls == calls && a.bytes == bytes,
           fmt::format("{}: {} bytes", what, a.bytes));
  };
  compare(real.gathered(), paper->gathered(), "all_gather", 3, 32 * 4 * real.size());
  compare(real.scattered(), paper->scattered(), "reduce_scatter", 2, 27 * 4 * real.size());
  compare(real.reduced(), paper->reduced(), "all_reduce", 2, 11 * 8);
  expect(real.size() == 1 || real.seconds() > 0, "time of the main thread is counted");
  expect(paper->seconds() == 0, "a plan must count no time");
}

inline void all_of(Comm& c, SumOrder order, device::Queue& queue) {
  for (int64_t n : {1, 2, 3, 17, 1000, 4097})
    sums<float>(c, order, n, queue), sums<double>(c, order, n, queue);
  sums<float>(c, order, 70001, queue);  // beyond the eager limit
  in_flight(c, order, queue);
  for (int64_t n : {1, 5, 30011}) {
    gather<uint32_t>(c, DType::f32, n, queue), gather<uint64_t>(c, DType::f64, n, queue);
    gather<uint16_t>(c, DType::bf16, n, queue), gather<uint16_t>(c, DType::f16, n, queue);
    gather<int32_t>(c, DType::i32, n, queue), gather<int64_t>(c, DType::i64, n, queue);
    gather<uint8_t>(c, DType::u8, n, queue);
  }
  agreements(c);
  traffic(c, queue);
}

// Prints the number of failures on rank 0. Returns the exit code.
inline int verdict(Comm& world, const char* what) {
  int64_t total = world.sum(int64_t{failures});
  if (world.rank() == 0)
    std::printf("%s: %d checks on each of %d ranks, %d failures\n", what, checks, world.size(),
                int(total));
  return total ? 1 : 0;
}

}  // namespace tests
