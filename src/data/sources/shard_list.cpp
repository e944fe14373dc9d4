// SPDX-License-Identifier: Apache-2.0
#include "data/sources/shard_list.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "data/sources/index_bytes.hpp"

namespace data {
namespace {

constexpr std::string_view kListMagic = "trainer set list 1\n";

// Identifies the shards, whatever folder the program runs in.
uint64_t hash_of(std::span<const std::string> paths) {
  std::string folder;
  Fingerprint print;
  for (const std::string& path : paths) {
    const bool relative = !path.starts_with('/');
    if (relative && folder.empty()) folder = std::filesystem::current_path().string() + "/";
    print.add(relative ? folder + path : path);
  }
  return print.value();
}

}  // namespace

uint32_t ShardList::extension(const std::string& name) {
  const auto [at, fresh] = extension_numbers_.try_emplace(name, uint32_t(extensions_.size()));
  if (fresh) extensions_.push_back(name);
  return at->second;
}

void ShardList::add(const TarIndexHead& head) {
  shards_.push_back({.state = head.state,
                     .digest = head.digest,
                     .first = samples_,
                     .samples = head.samples,
                     .kinds = of_shards_.size()});
  samples_ += head.samples;
  for (const std::string& name : head.extensions) extension(name);
  for (const TarIndexHead::Kind& kind : head.kinds) {
    std::vector<uint32_t> own;
    for (uint32_t e : kind.extensions) own.push_back(extension(head.extensions[e]));
    std::ranges::sort(own);
    const auto [at, fresh] = kind_numbers_.try_emplace(own, uint32_t(kinds_.size()));
    if (fresh) kinds_.push_back(std::move(own));
    of_shards_.push_back({at->second, kind.samples, kind.first});
  }
}

void ShardList::add(const ShardList& next) {
  for (size_t s = 0; s < next.shards_.size(); ++s) {
    const Shard& shard = next.shards_[s];
    TarIndexHead head{.state = shard.state,
                      .samples = shard.samples,
                      .extensions = next.extensions_,
                      .kinds = {},
                      .digest = shard.digest};
    for (const Kind& kind : next.kinds_of(s))
      head.kinds.push_back({next.kinds_[kind.number], kind.samples, kind.first});
    add(head);
  }
}

std::span<const ShardList::Kind> ShardList::kinds_of(size_t shard) const {
  const size_t begin = shards_[shard].kinds,
               end = shard + 1 < shards_.size() ? shards_[shard + 1].kinds : of_shards_.size();
  return {of_shards_.data() + begin, end - begin};
}

std::string ShardList::encode(std::span<const std::string> paths) const {
  CHECK(paths.size() == shards_.size());
  IndexWriter w;
  w.out = kListMagic;
  w.number(int64_t(hash_of(paths)));
  w.small(extensions_.size());
  for (const std::string& name : extensions_) w.text(name);
  w.small(kinds_.size());
  for (const std::vector<uint32_t>& kind : kinds_) {
    w.small(kind.size());
    for (uint32_t e : kind) w.small(e);
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    const Shard& shard = shards_[s];
    for (int64_t number : shard.state) w.number(number);
    w.number(int64_t(shard.digest));
    w.small(uint64_t(shard.samples));
    const std::span<const Kind> kinds = kinds_of(s);
    w.small(kinds.size());
    for (const Kind& kind : kinds) {
      w.small(kind.number);
      w.small(uint64_t(kind.samples));
      w.small(uint64_t(kind.first));
    }
  }
  w.number(int64_t(base::xxh3(w.out)));
  return std::move(w.out);
}

std::optional<ShardList> ShardList::decode(std::string_view bytes,
                                           std::span<const std::string> paths) {
  if (!bytes.starts_with(kListMagic) || bytes.size() < kListMagic.size() + 8) return std::nullopt;
  const std::string_view body = bytes.substr(0, bytes.size() - 8);
  if (IndexReader(bytes.substr(body.size())).number() != int64_t(base::xxh3(body)))
    return std::nullopt;
  IndexReader r(body.substr(kListMagic.size()));
  if (uint64_t(r.number()) != hash_of(paths)) return std::nullopt;
  ShardList out;
  for (size_t n = r.count(1); n > 0; --n) out.extension(std::string(r.text()));
  out.kinds_.resize(r.count(1));
  for (std::vector<uint32_t>& kind : out.kinds_) {
    kind.resize(r.count(1));
    for (uint32_t& e : kind)
      if ((e = uint32_t(r.small())) >= out.extensions_.size()) return std::nullopt;
  }
  for (size_t s = 0; s < paths.size() && r.good(); ++s) {
    Shard shard;
    for (int64_t& number : shard.state) number = r.number();
    shard.digest = uint64_t(r.number());
    shard.first = out.samples_;
    shard.samples = int64_t(r.small());
    shard.kinds = out.of_shards_.size();
    out.samples_ += shard.samples;
    for (size_t n = r.count(3); n > 0; --n) {
      const auto number = uint32_t(r.small());
      if (number >= out.kinds_.size()) return std::nullopt;
      const auto samples = int64_t(r.small());
      out.of_shards_.push_back({number, samples, int64_t(r.small())});
    }
    out.shards_.push_back(shard);
  }
  return r.done() ? std::optional(std::move(out)) : std::nullopt;
}

std::pair<size_t, int64_t> ShardList::find(int64_t sample) const {
  CHECK(sample >= 0 && sample < samples_, "sample {} of {}", sample, samples_);
  // Empty shards share their `first` with the next shard; upper_bound skips them.
  const auto it = std::ranges::upper_bound(shards_, sample, {}, &Shard::first) - 1;
  return {size_t(it - shards_.begin()), sample - it->first};
}

const std::string& ShardList::choice(const std::vector<uint32_t>& kind,
                                     const std::vector<std::string>& choices) const {
  static const std::string none;
  for (const std::string& name : choices)
    if (const auto known = extension_numbers_.find(name);
        known != extension_numbers_.end() && std::ranges::binary_search(kind, known->second))
      return name;
  return none;
}

std::pair<int64_t, int64_t> ShardList::lacking(const std::vector<std::string>& choices) const {
  std::vector<bool> lacks;
  for (const std::vector<uint32_t>& kind : kinds_) lacks.push_back(choice(kind, choices).empty());
  int64_t count = 0, first = -1;
  for (size_t s = 0; s < shards_.size(); ++s)
    for (const Kind& kind : kinds_of(s)) {
      if (!lacks[kind.number]) continue;
      count += kind.samples;
      // Later shards have higher numbers.
      const int64_t sample = shards_[s].first + kind.first;
      if (first < 0 || sample < first) first = sample;
    }
  return {count, first};
}

}  // namespace data
