// SPDX-License-Identifier: Apache-2.0
#include "comm/worker.hpp"

#include "base/thread_scope.hpp"
#include "comm/together.hpp"

namespace comm {

Worker::Worker() : thread_([this] { loop(); }) {}

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::start(std::function<std::string()> work) {
  {
    std::lock_guard lock(mutex_);
    CHECK(!busy_, "the worker is busy");
    work_ = std::move(work);
    busy_ = true;
  }
  changed_.notify_all();
}

bool Worker::done() const {
  std::lock_guard lock(mutex_);
  return busy_ && !work_;
}

std::string Worker::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_ && !work_; });
  busy_ = false;
  return std::move(result_);
}

void Worker::loop() {
  const base::ThreadScope scope("worker");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || work_; });
    if (!work_) return;
    std::function<std::string()> work = work_;
    lock.unlock();
    std::string result = outcome(work);
    lock.lock();
    result_ = std::move(result);
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace comm
