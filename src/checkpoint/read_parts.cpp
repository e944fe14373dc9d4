// SPDX-License-Identifier: Apache-2.0
// Reads a rank's parts of a file and proves them with the file's checksums.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <span>

#include "base/cancel.hpp"
#include "base/log_components.hpp"
#include "base/span.hpp"
#include "base/thread_scope.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/restore.hpp"

namespace checkpoint {
namespace log = base::log;

namespace {

// Bytes [begin, end) of a tensor and the memory to fill.
struct WantedBytes {
  const Entry* entry;
  int64_t begin, end;
  char* data;
  int64_t offset() const { return entry->offset + begin; }
};

// Sorted by file offset, so that the disk can read ahead.
std::vector<WantedBytes> wanted_of(const std::string& path, const Manifest& manifest,
                                   const std::vector<shard::TensorSlice>& tensors) {
  std::vector<WantedBytes> all;
  for (const shard::TensorSlice& t : tensors) {
    const Entry* e = manifest.layout.find(t.name);
    CHECK(e, "{} is not in {}", t.name, path);
    for (const auto& part : t.parts) {
      int64_t size = device::size_of(t.type), begin = part.begin * size, end = part.end * size;
      CHECK(begin >= 0 && end <= e->bytes, "{}: bytes [{}, {}) of {} are wanted", t.name, begin,
            end, e->bytes);
      if (begin < end) all.push_back({e, begin, end, static_cast<char*>(part.data)});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const WantedBytes& a, const WantedBytes& b) { return a.offset() < b.offset(); });
  return all;
}

// Whole blocks [first, end) of a tensor, read straight into the wanted memory; or one block that is
// wanted only in part.
struct Portion {
  const WantedBytes* wanted;
  int64_t first, end;
  bool whole;
  int64_t begin() const { return first * kBlock; }  // within the tensor
  int64_t bytes() const { return std::min(end * kBlock, wanted->entry->bytes) - begin(); }
  int64_t offset() const { return wanted->entry->offset + begin(); }
};

constexpr int64_t kMaxGap = 64 << 10;  // bytes of a gap between two portions of one read

std::vector<Portion> portions_of(const std::vector<WantedBytes>& wanted, int64_t largest_read) {
  const int64_t most_blocks = largest_read / kBlock;
  std::vector<Portion> out;
  for (const WantedBytes& w : wanted) {
    int64_t first = block_count(w.begin),
            end = w.end == w.entry->bytes ? w.entry->blocks() : w.end / kBlock;
    if (int64_t block = w.begin / kBlock; block < first)
      out.push_back({&w, block, block + 1, false});
    for (int64_t at = first; at < end; at += most_blocks)
      out.push_back({&w, at, std::min(at + most_blocks, end), true});
    if (end >= first && end * kBlock < w.end) out.push_back({&w, end, end + 1, false});
  }
  return out;
}

// Returns the indices of the portions that begin a new read: [0, ..., number of portions].
std::vector<size_t> batches_of(const std::vector<Portion>& portions, int64_t largest_read) {
  std::vector<size_t> out{0};
  int64_t bytes = 0, end = -1;
  for (size_t i = 0; i < portions.size(); ++i) {
    const Portion& p = portions[i];
    // Two parts that meet in a block both want it; such a block is read twice.
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
        b.portions = std::span(portions_).subspan(batches_[i], batches_[i + 1] - batches_[i]);
        read(b);
        if (proof.valid()) proof.get();
        proof = base::async("verify", [this, &b] { verify(b); });
      }
      if (proof.valid()) proof.get();
    } catch (...) {
      next_ = batches_.size();
      throw;
    }
  }

 private:
  // Portions that lie side by side are read in one call, straight into the wanted memory. Blocks
  // that are wanted in part are read into `edges` instead.
  struct Batch {
    std::span<const Portion> portions;
    std::vector<char*> targets;
    std::vector<char> edges;
  };
  void read(Batch& b);
  void verify(const Batch& b) const;

  const Manifest& manifest_;
  const std::vector<Portion> portions_;
  const std::vector<size_t> batches_;
  const io::File file_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> bytes_{0};
};

void PartReader::read(Batch& b) {
  int64_t edges = 0;
  for (const Portion& p : b.portions) edges += p.whole ? 0 : p.bytes();
  b.edges.resize(size_t(edges));
  b.targets.clear();
  std::vector<char> gap(size_t{kMaxGap});
  std::vector<std::span<char>> pieces;
  char* edge = b.edges.data();
  int64_t offset = b.portions[0].offset(), end = offset;
  for (const Portion& p : b.portions) {
    if (p.offset() > end) pieces.emplace_back(gap.data(), size_t(p.offset() - end));
    b.targets.push_back(p.whole ? p.wanted->data + (p.begin() - p.wanted->begin) : edge);
    if (!p.whole) edge += p.bytes();
    pieces.emplace_back(b.targets.back(), size_t(p.bytes()));
    end = p.offset() + p.bytes();
    bytes_ += p.bytes();
  }
  file_.read_at(std::move(pieces), offset);
}

void PartReader::verify(const Batch& b) const {
  for (size_t i = 0; i < b.portions.size(); ++i) {
    const Portion& p = b.portions[i];
    const Entry& e = *p.wanted->entry;
    const char* data = b.targets[i];
    for (int64_t block = p.first; block < p.end; ++block) {
      int64_t begin = block * kBlock, count = block_bytes(block, e.bytes);
      if (base::xxh3(data + (begin - p.begin()), size_t(count)) !=
          manifest_.blocks[size_t(e.first_block + block)])
        base::fail(base::Exit::checkpoint, "{} is damaged (checksum of bytes {} to {} of the file)",
                   e.name, e.offset + begin, e.offset + begin + count);
    }
    if (p.whole) continue;
    int64_t from = std::max(p.begin(), p.wanted->begin),
            until = std::min(p.begin() + p.bytes(), p.wanted->end);
    std::memcpy(p.wanted->data + (from - p.wanted->begin), data + (from - p.begin()),
                size_t(until - from));
  }
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
