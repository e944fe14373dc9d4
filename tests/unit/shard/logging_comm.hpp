// SPDX-License-Identifier: Apache-2.0
// A communicator that logs when exchanges begin and when they are waited for, and ends none before.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/silent_comm.hpp"

// Writes what happens into a log: "fsdp 64" for an exchange of 64 elements that begins, "wait fsdp
// 64" for its wait.
class LoggingComm : public SilentComm {
 public:
  LoggingComm(std::string name, int size, std::vector<std::string>& log)
      : SilentComm(size), name_(std::move(name)), log_(log) {}
  comm::Ticket reduce_scatter(device::View send, device::View, device::Queue&) override {
    return start("scatter " + std::to_string(send.count));
  }
  comm::Ticket all_gather(device::View send, device::View, device::Queue&) override {
    return start("gather " + std::to_string(send.count));
  }
  comm::Ticket all_reduce(device::View view, device::Queue&) override {
    return start(std::to_string(view.count));
  }

 private:
  struct Work : comm::Ticket::Work {
    std::string text;
    std::vector<std::string>* log = nullptr;
    void wait() override { log->push_back("wait " + text); }
  };
  comm::Ticket start(const std::string& what) {
    if (size_ == 1) return {};
    works_.push_back(std::make_unique<Work>());
    works_.back()->text = name_ + " " + what;
    works_.back()->log = &log_;
    log_.push_back(works_.back()->text);
    return comm::Ticket(works_.back().get());
  }
  std::string name_;
  std::vector<std::string>& log_;
  std::vector<std::unique_ptr<Work>> works_;
};
