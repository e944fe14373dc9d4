// SPDX-License-Identifier: Apache-2.0
// Communicators. comm is the only folder that calls MPI (later NCCL). Collectives only ever sum or
// move; nothing divides. A group of one rank is a communicator like any other, whose operations
// copy or do nothing: callers never ask "more than one?".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/queue.hpp"

namespace comm {

// What one kind of call has moved: `bytes` is what this rank contributes or receives, by the
// definition of each call below.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
  double seconds = 0;  // time the main thread was held
};

// An operation under way; wait once. A default Ticket is done. The communicator owns the work and
// uses it again afterwards.
class Ticket {
 public:
  struct Work {
    virtual ~Work() = default;
    virtual void wait() = 0;
    virtual bool poll() = 0;  // moves it on; true when done
  };
  Ticket() = default;
  explicit Ticket(Work* work) : work_(work) {}
  void wait() {
    if (work_) work_->wait();
    work_ = nullptr;
  }

 private:
  Work* work_ = nullptr;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Of memory of the queue's kind, in the queue's order: what it was given before is done first,
  // and what it is given after the ticket's wait() sees the result. Memory of `send` may be used
  // again then, too. recv[size * send.count]; recv's own part may be send itself (in place). bytes
  // = recv.bytes().
  virtual Ticket all_gather(device::View send, device::View recv, device::Queue& queue) = 0;
  // recv[send.count / size] = the sum of everybody's part; recv may be anywhere but in send. bytes
  // = send.bytes().
  virtual Ticket reduce_scatter(device::View send, device::View recv, device::Queue& queue) = 0;
  // In place sum of f32 or f64. bytes = view.bytes().
  virtual Ticket all_reduce(device::View view, device::Queue& queue) = 0;
  // The same of host memory.
  Ticket all_gather(device::View send, device::View recv) {
    return all_gather(send, recv, host_queue());
  }
  Ticket reduce_scatter(device::View send, device::View recv) {
    return reduce_scatter(send, recv, host_queue());
  }
  Ticket all_reduce(device::View view) { return all_reduce(view, host_queue()); }
  // Of host memory.
  virtual void broadcast(device::View view, int root) = 0;
  virtual void barrier() = 0;

  // Small host-side agreements; all ranks must call.
  virtual int64_t min(int64_t value) = 0;
  virtual int64_t max(int64_t value) = 0;
  virtual int64_t sum(int64_t value) = 0;
  virtual double max(double value) = 0;
  // at every rank, by rank
  virtual std::vector<std::string> gather_text(const std::string& text) = 0;
  virtual std::string broadcast_text(const std::string& text, int root) = 0;
  bool same(uint64_t digest);  // do all ranks hold the same value?

  const Traffic& gathered() const { return gathered_; }
  const Traffic& scattered() const { return scattered_; }
  const Traffic& reduced() const { return reduced_; }
  double seconds() const { return gathered_.seconds + scattered_.seconds + reduced_.seconds; }
  void reset_traffic() { gathered_ = scattered_ = reduced_ = {}; }

 protected:
  static device::Queue& host_queue();
  Traffic gathered_, scattered_, reduced_;
};

// How sums are ordered.
enum class SumOrder {
  library,  // whatever MPI does: same bits on the same mesh
  tree,     // neighbours first, a binary tree over the ranks; needs a power of two
};

// A communicator of `size` ranks that exist only on paper: counts bytes, moves nothing (plan).
std::unique_ptr<Comm> make_plan_comm(int size, int rank = 0);

// The rank that the launcher (mpirun, srun with PMIx) gave this process, before MPI is started; 0
// without a launcher.
int launched_rank();
// The number of ranks that the launcher has started alike; 1 without a launcher, and for a process
// within a script that the launcher has started: what the scripts of other ranks run is not known.
int launched_ranks();

// MPI itself: initialised once (FUNNELED), finalised by the destructor. Everything but training
// works without mpirun: then the world is one rank.
class Session {
 public:
  // Ends the process with Exit::config if not all ranks start MPI within $TRAINER_MPI_START_S (600
  // s).
  Session(int& argc, char**& argv);
  ~Session();
  Comm& world() { return *world_; }
  // Ranks with the same colour form a group, ordered by key.
  std::unique_ptr<Comm> split(int colour, int key, SumOrder order);
  int local_rank() const { return local_rank_; }  // on this node
  int local_size() const { return local_size_; }
  std::string host() const;
  // Ends the job with this exit code; does not return.
  [[noreturn]] static void abort(int code);

 private:
  std::unique_ptr<Comm> world_;
  int local_rank_ = 0, local_size_ = 1;
  bool finalize_ = false;
};

std::string mpi_version();

}  // namespace comm
