// SPDX-License-Identifier: Apache-2.0
// The base of communicators that tests make: exchanges do nothing, and each agreement is the rank's
// own value. A test overrides what it needs.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.hpp"

class SilentComm : public comm::Comm {
 public:
  explicit SilentComm(int size = 1, int rank = 0) : size_(size), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  comm::Ticket all_gather(device::View, device::View, device::Queue&) override { return {}; }
  comm::Ticket reduce_scatter(device::View, device::View, device::Queue&) override { return {}; }
  comm::Ticket all_reduce(device::View, device::Queue&) override { return {}; }
  void broadcast(device::View, int) override {}
  void barrier() override {}
  int64_t min(int64_t v) override { return v; }
  int64_t max(int64_t v) override { return v; }
  int64_t sum(int64_t v) override { return v; }
  double max(double v) override { return v; }
  int64_t max(int64_t v, bool& alike) override {
    alike = true;
    return max(v);
  }
  std::vector<std::string> gather_text(const std::string& t) override { return {t}; }
  std::string broadcast_text(const std::string& t, int) override { return t; }

 protected:
  int size_, rank_;
};
