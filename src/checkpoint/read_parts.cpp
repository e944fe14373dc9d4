// SPDX-License-Identifier: Apache-2.0
// Reads a rank's parts of a file and proves them with the file's checksums.
#include <algorithm>
#include <atomic>
#include <future>
#include <span>

#include "base/cancel.hpp"
#include "base/log_components.hpp"
#include "base/span.hpp"
#include "base/thread_scope.hpp"
#include "checkpoint/read_plan.hpp"
#include "checkpoint/restore.hpp"

namespace checkpoint {
namespace log = base::log;

namespace {

constexpr int64_t kMaxGap = 64 << 10;  // bytes of a gap between two portions of one read

// Returns the indices of the portions that begin a new read: [0, ..., number of portions].
std::vector<size_t> batches_of(const std::vector<Portion>& portions, int64_t largest_read) {
  std::vector<size_t> out{0};
  int64_t bytes = 0, end = -1;
  for (size_t i = 0; i < portions.size(); ++i) {
    const Portion& p = portions[i];
    // A block in which two parts meet is wanted by both parts, and is read twice.
    bool beside = end >= 0 && p.offset() >= end && p.offset() - end <= kMaxGap;
    if (i > 0 && (!beside || bytes + p.bytes() > largest_read)) {
      out.push_back(i);
      bytes = 0;
    }
    bytes += p.bytes();
    end = p.offset() + p.bytes();
  }
  if (!portions.empty()) out.push_back(portions.size());
  return out;
}

// Reads batches of portions and proves them. Several threads share the work.
class PartReader {
 public:
  PartReader(const std::string& path, const Manifest& manifest,
             const std::vector<WantedBytes>& wanted, const IoLimits& io)
      : manifest_(manifest),
        portions_(portions_of(wanted, io.largest_read(kBlock))),
        batches_(batches_of(portions_, io.largest_read(kBlock))),
        file_(path, io::File::Mode::read) {}

  size_t reads() const { return batches_.size() - 1; }
  int64_t bytes_read() const { return bytes_; }

  // Takes batches until none is left. Any number of threads may call. After an error the others
  // take no further batch.
  void work(const std::stop_token& token) {
    Batch in_turn[2];  // one batch is verified while the next is read
    std::future<void> proof;
    try {
      for (size_t turn = 0, i = next_++; i + 1 < batches_.size(); ++turn, i = next_++) {
        base::end_if_asked(token);
        base::Span span("read parts", int64_t(i), base::SpanKind::restore);
        Batch& b = in_turn[turn % 2];
        b.take(std::span(portions_).subspan(batches_[i], batches_[i + 1] - batches_[i]));
        read(b);
        if (proof.valid()) proof.get();
        proof = base::async("verify", [this, &b] { b.verify(manifest_); });
      }
      if (proof.valid()) proof.get();
    } catch (...) {
      next_ = batches_.size();
      throw;
    }
  }

 private:
  void read(Batch& b);

  const Manifest& manifest_;
  const std::vector<Portion> portions_;
  const std::vector<size_t> batches_;
  const io::File file_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> bytes_{0};
};

// Portions that are adjacent in the file are read in one call, straight into their memory.
void PartReader::read(Batch& b) {
  std::vector<char> gap(size_t{kMaxGap});
  std::vector<std::span<char>> pieces;
  const int64_t offset = b.portions()[0].offset();
  int64_t end = offset;
  for (size_t i = 0; i < b.portions().size(); ++i) {
    const Portion& p = b.portions()[i];
    if (p.offset() > end) pieces.emplace_back(gap.data(), size_t(p.offset() - end));
    pieces.emplace_back(b.target(i), size_t(p.bytes()));
    end = p.offset() + p.bytes();
    bytes_ += p.bytes();
  }
  file_.read_at(std::move(pieces), offset);
}

}  // namespace

int64_t read_parts(const std::string& path, const Manifest& manifest,
                   const std::vector<shard::TensorSlice>& tensors, const std::stop_token& token,
                   const IoLimits& io) {
  const std::vector<WantedBytes> wanted = wanted_of(path, manifest, tensors);
  PartReader reader(path, manifest, wanted, io);
  log::debug(log::Component::checkpoint,
             "{}: {} parts in {} reads of at most {} MiB, by {} threads", path, wanted.size(),
             reader.reads(), io.largest_read(kBlock) >> 20, io.threads);
  std::vector<std::future<void>> others;
  for (int64_t i = 1; i < std::min(io.threads, int64_t(reader.reads())); ++i)
    others.push_back(base::async("read parts", [&] { reader.work(token); }));
  reader.work(token);
  for (std::future<void>& other : others) other.get();
  return reader.bytes_read();
}

}  // namespace checkpoint
