// SPDX-License-Identifier: Apache-2.0
// MPI back end. The main thread starts exchanges and waits for them; between the two, the lane's
// thread keeps them moving (mpi_lane.hpp). GPU memory is exchanged through pinned host memory. The
// host waits for the GPU and copies the data there when an exchange begins, and copies the result
// back in wait().
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/clock.hpp"
#include "base/flight_page.hpp"
#include "base/log.hpp"
#include "base/span.hpp"
#include "comm/comm.hpp"
#include "comm/large_count.hpp"
#include "comm/long_exchange.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/mpi_lane.hpp"
#include "comm/mpi_start.hpp"
#include "comm/node_memory.hpp"
#include "comm/sealed_text.hpp"
#include "comm/shared_sum.hpp"
#include "comm/tree_exchange.hpp"
#include "comm/waits.hpp"
#include "device/memory.hpp"
#include "device/transfers.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace comm {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw ExchangeError(fmt::format("{}: {}", what, std::string(text, length)));
}

namespace {

// The lane of this process's session.
MpiLane* lane_of_session = nullptr;

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

enum class Way { request, tree, shared, messages };

// An exchange by a request of MPI, along the tree, in memory that ranks share, or by messages. The
// time of wait() counts as waiting of the main thread.
class MpiWork : public Ticket::Work, public MpiLane::Work {
 public:
  explicit MpiWork(MpiLane& lane) : lane_(lane) {}
  ~MpiWork() override {
    // Waits, because the buffers must outlive the exchange. Its error has already been thrown.
    try {
      lane_.finish(*this);
    } catch (const std::exception&) {
    }
  }
  void wait() override {
    base::TimedSpan waiting("wait for an exchange", base::SpanKind::wait);
    lane_.finish(*this);
    deliver();
    const double seconds = waiting.end_s();
    traffic->seconds += seconds;
    waits().waiting_s += seconds;
    lane_.wake();
    waited = true;
  }
  bool advance() override {
    if (!advance_data()) return false;
    span.end();
    return true;
  }
  bool advance_data() {
    if (way == Way::tree) return tree.advance();
    if (way == Way::shared) return shared.advance();
    if (way == Way::messages) return messages.advance();
    int done = 0;
    CHECK_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    return done;
  }
  bool idle() const override { return way == Way::shared && shared.idle(); }
  // Copies the result from host memory to the GPU, if it belongs there.
  void deliver() {
    if (queue_) device::upload(into_, result_, *queue_);
    queue_ = nullptr;
  }
  // Returns host memory for a result that belongs to `into` on a GPU. Behind the result it has
  // `more` bytes for data that MPI reads.
  char* stage_result(const device::View& into, device::Queue& queue, int64_t more = 0) {
    if (staging_.bytes() < into.bytes() + more)
      staging_ = device::HostBuffer(queue.kind(), into.bytes() + more);
    into_ = into;
    queue_ = &queue;
    return result_ = staging_.data();
  }
  base::ExchangeSpan span;
  MPI_Request request = MPI_REQUEST_NULL;
  TreeExchange tree;
  SharedSum shared;
  LongExchange messages;
  Way way = Way::request;
  Traffic* traffic = nullptr;
  bool waited = true;

 private:
  MpiLane& lane_;
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

class MpiComm : public Comm {
 public:
  // All ranks of the node call, each with its communicator.
  MpiComm(MPI_Comm comm, std::string name, SumOrder order, MpiLane& lane, NodeMemory& node)
      : comm_(comm), name_(std::move(name)), order_(order), lane_(lane), node_(node) {
    CHECK_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
    CHECK_MPI(MPI_Comm_size(comm_, &size_));
    CHECK(order == SumOrder::library || std::has_single_bit(unsigned(size_)),
          "tree sums need a power of two, not {}", size_);
    shared_ = SharedGroup::make(node_, comm_);
  }
  ~MpiComm() override {
    try {
      lane_.drain();
    } catch (const std::exception&) {
    }
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (comm_ != MPI_COMM_WORLD && !finalized) MPI_Comm_free(&comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const MPI_Comm* handle() const {
    lane_.drain();
    return &comm_;
  }

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
    MpiWork* work = free_work(gathered_, {"all_gather", name_, int(send.type), send.count});
    if (on_gpu(queue)) recv.data = work->stage_result(recv, queue);
    char* own = static_cast<char*>(recv.data) + int64_t(rank_) * send.bytes();
    if (on_gpu(queue)) {
      fetch(own, send, queue);
      send.data = own;
    }
    if (counted::needs_pieces(send.count))
      return start(timer, work, Way::messages,
                   [&] { work->messages.begin_gather(comm_, ++sequence_, send, recv); });
    const void* from = own == send.data ? MPI_IN_PLACE : send.data;
    return start(timer, work, Way::request, [&] {
      CHECK_MPI(counted::begin_gather(from, send.count, type_of(send.type), recv.data, comm_,
                                      &work->request));
    });
  }

  Ticket reduce_scatter(device::View send, device::View recv, device::Queue& queue) override {
    CHECK(send.count == recv.count * size_ && recv.type == send.type);
    if (size_ == 1) {
      device::copy(recv, send, queue);
      return Ticket();
    }
    wait_for_work(queue);
    Timer timer(scattered_, send.bytes());
    MpiWork* work = free_work(scattered_, {"reduce_scatter", name_, int(send.type), send.count});
    if (on_gpu(queue)) {
      recv.data = work->stage_result(recv, queue, send.bytes());
      char* copy = static_cast<char*>(recv.data) + recv.bytes();
      fetch(copy, send, queue);
      send.data = copy;
    }
    if (order_ == SumOrder::tree) return start_tree(timer, work, send, recv);
    if (counted::needs_pieces(recv.count))
      return start(timer, work, Way::messages,
                   [&] { work->messages.begin_scatter(comm_, ++sequence_, send, recv); });
    return start(timer, work, Way::request, [&] {
      CHECK_MPI(counted::begin_scatter(send.data, recv.count, type_of(send.type), recv.data, comm_,
                                       &work->request));
    });
  }

  Ticket all_reduce(device::View view, device::Queue& queue) override {
    if (size_ == 1 || view.count == 0) return {};
    wait_for_work(queue);
    Timer timer(reduced_, view.bytes());
    MpiWork* work = free_work(reduced_, {"all_reduce", name_, int(view.type), view.count});
    if (on_gpu(queue)) {
      char* copy = work->stage_result(view, queue);
      fetch(copy, view, queue);
      view.data = copy;
    }
    const SharedParts* parts = shared_ ? node_.find(view.data, view.bytes()) : nullptr;
    if (parts)
      return start(timer, work, Way::shared,
                   [&] { work->shared.begin(*shared_, *parts, node_.rank(), view); });
    if (order_ == SumOrder::tree) return start_tree(timer, work, view, {});
    if (counted::needs_pieces(view.count))
      return start(timer, work, Way::messages,
                   [&] { work->messages.begin_sum(comm_, ++sequence_, view); });
    return start(timer, work, Way::request, [&] {
      CHECK_MPI(
          counted::begin_sum(view.data, view.count, type_of(view.type), comm_, &work->request));
    });
  }

  device::Buffer shared_buffer(device::Kind kind, device::Ledger& ledger, std::string category,
                               int64_t bytes) override {
    if (kind != device::Kind::cpu || size_ == 1)
      return Comm::shared_buffer(kind, ledger, std::move(category), bytes);
    lane_.drain();
    const std::shared_ptr<SharedParts> parts = node_.allocate(bytes);
    if (!parts) return Comm::shared_buffer(kind, ledger, std::move(category), bytes);
    char* own = parts->of_rank[size_t(node_.rank())];
    return {ledger, std::move(category), std::shared_ptr<void>(parts, own), bytes};
  }

  NodeBuffer node_buffer(device::Ledger& ledger, std::string category, int64_t bytes) override {
    lane_.drain();
    const std::shared_ptr<SharedParts> parts = node_.allocate(bytes, NodeMemory::Owners::first);
    if (!parts) return Comm::node_buffer(ledger, std::move(category), bytes);
    const std::shared_ptr<void> memory(parts, parts->of_rank[0]);
    const bool first = node_.rank() == 0;
    return {{ledger, std::move(category), memory, first ? bytes : 0},
            first,
            !node_.ranks_of(comm_).empty()};
  }

  void broadcast(device::View view, int root) override {
    const auto exchange = whole("broadcast", int(view.type), view.count);
    lane_.drain();
    broadcast_whole(view.data, view.count, type_of(view.type), device::size_of(view.type), root);
  }
  void barrier() override {
    const auto exchange = whole("barrier");
    lane_.drain();
    CHECK_MPI(MPI_Barrier(comm_));
  }

  int64_t min(int64_t v) override { return reduce(v, MPI_INT64_T, MPI_MIN); }
  int64_t max(int64_t v) override { return reduce(v, MPI_INT64_T, MPI_MAX); }
  int64_t sum(int64_t v) override { return reduce(v, MPI_INT64_T, MPI_SUM); }
  double max(double v) override { return reduce(v, MPI_DOUBLE, MPI_MAX); }

  int64_t max(int64_t value, bool& alike) override {
    const auto calls = int64_t(base::flight_page().head.calls_hash.load());
    // ~ turns the order around, so the second maximum finds the smallest hash.
    int64_t words[3] = {value, calls, ~calls};
    const auto exchange = whole("max");
    lane_.drain();
    CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, words, 3, MPI_INT64_T, MPI_MAX, comm_));
    alike = words[1] == ~words[2];
    return words[0];
  }

  std::vector<std::string> gather_text(const std::string& text) override {
    const auto exchange = whole("gather_text");
    lane_.drain();
    const uint64_t number = ++texts_;
    const std::string mine = sealed(text, number);
    const auto length = int64_t(mine.size());
    std::vector<int64_t> lengths(size_), starts(size_);
    CHECK_MPI(MPI_Allgather(&length, 1, MPI_INT64_T, lengths.data(), 1, MPI_INT64_T, comm_));
    int64_t total = 0;
    const std::string name = "gather_text of " + name_;
    for (int i = 0; i < size_; ++i) {
      if (lengths[i] < kSealBytes) unsealed("", number, name, i);
      starts[i] = total;
      total += lengths[i];
    }
    std::string all(size_t(total), '\0');
    gather_bytes(mine, lengths, starts, all);
    std::vector<std::string> out(size_);
    for (int i = 0; i < size_; ++i)
      out[i] = unsealed(std::string_view(all).substr(size_t(starts[i]), size_t(lengths[i])), number,
                        name, i);
    return out;
  }

  std::string broadcast_text(const std::string& text, int root) override {
    const auto exchange = whole("broadcast_text");
    lane_.drain();
    const uint64_t number = ++texts_;
    const std::string name = "broadcast_text of " + name_;
    std::string out = rank_ == root ? sealed(text, number) : "";
    // The length is a text, too.
    std::string length = sealed(fmt::format("{:016x}", out.size()), number);
    if (rank_ != root) length.assign(length.size(), '\0');
    broadcast_whole(length, root);
    out.resize(std::stoull(unsealed(length, number, name, root), nullptr, 16));
    broadcast_whole(out, root);
    return unsealed(out, number, name, root);
  }

 private:
  struct Timer {
    Timer(Traffic& t, int64_t bytes) : traffic(t) {
      ++t.calls;
      t.bytes += bytes;
    }
    void stop() {
      const double seconds = base::now_s() - begin;
      traffic.seconds += seconds;
      waits().beginning_s += seconds;
    }
    Traffic& traffic;
    double begin = base::now_s();
  };

  MpiWork* free_work(Traffic& traffic, const base::ExchangeSpan::Call& call) {
    auto free = std::find_if(works_.begin(), works_.end(), [](auto& w) { return w->waited; });
    if (free == works_.end()) free = works_.insert(works_.end(), std::make_unique<MpiWork>(lane_));
    (*free)->traffic = &traffic;
    (*free)->span.begin(call);
    return free->get();
  }

  // `bytes`: of an element.
  void broadcast_whole(void* data, int64_t count, MPI_Datatype type, int64_t bytes, int root) {
    const int64_t most =
        counted::needs_pieces(count) ? counted::longest_call() : std::max<int64_t>(count, 1);
    for (int64_t begin = 0; begin == 0 || begin < count; begin += most) {
      char* piece = static_cast<char*>(data) + begin * bytes;
      CHECK_MPI(counted::broadcast(piece, std::min(most, count - begin), type, root, comm_));
    }
  }
  void broadcast_whole(std::string& text, int root) {
    broadcast_whole(text.data(), int64_t(text.size()), MPI_CHAR, 1, root);
  }
  void gather_bytes(const std::string& mine, const std::vector<int64_t>& lengths,
                    const std::vector<int64_t>& starts, std::string& all) {
    if (counted::needs_pieces(int64_t(all.size()))) {
      std::memcpy(all.data() + starts[rank_], mine.data(), mine.size());
      for (int i = 0; i < size_; ++i)
        broadcast_whole(all.data() + starts[i], lengths[i], MPI_CHAR, 1, i);
      return;
    }
    CHECK_MPI(counted::gather_texts(mine.data(), rank_, all.data(), lengths, starts, comm_));
  }

  // An agreement, in which ranks wait for the slowest one.
  struct Whole {
    base::WholeExchange exchange;
    CountedWait wait;
  };
  // Marks a call that ends in this scope.
  Whole whole(std::string_view kind, int type = 0, int64_t count = 0) const {
    return {base::WholeExchange({kind, name_, type, count}), {}};
  }

  template <class Begin>
  Ticket start(Timer& timer, MpiWork* work, Way way, Begin begin) {
    work->way = way;
    lane_.start(*work, begin);
    work->waited = false;
    timer.stop();
    lane_.wake();
    return Ticket(work);
  }

  Ticket start_tree(Timer& timer, MpiWork* work, device::View send, device::View recv) {
    return start(timer, work, Way::tree, [&] { work->tree.begin(comm_, ++sequence_, send, recv); });
  }

  template <class T>
  T reduce(T value, MPI_Datatype type, MPI_Op op) {
    const auto exchange = whole(op == MPI_MIN ? "min" : op == MPI_MAX ? "max" : "sum");
    lane_.drain();
    CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &value, 1, type, op, comm_));
    return value;
  }

  MPI_Comm comm_;
  std::string name_;
  SumOrder order_;
  MpiLane& lane_;
  NodeMemory& node_;
  std::unique_ptr<SharedGroup> shared_;  // null: its ranks share no memory
  int rank_ = 0, size_ = 1;
  int64_t sequence_ = 0;  // of exchanges along the tree
  uint64_t texts_ = 0;    // gathered or broadcast
  std::vector<std::unique_ptr<MpiWork>> works_;
};

}  // namespace

const void* mpi_handle(Comm& comm) {
  auto* mpi = dynamic_cast<MpiComm*>(&comm);
  return mpi ? mpi->handle() : nullptr;
}

Session::Session(int& argc, char**& argv) {
  finalize_ = start_mpi(argc, argv);
  node_ = std::make_unique<NodeMemory>();
  lane_ = std::make_unique<MpiLane>(node_->bell(node_->rank()));
  lane_of_session = lane_.get();
  world_ = std::make_unique<MpiComm>(MPI_COMM_WORLD, "world", SumOrder::library, *lane_, *node_);
}

Session::~Session() {
  world_.reset();
  lane_of_session = nullptr;
  lane_.reset();
  node_.reset();
#ifdef __SANITIZE_ADDRESS__
  // The check runs here instead of at exit, because MPI_Finalize leaks memory of its own.
  __lsan_do_leak_check();
#endif
  if (finalize_) MPI_Finalize();
}

std::unique_ptr<Comm> Session::split(int colour, int key, SumOrder order, const std::string& name) {
  MPI_Comm group;
  lane_->drain();
  CHECK_MPI(MPI_Comm_split(MPI_COMM_WORLD, colour, key, &group));
  return std::make_unique<MpiComm>(group, name, order, *lane_, *node_);
}

int Session::local_rank() const { return node_->rank(); }
int Session::local_size() const { return node_->size(); }

std::string Session::exchange_text() const {
  if (world_->size() == 1) return "mpi";
  if (!node_->problem().empty()) return fmt::format("mpi by messages ({})", node_->problem());
  if (node_->size() == world_->size()) return "mpi, sums in shared memory";
  return node_->size() == 1 ? "mpi by messages (one rank on this node)"
                            : "mpi, sums within a node in shared memory";
}

Background Session::background() const { return lane_->background(); }

std::string Session::host() const {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return std::string(name, length);
}

void Session::abort(int code) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (lane_of_session) lane_of_session->stop();
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace comm
