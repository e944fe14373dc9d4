// SPDX-License-Identifier: Apache-2.0
// Keeps MPI exchanges moving while the main thread computes. MPI moves data only inside its own
// calls, so without help an exchange makes no progress until the main thread waits for it.
//
// One thread of this process polls the exchanges in flight and rests between polls. It sleeps while
// all exchanges wait for ranks that will ring this rank's bell. It does not poll while the main
// thread waits, because the main thread then polls all exchanges itself, with less delay.
// Calls of MPI never overlap (MPI_THREAD_SERIALIZED): while exchanges are in flight, every call
// holds the lane's lock.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/bell.hpp"
#include "comm/comm.hpp"

namespace comm {

class MpiLane {
 public:
  struct Work {
    virtual ~Work() = default;
    // Makes progress without waiting. Returns true when the exchange is over.
    virtual bool advance() = 0;
    // True if nothing can be done before the lane's bell rings.
    virtual bool idle() const { return false; }
    bool in_flight = false;  // between start() and the end of the exchange
  };

  // The thread sleeps on this bell, which others may ring as well.
  explicit MpiLane(Bell& bell);
  ~MpiLane();
  MpiLane(const MpiLane&) = delete;

  // `begin` calls MPI to begin the exchange. It goes on in the background after wake().
  template <class Begin>
  void start(Work& work, Begin begin) {
    const Here here(*this);
    std::lock_guard lock(mutex_);
    begin();
    add(work);
  }
  // Wakes the background thread if an exchange needs it. Call it after start() and finish(). The
  // woken thread may preempt the caller, so stop timing before the call.
  void wake();
  // Waits until the exchange is over. Throws the error of an exchange that failed.
  void finish(Work& work);
  // Waits until nothing is in flight. The main thread then calls MPI as it likes, until it starts
  // the next exchange. No rank waits forever, because all ranks have started the same exchanges.
  void drain();
  // Ends the background thread, so that the job can be aborted.
  void stop();
  Background background();

 private:
  // While this object exists, the background thread leaves the lock to the main thread, and other
  // ranks need not wake that thread. Call wake() after the object is destroyed.
  class Here {
   public:
    explicit Here(MpiLane& lane) : lane_(lane) { set(true); }
    ~Here() { set(false); }
    Here(const Here&) = delete;

   private:
    void set(bool here) {
      lane_.main_here_ = here;
      lane_.bell_.attend(here);
    }
    MpiLane& lane_;
  };
  void add(Work& work);  // needs the lock
  void poll();           // needs the lock
  void finish_others();  // after an error; needs the lock
  // True if an exchange needs the background thread now; needs the lock.
  bool busy() const;
  // Polls in the background thread and counts that. True if data moved; needs the lock.
  bool poll_aside();
  void wait_until(const std::function<bool()>& done);
  void loop();

  std::mutex mutex_;
  Bell& bell_;
  std::vector<Work*> in_flight_;  // in the order of their starts
  std::exception_ptr error_;
  std::atomic<bool> main_here_{false};
  bool stop_ = false, others_finished_ = false;
  Background background_;
  std::thread thread_;  // runs from the first exchange on
};

}  // namespace comm
