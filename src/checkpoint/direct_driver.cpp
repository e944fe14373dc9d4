// SPDX-License-Identifier: Apache-2.0
// Each rank reads and writes its bytes by itself, at offsets that all ranks know.
#include <algorithm>
#include <map>

#include "base/span.hpp"
#include "checkpoint/driver.hpp"
#include "checkpoint/restore.hpp"
#include "io/sync_times.hpp"

namespace checkpoint {
namespace {

// Collects bytes that are adjacent in the file and writes them in large, aligned calls. File
// systems are fastest with these (ext4 into memory: 3.3 GB/s in calls of 8 MiB and more, 0.3 GB/s
// in calls of 1 MiB).
class Writer {
 public:
  Writer(io::File& file, const FileLayout& layout, WrittenUpTo& written)
      : file_(file), written_(written) {
    for (auto [begin, end] : layout.gaps())
      if (end - begin <= int64_t(sizeof kZeros)) gaps_[begin] = end;
  }
  void add(const char* data, int64_t bytes, int64_t offset) {
    if (offset != end_) {
      // A gap between two tensors holds padding, or structure that is written last. Other ranks
      // write nothing into a gap.
      auto gap = gaps_.find(end_);
      if (gap != gaps_.end() && gap->second == offset && !pieces_.empty())
        put(kZeros, offset - end_);
      else {
        flush();
        begin_ = end_ = offset;
      }
    }
    put(data, bytes);
  }
  void flush() {
    if (pieces_.empty()) return;
    base::Span span("write", begin_, base::SpanKind::save);
    file_.write_at(std::move(pieces_), begin_);
    pieces_.clear();
    io::start_writeback(file_, begin_, end_ - begin_);
    written_.advance(end_);
    begin_ = end_;
  }

 private:
  void put(const char* data, int64_t bytes) {
    while (bytes > 0) {
      int64_t n = std::min(bytes, (begin_ / kPortion + 1) * kPortion - end_);
      pieces_.emplace_back(data, size_t(n));
      data += n;
      bytes -= n;
      end_ += n;
      if (end_ % kPortion == 0) flush();
    }
  }
  static constexpr int64_t kPortion = 32 << 20;
  static constexpr char kZeros[16 << 10] = {};
  io::File& file_;
  WrittenUpTo& written_;
  std::map<int64_t, int64_t> gaps_;
  std::vector<std::string_view> pieces_;
  int64_t begin_ = 0, end_ = 0;  // file range of `pieces_`
};

class DirectDriver : public Driver {
 public:
  DirectDriver(comm::Comm& comm, const IoLimits& io) : comm_(comm), io_(io) {}
  bool together() const override { return false; }
  io::File create(const std::string& path) const override { return {path, io::File::Mode::create}; }
  void write(io::File& file, const FileLayout& layout, const std::vector<Piece*>& order,
             WrittenUpTo& written) override {
    Writer writer(file, layout, written);
    for (const Piece* p : order)
      writer.add(p->data, p->end - p->begin, layout.entries[size_t(p->entry)].offset + p->begin);
    writer.flush();
  }
  std::vector<std::string> read(const std::string& path, const Manifest& manifest,
                                const std::vector<shard::TensorSlice>& tensors,
                                const comm::Poll& poll, int64_t& bytes) override {
    auto work = [&](const std::stop_token& token) {
      return reason_of([&] { bytes = read_parts(path, manifest, tensors, token, io_); });
    };
    return comm::beside(comm_, work, poll);
  }

 private:
  comm::Comm& comm_;
  const IoLimits io_;
};

}  // namespace

std::unique_ptr<Driver> make_direct_driver(comm::Comm& comm, const IoLimits& io) {
  return std::make_unique<DirectDriver>(comm, io);
}

std::unique_ptr<Driver> make_driver(comm::Comm& comm, const IoLimits& io) {
  return io.mpio ? make_mpio_driver(comm, io) : make_direct_driver(comm, io);
}

std::string reason_of(const std::function<void()>& read) {
  try {
    read();
    return "";
  } catch (const base::Error& e) {
    if (e.code() != base::Exit::checkpoint) throw;
    return e.what();
  }
}

}  // namespace checkpoint
