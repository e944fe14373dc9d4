// SPDX-License-Identifier: Apache-2.0
// MPI back end. Only the main thread calls it (FUNNELED). GPU memory is exchanged through pinned
// host memory. The host waits for the GPU and copies the data there when an exchange begins, and
// copies the result back in wait().
#include <mpi.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/narrow.hpp"
#include "base/signals.hpp"
#include "comm/comm.hpp"
#include "device/memory.hpp"
#include "device/transfers.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace comm {
namespace {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  base::fail(base::Exit::mesh, "{}: {}", what, std::string(text, length));
}
#define CHECK_MPI(call) check_mpi(call, #call)

MPI_Datatype type_of(device::DType type) {
  switch (type) {
    case device::DType::f32:
      return MPI_FLOAT;
    case device::DType::f64:
      return MPI_DOUBLE;
    case device::DType::i32:
      return MPI_INT32_T;
    case device::DType::i64:
      return MPI_INT64_T;
    case device::DType::bf16:
    case device::DType::f16:
      return MPI_UINT16_T;  // these types are moved, never summed
    case device::DType::u8:
      return MPI_UINT8_T;
  }
  return MPI_BYTE;
}

// An MPI request. The time of wait() counts as waiting of the main thread.
class MpiWork : public Ticket::Work {
 public:
  ~MpiWork() override {
    // The buffers must outlive the exchange.
    if (request != MPI_REQUEST_NULL) MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  void wait() override {
    double begin = base::now_s();
    CHECK_MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
    deliver();
    traffic->seconds += base::now_s() - begin;
  }
  // Copies the result from host memory to the GPU, if it belongs there.
  void deliver() {
    if (queue_) device::upload(into_, result_, *queue_);
    queue_ = nullptr;
  }
  bool poll() override {
    int done = 0;
    CHECK_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    return done;
  }
  bool free() const { return request == MPI_REQUEST_NULL && !queue_; }
  // Returns host memory for a result that belongs to `into` on a GPU. Behind the result it has
  // `more` bytes for data that MPI reads.
  char* stage_result(const device::View& into, device::Queue& queue, int64_t more = 0) {
    if (staging_.bytes() < into.bytes() + more)
      staging_ = device::HostBuffer(queue.kind(), into.bytes() + more);
    into_ = into;
    queue_ = &queue;
    return result_ = staging_.data();
  }
  MPI_Request request = MPI_REQUEST_NULL;
  Traffic* traffic = nullptr;

 private:
  device::HostBuffer staging_;
  device::View into_;
  char* result_ = nullptr;
  device::Queue* queue_ = nullptr;  // null if MPI writes straight into the result's memory
};

void fetch(void* to, const device::View& from, device::Queue& queue) {
  device::MayWait lifted;
  device::download(to, from, queue);
}

bool on_gpu(const device::Queue& queue) { return queue.kind() == device::Kind::cuda; }

// Waits until the data to exchange is computed, so that this time is not counted as exchange.
void wait_for_work(device::Queue& queue) {
  if (!on_gpu(queue)) return;
  device::MayWait lifted;
  queue.synchronize("work before an exchange");
}

template <class T>
void add_into(T* __restrict y, const T* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}
void add_into(device::View y, const void* x) {
  if (y.type == device::DType::f32) return add_into(y.f32(), static_cast<const float*>(x), y.count);
  add_into(y.f64(), static_cast<const double*>(x), y.count);
}

class MpiComm : public Comm {
 public:
  MpiComm(MPI_Comm comm, SumOrder order, bool owned) : comm_(comm), order_(order), owned_(owned) {
    CHECK_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
    CHECK_MPI(MPI_Comm_size(comm_, &size_));
    CHECK(order == SumOrder::library || std::has_single_bit(unsigned(size_)),
          "tree sums need a power of two, not {}", size_);
  }
  ~MpiComm() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owned_ && !finalized) MPI_Comm_free(&comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  using Comm::all_gather;
  using Comm::all_reduce;
  using Comm::reduce_scatter;

  Ticket all_gather(device::View send, device::View recv, device::Queue& queue) override {
    CHECK(recv.count == send.count * size_ && recv.type == send.type);
    if (size_ == 1) {
      device::copy(recv, send, queue);
      return Ticket();
    }
    wait_for_work(queue);
    Timer timer(gathered_, recv.bytes());
    int count = base::narrow<int>(send.count);
    MpiWork* work = free_work(gathered_);
    if (on_gpu(queue)) recv.data = work->stage_result(recv, queue);
    char* own = static_cast<char*>(recv.data) + int64_t(rank_) * send.bytes();
    if (on_gpu(queue)) {
      fetch(own, send, queue);
      send.data = own;
    }
    const void* from = own == send.data ? MPI_IN_PLACE : send.data;
    CHECK_MPI(MPI_Iallgather(from, count, type_of(send.type), recv.data, count, type_of(send.type),
                             comm_, &work->request));
    return Ticket(work);
  }

  Ticket reduce_scatter(device::View send, device::View recv, device::Queue& queue) override {
    CHECK(send.count == recv.count * size_ && recv.type == send.type);
    if (size_ == 1) {
      device::copy(recv, send, queue);
      return Ticket();
    }
    wait_for_work(queue);
    Timer timer(scattered_, send.bytes());
    MpiWork* work = free_work(scattered_);
    if (on_gpu(queue)) {
      recv.data = work->stage_result(recv, queue, send.bytes());
      char* copy = static_cast<char*>(recv.data) + recv.bytes();
      fetch(copy, send, queue);
      send.data = copy;
    }
    if (order_ == SumOrder::tree) {
      tree_reduce_scatter(send, recv);
      work->deliver();
      return Ticket();
    }
    CHECK_MPI(MPI_Ireduce_scatter_block(send.data, recv.data, base::narrow<int>(recv.count),
                                        type_of(send.type), MPI_SUM, comm_, &work->request));
    return Ticket(work);
  }

  Ticket all_reduce(device::View view, device::Queue& queue) override {
    if (size_ == 1 || view.count == 0) return {};
    wait_for_work(queue);
    Timer timer(reduced_, view.bytes());
    MpiWork* work = free_work(reduced_);
    if (on_gpu(queue)) {
      char* copy = work->stage_result(view, queue);
      fetch(copy, view, queue);
      view.data = copy;
    }
    if (order_ == SumOrder::tree) {
      tree_all_reduce(view);
      work->deliver();
      return Ticket();
    }
    CHECK_MPI(MPI_Iallreduce(MPI_IN_PLACE, view.data, base::narrow<int>(view.count),
                             type_of(view.type), MPI_SUM, comm_, &work->request));
    return Ticket(work);
  }

  void broadcast(device::View view, int root) override {
    CHECK_MPI(MPI_Bcast(view.data, base::narrow<int>(view.count), type_of(view.type), root, comm_));
  }
  void barrier() override { CHECK_MPI(MPI_Barrier(comm_)); }

  int64_t min(int64_t v) override { return reduce(v, MPI_INT64_T, MPI_MIN); }
  int64_t max(int64_t v) override { return reduce(v, MPI_INT64_T, MPI_MAX); }
  int64_t sum(int64_t v) override { return reduce(v, MPI_INT64_T, MPI_SUM); }
  double max(double v) override { return reduce(v, MPI_DOUBLE, MPI_MAX); }

  std::vector<std::string> gather_text(const std::string& text) override {
    int length = base::narrow<int>(text.size());
    std::vector<int> lengths(size_), starts(size_);
    CHECK_MPI(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_));
    int total = 0;
    for (int i = 0; i < size_; ++i) {
      starts[i] = total;
      total += lengths[i];
    }
    std::string all(total, '\0');
    CHECK_MPI(MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(),
                             starts.data(), MPI_CHAR, comm_));
    std::vector<std::string> out(size_);
    for (int i = 0; i < size_; ++i) out[i] = all.substr(starts[i], lengths[i]);
    return out;
  }

  std::string broadcast_text(const std::string& text, int root) override {
    int64_t length = int64_t(text.size());
    CHECK_MPI(MPI_Bcast(&length, 1, MPI_INT64_T, root, comm_));
    std::string out = rank_ == root ? text : std::string(size_t(length), '\0');
    CHECK_MPI(MPI_Bcast(out.data(), base::narrow<int>(length), MPI_CHAR, root, comm_));
    return out;
  }

 private:
  struct Timer {
    Timer(Traffic& t, int64_t bytes) : traffic(t) {
      ++t.calls;
      t.bytes += bytes;
    }
    ~Timer() { traffic.seconds += base::now_s() - begin; }
    Traffic& traffic;
    double begin = base::now_s();
  };

  MpiWork* free_work(Traffic& traffic) {
    auto free = std::find_if(works_.begin(), works_.end(), [](auto& w) { return w->free(); });
    if (free == works_.end()) free = works_.insert(works_.end(), std::make_unique<MpiWork>());
    (*free)->traffic = &traffic;
    return free->get();
  }

  template <class T>
  T reduce(T value, MPI_Datatype type, MPI_Op op) {
    CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &value, 1, type, op, comm_));
    return value;
  }

  void exchange(const void* send, void* recv, int64_t bytes, int partner) {
    CHECK_MPI(MPI_Sendrecv(send, base::narrow<int>(bytes), MPI_BYTE, partner, 0, recv,
                           base::narrow<int>(bytes), MPI_BYTE, partner, 0, comm_,
                           MPI_STATUS_IGNORE));
  }

  char* scratch(int64_t bytes) {
    if (int64_t(scratch_.size()) < bytes) scratch_.resize(size_t(bytes));
    return scratch_.data();
  }

  // Recursive halving that starts with the neighbour. After bits 0..b-1 this rank holds the pieces
  // whose index agrees with its rank in bits 0..b-1. Each is the sum over the ranks that agree with
  // this rank above bit b-1. So additions follow the binary tree.
  void tree_reduce_scatter(device::View send, device::View recv) {
    int64_t piece = recv.bytes();
    // scratch: held pieces | outgoing half | incoming half
    char* held = scratch(send.bytes() + send.bytes());
    char* out = held + send.bytes();
    char* in = out + send.bytes() / 2;
    std::memcpy(held, send.data, size_t(send.bytes()));
    for (int b = 0, pieces = size_; pieces > 1; ++b, pieces /= 2) {
      int partner = rank_ ^ (1 << b), mine = (rank_ >> b) & 1;
      for (int i = 0; i < pieces / 2; ++i)
        std::memcpy(out + i * piece, held + (2 * i + 1 - mine) * piece, size_t(piece));
      exchange(out, in, pieces / 2 * piece, partner);
      for (int i = 0; i < pieces / 2; ++i) {
        std::memmove(held + i * piece, held + (2 * i + mine) * piece, size_t(piece));
        add_into({held + i * piece, send.type, recv.count}, in + i * piece);
      }
    }
    std::memcpy(recv.data, held, size_t(piece));
  }

  // Recursive doubling, neighbours first. Both partners hold the same bits, because a + b = b + a.
  void tree_all_reduce(device::View view) {
    char* in = scratch(view.bytes());
    for (int b = 1; b < size_; b *= 2) {
      exchange(view.data, in, view.bytes(), rank_ ^ b);
      add_into(view, in);
    }
  }

  MPI_Comm comm_;
  SumOrder order_;
  bool owned_;
  int rank_ = 0, size_ = 1;
  std::vector<char> scratch_;
  std::vector<std::unique_ptr<MpiWork>> works_;
};

// Ends the process if MPI does not start. MPI_Init returns when all ranks have called it, and a
// rank with another command never calls it.
class InitGuard {
 public:
  InitGuard() {
    const char* text = std::getenv("TRAINER_MPI_START_S");
    const double seconds = text && std::atof(text) > 0 ? std::atof(text) : kPatience_s;
    thread_ = std::jthread([this, seconds] {
      base::leave_signals_to_main();
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                            [this] { return started_; }))
        return;
      base::log::error(
          "MPI has not started within {:g} s: some ranks never called it; start all of them with "
          "the same command line (TRAINER_MPI_START_S sets how long to wait)",
          seconds);
      std::_Exit(int(base::Exit::config));
    });
  }
  ~InitGuard() {
    std::lock_guard lock(mutex_);
    started_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr double kPatience_s = 600;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::jthread thread_;  // the last member, so it is joined before the other members are destroyed
};

}  // namespace

Session::Session(int& argc, char**& argv) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    int provided = 0;
    InitGuard guard;
    check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_FUNNELED)
      base::fail(base::Exit::mesh, "this MPI library offers no MPI_THREAD_FUNNELED");
    finalize_ = true;
  }
  world_ = std::make_unique<MpiComm>(MPI_COMM_WORLD, SumOrder::library, false);
  MPI_Comm node;
  CHECK_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
  MPI_Comm_rank(node, &local_rank_);
  MPI_Comm_size(node, &local_size_);
  MPI_Comm_free(&node);
}

Session::~Session() {
  world_.reset();
#ifdef __SANITIZE_ADDRESS__
  // The check runs here instead of at exit, because MPI_Finalize leaks memory of its own.
  __lsan_do_leak_check();
#endif
  if (finalize_) MPI_Finalize();
}

std::unique_ptr<Comm> Session::split(int colour, int key, SumOrder order) {
  MPI_Comm group;
  CHECK_MPI(MPI_Comm_split(MPI_COMM_WORLD, colour, key, &group));
  return std::make_unique<MpiComm>(group, order, true);
}

std::string Session::host() const {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return std::string(name, length);
}

std::string mpi_version() {
  return fmt::format("{}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
}

void Session::abort(int code) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace comm
