// SPDX-License-Identifier: Apache-2.0
#include "data/sources/tar_index.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "base/cancel.hpp"
#include "base/hash.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "data/sources/index_bytes.hpp"
#include "data/sources/safe_name.hpp"
#include "data/sources/tar_reader.hpp"

namespace data {
namespace {

using base::Exit;
constexpr std::string_view kIndexMagic = "trainer tar index 4\n";
constexpr int64_t kGroup = 64;         // samples
constexpr size_t kGroupEntry = 2 * 8;  // bytes: place and checksum
constexpr int64_t kTarBlock = 512;

// Members follow each other, so the difference to the usual place of the next one is mostly 0.
int64_t usual_next(int64_t offset, int64_t size) {
  return int64_t((uint64_t(offset) + uint64_t(size) + 2 * kTarBlock - 1) &
                 ~uint64_t(kTarBlock - 1));
}
// Small numbers of either sign become small ones without a sign.
uint64_t unsigned_of(int64_t value) { return uint64_t(value) << 1 ^ uint64_t(value >> 63); }
int64_t signed_of(uint64_t value) { return int64_t(value >> 1) ^ -int64_t(value & 1); }

// The members of each sample, in the order of the shard.
struct BySample {
  std::vector<uint32_t> begins;   // [samples + 1]
  std::vector<uint32_t> members;  // numbers in index.members
  explicit BySample(const TarIndex& index)
      : begins(index.keys.size() + 1), members(index.members.size()) {
    for (const TarIndex::Member& m : index.members) ++begins[m.sample + 1];
    for (size_t i = 0; i + 1 < begins.size(); ++i) begins[i + 1] += begins[i];
    std::vector<uint32_t> next(begins.begin(), begins.end() - 1);
    for (size_t m = 0; m < members.size(); ++m)
      members[next[index.members[m].sample]++] = uint32_t(m);
  }
};

std::string encode_group(const TarIndex& index, const BySample& by, size_t begin, size_t end) {
  IndexWriter w;
  int64_t usual = 0;
  for (size_t i = begin; i < end; ++i) {
    w.text(index.keys[i]);
    w.small(by.begins[i + 1] - by.begins[i]);
    for (uint32_t at = by.begins[i]; at < by.begins[i + 1]; ++at) {
      const TarIndex::Member& m = index.members[by.members[at]];
      w.small(m.extension);
      w.small(unsigned_of(m.offset - usual));
      w.small(uint64_t(m.size));
      usual = usual_next(m.offset, m.size);
    }
  }
  return std::move(w.out);
}

using Kinds = std::map<std::vector<uint32_t>, std::pair<int64_t, int64_t>>;  // samples, first
void encode_kinds(const TarIndex& index, const BySample& by, IndexWriter& w) {
  Kinds kinds;
  std::vector<uint32_t> extensions;
  for (size_t i = 0; i < index.keys.size(); ++i) {
    extensions.clear();
    for (uint32_t at = by.begins[i]; at < by.begins[i + 1]; ++at)
      extensions.push_back(index.members[by.members[at]].extension);
    std::ranges::sort(extensions);
    ++kinds.try_emplace(extensions, 0, int64_t(i)).first->second.first;
  }
  w.small(kinds.size());
  for (const auto& [kind, found] : kinds) {
    w.small(kind.size());
    for (uint32_t e : kind) w.small(e);
    w.small(uint64_t(found.first));
    w.small(uint64_t(found.second));
  }
}

}  // namespace

std::optional<std::pair<std::string_view, std::string>> split_member_name(std::string_view name) {
  while (name.starts_with("./"))
    name.remove_prefix(std::min(name.find_first_not_of('/', 1), name.size()));
  if (is_hidden_member(name)) return std::nullopt;
  size_t slash = name.rfind('/'), base = slash == name.npos ? 0 : slash + 1;
  size_t dot = name.find('.', base);
  if (dot == name.npos || dot == base || dot + 1 == name.size()) return std::nullopt;
  return std::pair{name.substr(0, dot), lower_case(name.substr(dot + 1))};
}

TarIndex build_tar_index(const File& shard, const std::stop_token& token) {
  TarReader reader(shard);
  TarIndex index;
  std::unordered_map<std::string, uint32_t> samples, extensions;
  std::unordered_map<uint64_t, int64_t> seen;  // sample and extension -> offset of the header
  auto number_of = [](std::unordered_map<std::string, uint32_t>& numbers,
                      std::vector<std::string>& list, std::string_view name) {
    auto [it, fresh] = numbers.try_emplace(std::string(name), uint32_t(list.size()));
    if (fresh) list.emplace_back(name);
    return it->second;
  };
  for (TarMember member; reader.next(member);) {
    base::end_if_asked(token);
    // Nothing is unpacked, but names appear in messages, lists of bad samples and copies of the
    // set.
    if (std::string problem = unsafe_name(member.name); !problem.empty())
      base::fail(Exit::data, "'{}' at byte {}: the member name {} {}: pack the shard again",
                 shard.path(), member.header, base::quoted(member.name), problem);
    auto parts = split_member_name(member.name);
    if (!parts) continue;
    uint32_t sample = number_of(samples, index.keys, parts->first);
    uint32_t extension = number_of(extensions, index.extensions, parts->second);
    auto [first, fresh] = seen.try_emplace(uint64_t(sample) << 32 | extension, member.header);
    if (!fresh)
      base::fail(Exit::data,
                 "'{}' holds the member '{}' twice, perhaps in other capitals, at bytes {} and {}: "
                 "pack the shard again",
                 shard.path(), member.name, first->second, member.header);
    index.members.push_back({member.offset, member.size, sample, extension});
  }
  return index;
}

bool is_changed(const FileState& then, const FileState& now, bool is_copy) {
  return then[0] != now[0] || then[1] != now[1] ||
         (!is_copy && then[2] != now[2] && then[3] != now[3]);
}

std::string encode_tar_index(const TarIndex& index, const FileState& state) {
  const BySample by(index);
  IndexWriter content;
  content.small(index.keys.size());
  content.small(index.extensions.size());
  for (const std::string& e : index.extensions) content.text(e);
  encode_kinds(index, by, content);
  std::string body;
  for (size_t i = 0; i < index.keys.size(); i += size_t(kGroup)) {
    const std::string group =
        encode_group(index, by, i, std::min(i + size_t(kGroup), index.keys.size()));
    content.number(int64_t(body.size()));
    content.number(int64_t(base::xxh3(group)));
    body += group;
  }
  content.number(int64_t(body.size()));
  IndexWriter head;
  head.out = kIndexMagic;
  head.number(int64_t(kIndexMagic.size() + 8 * (2 + state.size()) + content.out.size()));
  for (int64_t number : state) head.number(number);
  head.out += content.out;
  head.number(int64_t(base::xxh3(head.out)));
  return head.out + body;
}

std::shared_ptr<const TarIndexFile> TarIndexFile::open(std::unique_ptr<IndexBytes> bytes) {
  if (!bytes) return nullptr;
  auto out = std::make_shared<TarIndexFile>();
  out->bytes_ = std::move(bytes);
  if (!out->read_head()) return nullptr;
  return out;
}

bool TarIndexFile::read_head() {
  const std::string_view all = bytes_->view();
  if (!all.starts_with(kIndexMagic)) return false;
  const int64_t length = IndexReader(all.substr(kIndexMagic.size())).number();
  const size_t before = kIndexMagic.size() + 8 * (1 + head_.state.size());
  if (length < int64_t(before + 8) || length > int64_t(all.size())) return false;
  const std::string_view head = all.substr(0, size_t(length) - 8);
  if (IndexReader(all.substr(head.size())).number() != int64_t(base::xxh3(head))) return false;
  IndexReader r(head.substr(kIndexMagic.size() + 8));
  for (int64_t& number : head_.state) number = r.number();
  head_.digest = base::xxh3(head.substr(before));
  head_.samples = int64_t(r.small());
  head_.extensions.resize(r.count(1));
  for (std::string& e : head_.extensions) e = r.text();
  head_.kinds.resize(r.count(3));
  for (TarIndexHead::Kind& kind : head_.kinds) {
    kind.extensions.resize(r.count(1));
    for (uint32_t& e : kind.extensions) e = uint32_t(r.small());
    kind.samples = int64_t(r.small());
    kind.first = int64_t(r.small());
    for (uint32_t e : kind.extensions)
      if (e >= head_.extensions.size()) return false;
  }
  const std::string_view rest = r.rest();
  if (!r.good() || head_.samples < 0 || head_.samples > int64_t(all.size()) ||
      rest.size() != size_t(base::ceil_div(head_.samples, kGroup)) * kGroupEntry + 8)
    return false;
  groups_ = rest.substr(0, rest.size() - 8);
  body_ = all.substr(size_t(length));
  return IndexReader(rest.substr(groups_.size())).number() == int64_t(body_.size());
}

// Returns nothing if the group is damaged.
std::string_view TarIndexFile::group_bytes(size_t group) const {
  const size_t groups = groups_.size() / kGroupEntry;
  auto begin_of = [&](size_t g) {
    return g == groups ? body_.size()
                       : size_t(IndexReader(groups_.substr(g * kGroupEntry)).number());
  };
  const size_t begin = begin_of(group), end = begin_of(group + 1);
  if (begin > end || end > body_.size()) return {};
  const std::string_view bytes = body_.substr(begin, end - begin);
  const int64_t sum = IndexReader(groups_.substr(group * kGroupEntry + 8)).number();
  return sum == int64_t(base::xxh3(bytes)) ? bytes : std::string_view{};
}

int64_t TarIndexFile::walk(int64_t begin, int64_t end, const EachSample& each) const {
  CHECK(begin >= 0 && begin <= end && end <= head_.samples, "samples {} to {} of {}", begin, end,
        head_.samples);
  Sample out;
  for (int64_t i = begin / kGroup * kGroup; i < end;) {
    IndexReader r(group_bytes(size_t(i / kGroup)));
    int64_t usual = 0;
    for (const int64_t last = std::min(i + kGroup, end); i < last; ++i) {
      out.key = r.text();
      out.members.resize(r.count(3));
      bool good = r.good();
      for (Member& m : out.members) {
        m.extension = uint32_t(r.small());
        m.offset = int64_t(uint64_t(usual) + uint64_t(signed_of(r.small())));
        m.size = int64_t(r.small());
        usual = usual_next(m.offset, m.size);
        good &= m.extension < head_.extensions.size() && m.offset >= 0 && m.size >= 0;
      }
      if (!good || !r.good()) return std::max(i, begin);
      if (i >= begin && !each(out)) return i + 1;
    }
  }
  return end;
}

std::optional<TarIndexFile::Sample> TarIndexFile::find(int64_t sample) const {
  CHECK(sample >= 0 && sample < head_.samples, "sample {} of {}", sample, head_.samples);
  std::optional<Sample> out;
  walk(sample, sample + 1, [&](const Sample& found) {
    out = found;
    return true;
  });
  return out;
}

namespace {

std::vector<std::string> places_of(const std::string& shard_path, const OpenContext& context) {
  return index_places(
      shard_path + ".index",
      fmt::format("{}.{}.index", std::filesystem::path(shard_path).filename().string(),
                  path_hash(shard_path)),
      context);
}

OpenedIndex build_and_write(const File& shard, const OpenContext& context) {
  const std::string bytes = encode_tar_index(build_tar_index(shard, context.token), shard.state());
  std::string written;
  if (context.write_index) written = write_index_file(places_of(shard.path(), context), bytes);
  std::shared_ptr<const TarIndexFile> index;
  if (!written.empty()) index = TarIndexFile::open(IndexBytes::map(written));
  if (index && index->is_of(shard)) return {index, true};
  index = TarIndexFile::open(std::make_unique<IndexBytes>(bytes));
  CHECK(index, "a new index of '{}' cannot be read", shard.path());
  return {index, false};
}

}  // namespace

OpenedIndex open_tar_index(const std::string& shard_path, const OpenContext& context) {
  const File shard(shard_path);
  for (const std::string& path : places_of(shard_path, context))
    if (auto index = TarIndexFile::open(IndexBytes::map(path)); index && index->is_of(shard))
      return {index, true};
  return build_and_write(shard, context);
}

OpenedIndex renew_tar_index(const std::string& shard_path, const OpenContext& context) {
  return build_and_write(File(shard_path), context);
}

std::shared_ptr<const TarIndexFile> find_tar_index(const std::string& shard_path, uint64_t digest,
                                                   const OpenContext& context) {
  for (const std::string& path : places_of(shard_path, context))
    if (auto index = TarIndexFile::open(IndexBytes::map(path));
        index && index->head().digest == digest)
      return index;
  return nullptr;
}

}  // namespace data
