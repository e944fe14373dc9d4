// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read_plan.hpp"

#include <algorithm>
#include <cstring>

namespace checkpoint {

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

void Batch::take(std::span<const Portion> portions) {
  portions_ = portions;
  int64_t edges = 0;
  for (const Portion& p : portions_) edges += p.whole ? 0 : p.bytes();
  edges_.resize(size_t(edges));
  targets_.clear();
  char* edge = edges_.data();
  for (const Portion& p : portions_) {
    targets_.push_back(p.whole ? p.wanted->data + (p.begin() - p.wanted->begin) : edge);
    if (!p.whole) edge += p.bytes();
  }
}

void Batch::verify(const Manifest& manifest) const {
  for (size_t i = 0; i < portions_.size(); ++i) {
    const Portion& p = portions_[i];
    const Entry& e = *p.wanted->entry;
    const char* data = targets_[i];
    for (int64_t block = p.first; block < p.end; ++block) {
      int64_t begin = block * kBlock, count = block_bytes(block, e.bytes);
      if (base::xxh3(data + (begin - p.begin()), size_t(count)) !=
          manifest.blocks[size_t(e.first_block + block)])
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

}  // namespace checkpoint
