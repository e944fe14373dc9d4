// SPDX-License-Identifier: Apache-2.0
// One thread that runs one piece of work at a time. The main thread can check for the end without
// waiting.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace comm {

class Worker {
 public:
  Worker();
  ~Worker();  // waits for running work
  // The caller must have taken the last result.
  void start(std::function<std::string()> work);
  bool done() const;
  std::string take();  // waits for the outcome() of the work (together.hpp)

 private:
  void loop();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<std::string()> work_;
  std::string result_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace comm
