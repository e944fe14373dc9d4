// SPDX-License-Identifier: Apache-2.0
// Communicators. Only this folder calls MPI and NCCL. Collectives sum or move data; none divides.
// The operations of a group of one rank copy or do nothing, so callers need no special case for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/memory.hpp"

namespace comm {

// Counts of one kind of call. Each call below defines which bytes of this rank it counts.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
  double seconds = 0;  // time the main thread waited
};

// A pending operation; wait for it once. A default Ticket is done. The communicator owns the work
// and reuses it afterwards.
class Ticket {
 public:
  struct Work {
    virtual ~Work() = default;
    virtual void wait() = 0;
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

// Host memory that the ranks of a node share.
struct NodeBuffer {
  device::Buffer memory;  // bytes() is 0 unless `first`, so ledgers count a copy once
  bool first = true;      // this rank is the first one that has this copy
  bool only = false;      // all ranks of the communicator have this copy
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Gathers every rank's `send` into recv[size * send.count]. Memory is of the queue's kind, and
  // the call runs in the queue's order. It starts after earlier work of the queue; work that is put
  // in after wait() sees the result. `send` may be reused after wait(). This rank's part of recv
  // may be `send` itself (in place). Counts recv.bytes().
  virtual Ticket all_gather(device::View send, device::View recv, device::Queue& queue) = 0;
  // Sums every rank's `send` and stores this rank's part in recv[send.count / size]. recv must not
  // overlap send. Counts send.bytes().
  virtual Ticket reduce_scatter(device::View send, device::View recv, device::Queue& queue) = 0;
  // Sums f32 or f64 in place. Counts view.bytes().
  virtual Ticket all_reduce(device::View view, device::Queue& queue) = 0;
  // Collectives on host memory.
  Ticket all_gather(device::View send, device::View recv) {
    return all_gather(send, recv, host_queue());
  }
  Ticket reduce_scatter(device::View send, device::View recv) {
    return reduce_scatter(send, recv, host_queue());
  }
  Ticket all_reduce(device::View view) { return all_reduce(view, host_queue()); }
  // Makes memory of this kind. If CPU ranks of one node share it, all_reduce adds up numbers in
  // place, which takes less time than messages. All ranks of the node call in the same order, with
  // equal sizes. Sums in shared memory follow the tree with either SumOrder.
  virtual device::Buffer shared_buffer(device::Kind kind, device::Ledger& ledger,
                                       std::string category, int64_t bytes) {
    return {kind, ledger, std::move(category), bytes};
  }
  // Makes zero-filled memory that the ranks of a node share. A rank reads what others have written
  // after a barrier. Ranks that cannot share memory get a copy each. All ranks of the node call in
  // the same order, with equal sizes.
  virtual NodeBuffer node_buffer(device::Ledger& ledger, std::string category, int64_t bytes) {
    return {{device::Kind::cpu, ledger, std::move(category), bytes}, true, size() == 1};
  }
  // `view` is host memory.
  virtual void broadcast(device::View view, int root) = 0;
  virtual void barrier() = 0;

  // Small agreements between hosts; all ranks must call.
  virtual int64_t min(int64_t value) = 0;
  virtual int64_t max(int64_t value) = 0;
  virtual int64_t sum(int64_t value) = 0;
  virtual double max(double value) = 0;
  // Returns the maximum. Sets `alike` to false if the ranks have called different exchanges before
  // (base::ExchangeSpan): another kind, count, type or group, or the same ones in another order.
  virtual int64_t max(int64_t value, bool& alike) = 0;
  // Returns the texts of all ranks, by rank, on every rank.
  virtual std::vector<std::string> gather_text(const std::string& text) = 0;
  virtual std::string broadcast_text(const std::string& text, int root) = 0;
  bool same(uint64_t digest);  // true if all ranks have the same value

  const Traffic& gathered() const { return gathered_; }
  const Traffic& scattered() const { return scattered_; }
  const Traffic& reduced() const { return reduced_; }
  double seconds() const { return gathered_.seconds + scattered_.seconds + reduced_.seconds; }
  void reset_traffic() { gathered_ = scattered_ = reduced_ = {}; }

 protected:
  static device::Queue& host_queue();
  Traffic gathered_, scattered_, reduced_;
};

// The order of sums over ranks.
enum class SumOrder {
  library,  // the library's order: the same bits on the same mesh
  tree,     // a binary tree over the ranks, neighbours first; needs a power of two
};

// Makes a communicator of `size` planned ranks, which counts bytes and moves nothing.
std::unique_ptr<Comm> make_plan_comm(int size, int rank = 0, const std::string& name = "group");

// Returns the rank that the launcher (mpirun, srun with PMIx) gave this process; 0 without a
// launcher. Works before MPI is started.
int launched_rank();
// Returns the number of ranks that the launcher started with this command; 1 without a launcher.
// Returns 1 also for a process in a script that the launcher started, because the scripts of other
// ranks may run something else.
int launched_ranks();

// Counts the work of the thread that moves MPI exchanges beside the main thread (mpi_lane.hpp).
struct Background {
  int64_t finished = 0;  // exchanges that ended while the main thread computed
  double seconds = 0;    // time in MPI, taken from other threads if the rank has no core to spare
  Background since(const Background& before) const {
    return {finished - before.finished, seconds - before.seconds};
  }
};

class MpiLane;
class NodeMemory;

// MPI itself: initialised once (SERIALIZED), finalised by the destructor. Without mpirun the world
// is one rank.
class Session {
 public:
  // Ends the process with Exit::config if not all ranks start MPI within $TRAINER_MPI_START_S (600
  // s).
  Session(int& argc, char**& argv);
  ~Session();
  Comm& world() { return *world_; }
  // Ranks with the same colour form a group, ordered by key. `name` is for people: "fsdp".
  std::unique_ptr<Comm> split(int colour, int key, SumOrder order,
                              const std::string& name = "group");
  int local_rank() const;  // rank on this node
  int local_size() const;
  // Returns how sums of shared buffers are exchanged, for the log. If only messages are used, the
  // text gives the reason.
  std::string exchange_text() const;
  std::string host() const;
  Background background() const;
  // Ends the job with this exit code; does not return.
  [[noreturn]] static void abort(int code);

 private:
  std::unique_ptr<NodeMemory> node_;
  std::unique_ptr<MpiLane> lane_;
  std::unique_ptr<Comm> world_;
  bool finalize_ = false;
};

std::string mpi_version();

}  // namespace comm
