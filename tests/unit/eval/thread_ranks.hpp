// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, for evaluators that exchange more than once. Neighbours may
// share a node.
#pragma once

#include <algorithm>
#include <barrier>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/silent_comm.hpp"

namespace rig {

class ThreadRanks {
 public:
  explicit ThreadRanks(int size, int of_node = 1)
      : of_node_(of_node), views_(size_t(size)), texts_(views_.size()), barrier_(size) {
    for (int r = 0; r < size; ++r) ranks_.push_back(std::make_unique<Rank>(*this, r));
  }

  // Runs f(comm) on every rank. An exception on a rank must come on all.
  template <class F>
  void run_all(const F& f) {
    std::vector<std::exception_ptr> problems(ranks_.size());
    {
      std::vector<std::jthread> threads;
      for (size_t r = 0; r < ranks_.size(); ++r)
        threads.emplace_back([&, r] {
          try {
            f(*ranks_[r]);
          } catch (...) {
            problems[r] = std::current_exception();
          }
        });
    }
    for (const std::exception_ptr& p : problems)
      if (p) std::rethrow_exception(p);
  }

 private:
  class Rank : public SilentComm {
   public:
    Rank(ThreadRanks& all, int rank) : SilentComm(int(all.views_.size()), rank), all_(all) {}
    // Adds the views of all ranks by rank.
    comm::Ticket all_reduce(device::View view, device::Queue&) override {
      if (view.type == device::DType::f64) all_.sum<double>(rank_, view);
      if (view.type == device::DType::f32) all_.sum<float>(rank_, view);
      return {};
    }
    void barrier() override { all_.barrier_.arrive_and_wait(); }
    comm::NodeBuffer node_buffer(device::Ledger& ledger, std::string category,
                                 int64_t bytes) override {
      std::shared_ptr<void>& memory = all_.memory_[size_t(rank_ / all_.of_node_)];
      const bool first = rank_ % all_.of_node_ == 0;
      if (first) memory = std::make_shared<std::vector<char>>(size_t(bytes), 0);
      barrier();
      auto* bytes_of_node = static_cast<std::vector<char>*>(memory.get());
      comm::NodeBuffer out{
          {ledger, std::move(category), std::shared_ptr<void>(memory, bytes_of_node->data()),
           first ? bytes : 0},
          first,
          size() <= all_.of_node_};
      barrier();
      return out;
    }
    int64_t min(int64_t v) override { return std::ranges::min(numbers(v)); }
    int64_t max(int64_t v) override { return std::ranges::max(numbers(v)); }
    int64_t max(int64_t v, bool& alike) override {
      alike = true;
      return max(v);
    }
    int64_t sum(int64_t v) override {
      int64_t total = 0;
      for (int64_t one : numbers(v)) total += one;
      return total;
    }
    using SilentComm::max;
    std::vector<std::string> gather_text(const std::string& t) override {
      all_.texts_[size_t(rank_)] = t;
      all_.barrier_.arrive_and_wait();
      std::vector<std::string> texts = all_.texts_;
      all_.barrier_.arrive_and_wait();
      return texts;
    }
    std::string broadcast_text(const std::string& t, int root) override {
      return gather_text(t)[size_t(root)];
    }

   private:
    std::vector<int64_t> numbers(int64_t mine) {
      std::vector<int64_t> out;
      for (const std::string& text : gather_text(std::to_string(mine)))
        out.push_back(std::stoll(text));
      return out;
    }
    ThreadRanks& all_;
  };

  template <class T>
  void sum(int rank, device::View mine) {
    views_[size_t(rank)] = mine;
    barrier_.arrive_and_wait();
    std::vector<T> total(size_t(mine.count), T{});
    for (const device::View& v : views_)
      for (int64_t i = 0; i < mine.count; ++i) total[size_t(i)] += static_cast<T*>(v.data)[i];
    barrier_.arrive_and_wait();
    std::copy(total.begin(), total.end(), static_cast<T*>(mine.data));
    barrier_.arrive_and_wait();
  }

  int of_node_;
  std::vector<device::View> views_;
  std::vector<std::string> texts_;
  std::vector<std::shared_ptr<void>> memory_ = std::vector<std::shared_ptr<void>>(views_.size());
  std::barrier<> barrier_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace rig
