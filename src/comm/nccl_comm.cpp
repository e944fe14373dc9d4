// SPDX-License-Identifier: Apache-2.0
// NCCL back end. Communicators do not block, so polling finds a rank that never joins or an
// operation that cannot be enqueued. All operations of this process run in one stream beside the
// computing stream. An operation starts after the earlier work of its queue, and work that is put
// into the queue after wait() starts after the operation. The host waits for neither.
#include <nccl.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/span.hpp"
#include "comm/gpu_exchange.hpp"
#include "device/cuda.hpp"
#include "device/cuda_library.hpp"
#include "device/gpu.hpp"
#include "device/memory.hpp"

namespace comm {
namespace {

#define NCCL(function) LIBRARY_FUNCTION("libnccl.so.2", function)
namespace gpu = device::gpu;

ncclDataType_t type_of(device::DType type) {
  switch (type) {
    case device::DType::f32:
      return ncclFloat32;
    case device::DType::f64:
      return ncclFloat64;
    case device::DType::bf16:
      return ncclBfloat16;
    case device::DType::f16:
      return ncclFloat16;
    case device::DType::i32:
      return ncclInt32;
    case device::DType::i64:
      return ncclInt64;
    case device::DType::u8:
      return ncclUint8;
  }
  return ncclUint8;
}

// Measures the seconds of a wait. The time between two looks counts at most one second, so that a
// suspended job is not taken for a stall.
class Patience {
 public:
  void reset() {
    waited_s_ = 0;
    last_s_ = base::now_s();
  }
  double look() {
    double now = base::now_s();
    waited_s_ += std::min(now - last_s_, 1.0);
    last_s_ = now;
    return waited_s_;
  }

 private:
  double waited_s_ = 0, last_s_ = base::now_s();
};

struct NcclGroup {
  ncclComm_t comm = nullptr;  // null for a group of one rank or a failed one
  std::string kind;           // "fsdp", "replica"
  std::string name;           // names the ranks in messages
};

// One collective. It can be reused when it has ended and wait() was called.
struct Operation : Ticket::Work {
  ~Operation() override {
    gpu::free_event(ready);
    gpu::free_event(done);
  }
  void wait() override {
    gpu::wait(done, stream);
    waited = true;
  }

  void* ready = gpu::make_event();
  void* done = gpu::make_event();
  void* stream = nullptr;  // the computing stream
  NcclGroup* group = nullptr;
  const char* what = "";
  int64_t number = 0;
  device::View view;
  base::ExchangeSpan span;
  bool waited = true, ended = true;
};

}  // namespace

class NcclLane {
 public:
  explicit NcclLane(double timeout_s) : queue_(device::Kind::cuda), timeout_s_(timeout_s) {
    device::while_waiting([this] { watch(); });
  }
  ~NcclLane() { device::while_waiting({}); }

  void join(NcclGroup& group, int ranks, int rank, const std::string& id) {
    ncclUniqueId unique;
    CHECK(id.size() == sizeof unique);
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(group, NCCL(ncclCommInitRankConfig)(&group.comm, ranks, unique, rank, &config),
          "joining it");
    groups_.push_back(&group);
  }

  // Never throws. Waits for pending operations, or aborts them if an error is being handled or
  // occurs.
  void leave(NcclGroup& group) {
    std::erase(groups_, &group);
    try {
      if (group.comm && std::uncaught_exceptions() == 0) {
        queue_.synchronize();
        check(group, NCCL(ncclCommFinalize)(group.comm), "leaving it");
        NCCL(ncclCommDestroy)(group.comm);
        group.comm = nullptr;
      }
    } catch (const std::exception&) {
    }
    abort(group);
  }

  // Runs a collective; `call(stream)` puts it into the stream.
  template <class Call>
  Ticket run(NcclGroup& group, const char* what, device::View view, device::Queue& queue,
             Call call) {
    if (!group.comm)
      base::fail(base::Exit::mesh, "NCCL: {}: {}: exchanges between GPUs have failed before",
                 group.name, what);
    Operation* op = free_operation();
    op->group = &group;
    op->what = what;
    op->view = view;
    op->number = ++operations_;
    op->stream = queue.stream();
    op->span.begin({what, group.kind, int(view.type), view.count});
    gpu::record(op->ready, op->stream);
    gpu::wait(op->ready, queue_.stream());
    check(group, call(static_cast<cudaStream_t>(queue_.stream())), describe(*op).c_str());
    gpu::record(op->done, queue_.stream());
    op->waited = op->ended = false;
    if (pending_.empty()) patience_.reset();
    pending_.push_back(op);
    return Ticket(op);
  }

 private:
  static std::string describe(const Operation& op) {
    return fmt::format("{} (operation {} of this rank, {} bytes of {})", op.what, op.number,
                       op.view.bytes(), name_of(op.view.type));
  }

  // Aborts all communicators and throws. A pending operation would block the freeing of memory
  // during the unwinding.
  [[noreturn]] void fail(NcclGroup& group, const std::string& what, const std::string& why) {
    abort(group);
    for (NcclGroup* other : std::exchange(groups_, {})) abort(*other);
    base::fail(base::Exit::mesh,
               "NCCL: rank {}, {}: {}: {}; NCCL_DEBUG=INFO logs more, mesh.gpu_exchange = \"mpi\" "
               "avoids NCCL",
               base::where().rank, group.name, what, why);
  }
  static std::string text_of(NcclGroup& group, ncclResult_t result) {
    const char* detail = NCCL(ncclGetLastError)(group.comm);
    return fmt::format("{} ({})", NCCL(ncclGetErrorString)(result),
                       detail && *detail ? detail : "no detail");
  }

  // Waits until NCCL has accepted the call; a non-blocking call may return before that.
  void check(NcclGroup& group, ncclResult_t result, const char* what) {
    if (result == ncclInProgress) {
      Patience patience;
      do {
        std::this_thread::yield();
        result = ncclSuccess;
        if (ncclResult_t query = NCCL(ncclCommGetAsyncError)(group.comm, &result);
            query != ncclSuccess)
          result = query;
        if (result == ncclInProgress && timeout_s_ > 0 && patience.look() > timeout_s_)
          fail(group, what,
               fmt::format(
                   "no end after {:.0f} s: another rank hangs, has ended or runs other operations",
                   timeout_s_));
      } while (result == ncclInProgress);
    }
    if (result != ncclSuccess) fail(group, what, text_of(group, result));
  }

  void abort(NcclGroup& group) {
    if (group.comm) NCCL(ncclCommAbort)(group.comm);
    group.comm = nullptr;
  }

  // Drops ended operations from the queue. They end in the order they began, because there is one
  // stream.
  void retire() {
    while (!pending_.empty() && gpu::reached(pending_.front()->done)) {
      pending_.front()->ended = true;
      pending_.front()->span.end();
      pending_.pop_front();
      patience_.reset();
    }
  }

  void watch() {
    if (std::this_thread::get_id() != thread_) return;  // other threads wait for their own copies
    retire();
    if (groups_.empty()) return;
    std::string oldest = pending_.empty() ? "no operation is pending" : describe(*pending_.front());
    for (NcclGroup* group : groups_) {
      ncclResult_t state = ncclSuccess;
      NCCL(ncclCommGetAsyncError)(group->comm, &state);
      if (state != ncclSuccess && state != ncclInProgress)
        fail(*group, "at " + oldest, text_of(*group, state));
    }
    if (pending_.empty() || timeout_s_ == 0) return;
    Operation& op = *pending_.front();
    if (patience_.look() > timeout_s_)
      fail(*op.group, describe(op),
           fmt::format("not ended after {:.0f} s (mesh.gpu_timeout_s): another rank hangs, has "
                       "ended or runs other operations",
                       timeout_s_));
  }

  Operation* free_operation() {
    retire();
    for (auto& op : pool_)
      if (op->waited && op->ended) return op.get();
    pool_.push_back(std::make_unique<Operation>());
    return pool_.back().get();
  }

  device::Queue queue_;
  const std::thread::id thread_ = std::this_thread::get_id();
  double timeout_s_;
  Patience patience_;  // time since an operation ended or the first one began
  int64_t operations_ = 0;
  std::vector<std::unique_ptr<Operation>> pool_;
  std::deque<Operation*> pending_;
  std::vector<NcclGroup*> groups_;
};

namespace {

class NcclComm : public Comm {
 public:
  NcclComm(std::unique_ptr<Comm> host, const std::string& name, std::shared_ptr<NcclLane> lane)
      : host_(std::move(host)), lane_(std::move(lane)) {
    group_.kind = name;
    group_.name = fmt::format("{} group of {} as its rank {}", name, size(), rank());
    if (size() == 1) return;
    lane_->join(group_, size(), rank(), agree_on_id());
  }
  ~NcclComm() override { lane_->leave(group_); }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  using Comm::all_gather;
  using Comm::all_reduce;
  using Comm::reduce_scatter;

  Ticket all_gather(device::View send, device::View recv, device::Queue& queue) override {
    CHECK(recv.count == send.count * size() && recv.type == send.type);
    Counted counted(gathered_, size() > 1, recv.bytes());
    if (queue.kind() == device::Kind::cpu) return host_->all_gather(send, recv);
    if (size() == 1) {
      device::copy(recv, send, queue);
      return Ticket();
    }
    return lane_->run(group_, "all_gather", recv, queue, [&](cudaStream_t stream) {
      return NCCL(ncclAllGather)(send.data, recv.data, size_t(send.count), type_of(send.type),
                                 group_.comm, stream);
    });
  }

  Ticket reduce_scatter(device::View send, device::View recv, device::Queue& queue) override {
    CHECK(send.count == recv.count * size() && recv.type == send.type);
    Counted counted(scattered_, size() > 1, send.bytes());
    if (queue.kind() == device::Kind::cpu) return host_->reduce_scatter(send, recv);
    if (size() == 1) {
      device::copy(recv, send, queue);
      return Ticket();
    }
    return lane_->run(group_, "reduce_scatter", send, queue, [&](cudaStream_t stream) {
      return NCCL(ncclReduceScatter)(send.data, recv.data, size_t(recv.count), type_of(send.type),
                                     ncclSum, group_.comm, stream);
    });
  }

  Ticket all_reduce(device::View view, device::Queue& queue) override {
    Counted counted(reduced_, size() > 1 && view.count > 0, view.bytes());
    if (queue.kind() == device::Kind::cpu) return host_->all_reduce(view);
    if (size() == 1 || view.count == 0) return {};
    return lane_->run(group_, "all_reduce", view, queue, [&](cudaStream_t stream) {
      return NCCL(ncclAllReduce)(view.data, view.data, size_t(view.count), type_of(view.type),
                                 ncclSum, group_.comm, stream);
    });
  }

  void broadcast(device::View view, int root) override { host_->broadcast(view, root); }
  void barrier() override { host_->barrier(); }
  int64_t min(int64_t value) override { return host_->min(value); }
  int64_t max(int64_t value) override { return host_->max(value); }
  int64_t sum(int64_t value) override { return host_->sum(value); }
  double max(double value) override { return host_->max(value); }
  int64_t max(int64_t value, bool& alike) override { return host_->max(value, alike); }
  std::vector<std::string> gather_text(const std::string& text) override {
    return host_->gather_text(text);
  }
  std::string broadcast_text(const std::string& text, int root) override {
    return host_->broadcast_text(text, root);
  }

 private:
  // Counts a call and the time it held the main thread.
  struct Counted {
    Counted(Traffic& t, bool moves, int64_t bytes) : traffic(t) {
      if (moves) {
        ++t.calls;
        t.bytes += bytes;
      }
    }
    ~Counted() { traffic.seconds += base::now_s() - begin; }
    Traffic& traffic;
    double begin = base::now_s();
  };

  // The group's first rank makes the id. If that fails, all ranks throw the reason.
  std::string agree_on_id() {
    std::string mine;
    if (rank() == 0) {
      ncclUniqueId id;
      ncclResult_t result = NCCL(ncclGetUniqueId)(&id);
      mine = result == ncclSuccess
                 ? "+" + std::string(reinterpret_cast<const char*>(&id), sizeof id)
                 : "-" + std::string(NCCL(ncclGetErrorString)(result));
    }
    std::string all = host_->broadcast_text(mine, 0);
    if (all[0] == '-')
      base::fail(base::Exit::mesh, "NCCL: {}: the first rank of the group cannot make an id: {}",
                 group_.name, all.substr(1));
    return all.substr(1);
  }

  std::unique_ptr<Comm> host_;
  std::shared_ptr<NcclLane> lane_;
  NcclGroup group_;
};

}  // namespace

bool built_with_nccl() { return true; }

std::string nccl_version() {
  int version = 0;
  ncclResult_t result = NCCL(ncclGetVersion)(&version);
  if (result != ncclSuccess)
    base::fail(base::Exit::mesh, "NCCL does not return its version: {}",
               NCCL(ncclGetErrorString)(result));
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::shared_ptr<NcclLane> make_nccl_lane(double timeout_s) {
  return std::make_shared<NcclLane>(timeout_s);
}

std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Comm> group, const std::string& name,
                                     std::shared_ptr<NcclLane> lane) {
  return std::make_unique<NcclComm>(std::move(group), name, std::move(lane));
}

}  // namespace comm
