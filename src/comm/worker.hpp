// SPDX-License-Identifier: Apache-2.0
// One thread that does one piece of work at a time, for the main thread to look at without waiting.
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
  ~Worker();  // waits for the work under way
  // Only when the last result was taken.
  void start(std::function<std::string()> work);
  bool done() const;
  std::string take();  // waits for the result: an outcome() of the work (together.hpp)

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
