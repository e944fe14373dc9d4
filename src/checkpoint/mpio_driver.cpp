// SPDX-License-Identifier: Apache-2.0
// All ranks read and write together through HDF5's MPI-IO driver, dataset by dataset in the order
// of the file. Rank 0 has written the structure before, so HDF5 allocates nothing, and the file has
// the same bytes as with the direct driver.
//
// Only the main thread may call MPI, so a transfer holds training. A rank that fails takes part in
// all further transfers with its errors kept for the end, because the others would wait for it.
#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <map>
#include <numeric>
#include <span>

#include "base/span.hpp"
#include "base/thread_scope.hpp"
#include "checkpoint/driver.hpp"
#include "checkpoint/read_plan.hpp"
#include "io/h5_shared.hpp"

namespace checkpoint {
namespace {

constexpr int64_t kLargestWrite = 256 << 20;  // bytes; MPI counts in ints
constexpr int64_t kBetweenPolls = 64 << 20;   // bytes of the file

// Keeps the first error of this rank.
class FirstError {
 public:
  template <class Work>
  void attempt(Work work) {
    try {
      work();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }
  bool any() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

// The bytes of a dataset that one call moves.
struct Transfer {
  size_t entry;
  int64_t begin, end;
  char* data;
};

class MpioDriver : public Driver {
 public:
  MpioDriver(comm::Comm& comm, const IoLimits& io)
      : comm_(comm), io_(io), sharing_{io.collective, io.hints} {}
  bool together() const override { return true; }
  io::File create(const std::string& path) const override {
    io::H5SharedFile::create(path, sharing_);
    return {path, io::File::Mode::create};
  }
  void write(io::File& file, const FileLayout& layout, const std::vector<Piece*>& order,
             WrittenUpTo& written) override;
  std::vector<std::string> read(const std::string& path, const Manifest& manifest,
                                const std::vector<shard::TensorSlice>& tensors,
                                const comm::Poll& poll, int64_t& bytes) override;

 private:
  class Turns;
  int64_t fetch(const std::string& path, const Manifest& manifest,
                const std::vector<shard::TensorSlice>& tensors, const std::function<bool()>& stops);

  comm::Comm& comm_;
  const IoLimits io_;
  const io::H5Sharing sharing_;
};

// The datasets in the order of the file, with how many calls all ranks make for each. Ranks that
// have fewer transfers take part with empty ones.
class MpioDriver::Turns {
 public:
  // `mine`: the entries of this rank's transfers. All ranks call.
  Turns(MpioDriver& driver, const FileLayout& layout, const std::vector<size_t>& mine)
      : entries_(layout.entries), order_(entries_.size()), calls_(entries_.size(), 0) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](size_t a, size_t b) { return entries_[a].offset < entries_[b].offset; });
    for (size_t entry : mine) ++calls_[entry];
    if (!driver.sharing_.collective) return;
    const size_t bytes = calls_.size() * sizeof(int32_t);
    std::vector<int32_t> other(calls_.size());
    for (const std::string& text :
         driver.comm_.gather_text({reinterpret_cast<const char*>(calls_.data()), bytes})) {
      CHECK(text.size() == bytes);
      std::memcpy(other.data(), text.data(), bytes);
      for (size_t i = 0; i < calls_.size(); ++i) calls_[i] = std::max(calls_[i], other[i]);
    }
  }
  const std::vector<size_t>& order() const { return order_; }
  // Makes the calls for a dataset: this rank's transfers, then empty ones. The calls of several
  // ranks are one collective transfer.
  template <class Move>
  void take(io::H5SharedFile& file, size_t entry, std::span<const Transfer> own, FirstError& error,
            Move move) const {
    if (calls_[entry] == 0) return;
    error.attempt([&] { file.open(entries_[entry].name); });
    for (int32_t call = 0; call < calls_[entry]; ++call) {
      const Transfer t =
          size_t(call) < own.size() ? own[size_t(call)] : Transfer{entry, 0, 0, nullptr};
      error.attempt([&] { move(t); });
    }
  }

 private:
  const std::vector<Entry>& entries_;
  std::vector<size_t> order_;
  std::vector<int32_t> calls_;  // of each entry
};

void MpioDriver::write(io::File& file, const FileLayout& layout, const std::vector<Piece*>& order,
                       WrittenUpTo& /*written*/) {
  std::vector<size_t> mine;
  std::map<size_t, std::vector<Transfer>> own;
  for (const Piece* p : order)
    for (int64_t at = p->begin; at < p->end; at += kLargestWrite) {
      const size_t entry = size_t(p->entry);
      // A text is one element, which cannot be cut.
      const bool whole = layout.entries[entry].type == io::H5Type::text;
      const int64_t end = whole ? p->end : std::min(p->end, at + kLargestWrite);
      own[entry].push_back({entry, at, end, const_cast<char*>(p->data) + (at - p->begin)});
      mine.push_back(entry);
      if (whole) break;
    }
  const Turns turns(*this, layout, mine);
  io::H5SharedFile shared(comm_, file.path(), io::H5SharedFile::Mode::write, sharing_);
  FirstError error;
  for (size_t entry : turns.order())
    turns.take(shared, entry, own[entry], error, [&](const Transfer& t) {
      base::Span span("write a dataset", int64_t(entry), base::SpanKind::save);
      shared.write(t.begin, t.end, t.data);
    });
  error.attempt([&] { shared.close(); });
  error.rethrow();
}

// Reads and proves this rank's parts; returns their bytes. All ranks call `stops` in step. If it
// returns true on one rank, all ranks end.
int64_t MpioDriver::fetch(const std::string& path, const Manifest& manifest,
                          const std::vector<shard::TensorSlice>& tensors,
                          const std::function<bool()>& stops) {
  const FileLayout& layout = manifest.layout;
  const std::vector<WantedBytes> wanted = wanted_of(path, manifest, tensors);
  const std::vector<Portion> portions = portions_of(wanted, io_.largest_read(kBlock));
  std::vector<size_t> mine;
  for (const Portion& p : portions) mine.push_back(size_t(p.wanted->entry - layout.entries.data()));
  const Turns turns(*this, layout, mine);
  io::H5SharedFile shared(comm_, path, io::H5SharedFile::Mode::read, sharing_);
  FirstError error;
  Batch in_turn[2];  // one batch is verified while the next is read
  std::future<void> proof;
  int64_t bytes = 0, since_poll = 0;
  size_t next = 0, turn = 0;
  for (size_t entry : turns.order()) {
    const size_t first = next;
    while (next < portions.size() && mine[next] == entry) ++next;
    Batch& batch = in_turn[turn++ % 2];
    batch.take(std::span(portions).subspan(first, next - first));
    std::vector<Transfer> own;
    for (size_t i = 0; i < batch.portions().size(); ++i) {
      const Portion& p = batch.portions()[i];
      own.push_back({entry, p.begin(), p.begin() + p.bytes(), batch.target(i)});
      bytes += p.bytes();
    }
    turns.take(shared, entry, own, error, [&](const Transfer& t) {
      base::Span span("read a dataset", int64_t(entry), base::SpanKind::restore);
      shared.read(t.begin, t.end, t.data);
    });
    if (proof.valid()) error.attempt([&] { proof.get(); });
    if (!error.any() && !own.empty())
      proof = base::async("verify", [&batch, &manifest] { batch.verify(manifest); });
    since_poll += layout.entries[entry].bytes;
    if (since_poll < kBetweenPolls) continue;
    since_poll = 0;
    if (comm_.max(int64_t(stops() || error.any())) != 0) break;
  }
  if (proof.valid()) error.attempt([&] { proof.get(); });
  error.attempt([&] { shared.close(); });
  error.rethrow();
  return bytes;
}

std::vector<std::string> MpioDriver::read(const std::string& path, const Manifest& manifest,
                                          const std::vector<shard::TensorSlice>& tensors,
                                          const comm::Poll& poll, int64_t& bytes) {
  // Every rank sees the file before all of them open it.
  const std::vector<std::string> unseen = comm::together(
      comm_, [&] { return reason_of([&] { io::File(path, io::File::Mode::read).close(); }); });
  if (std::any_of(unseen.begin(), unseen.end(), [](auto& reason) { return !reason.empty(); }))
    return unseen;
  std::exception_ptr stopped;  // poll's error, which is thrown as it is
  auto stops = [&] {
    try {
      poll();
    } catch (...) {
      stopped = std::current_exception();
    }
    return stopped != nullptr;
  };
  const std::vector<std::string> reasons = comm::together(
      comm_, [&] { return reason_of([&] { bytes = fetch(path, manifest, tensors, stops); }); });
  if (stopped) std::rethrow_exception(stopped);
  return reasons;
}

}  // namespace

std::unique_ptr<Driver> make_mpio_driver(comm::Comm& comm, const IoLimits& io) {
  return std::make_unique<MpioDriver>(comm, io);
}

}  // namespace checkpoint
