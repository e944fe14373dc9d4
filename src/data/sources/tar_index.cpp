// SPDX-License-Identifier: Apache-2.0
#include "data/sources/tar_index.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include "base/cancel.hpp"
#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "data/sources/safe_name.hpp"
#include "data/sources/tar_reader.hpp"

namespace data {
namespace {

using base::Exit;
constexpr std::string_view kMagic = "trainer tar index 3\n";

class Writer {
 public:
  void number(int64_t value) { out_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(std::string_view s) {
    number(int64_t(s.size()));
    out_ += s;
  }
  std::string out_;
};

// Never reads beyond the end. After a failure all values are zero and good() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  int64_t number() {
    int64_t value = 0;
    if (std::string_view raw = take(sizeof value); !raw.empty())
      std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number())); }
  // Reads a count of elements that need at least `least` bytes each.
  size_t count(int64_t least) {
    int64_t n = number();
    if (n < 0 || n > int64_t(rest_.size()) / least) {
      good_ = false;
      n = 0;
    }
    return size_t(n);
  }
  bool done() const { return good_ && rest_.empty(); }
  bool good() const { return good_; }

 private:
  std::string_view take(int64_t n) {
    if (!good_ || n < 0 || n > int64_t(rest_.size())) {
      good_ = false;
      return {};
    }
    std::string_view out = rest_.substr(0, size_t(n));
    rest_.remove_prefix(size_t(n));
    return out;
  }
  std::string_view rest_;
  bool good_ = true;
};

std::optional<std::string> read_whole(const std::string& path) {
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem)) return std::nullopt;
  try {
    File file(path);
    std::string out(size_t(file.size()), '\0');
    file.read(0, out.data(), out.size());
    return out;
  } catch (const base::Error&) {
    return std::nullopt;  // unreadable, or being replaced by another process: as if absent
  }
}

// A shard may be replaced by another one of the same length and time: tars are padded to whole
// records, and copies keep their time.
std::array<int64_t, 4> state_of(const File& shard) {
  return {shard.size(), shard.modified_ns(), shard.number(), shard.changed_ns()};
}

// Creates a file beside `path` under a name of its own, with the permissions that the user's umask
// leaves. Returns its descriptor, or -1, and the name.
int create_beside(const std::string& path, std::string& name) {
  static std::atomic<uint64_t> calls{0};
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz234567";
  for (int tries = 0; tries < 100; ++tries) {
    const std::array<uint64_t, 3> draw{uint64_t(::getpid()), calls++,
                                       std::bit_cast<uint64_t>(base::now_s())};
    uint64_t bits = base::xxh3(draw.data(), sizeof draw);
    name = path + ".";
    for (int i = 0; i < 6; ++i, bits >>= 5) name += kLetters[bits & 31];
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

// Writes the whole file or nothing. Returns false if this place cannot be written.
bool write_whole(const std::string& path, const std::string& bytes) {
  std::string temporary;
  const int fd = create_beside(path, temporary);
  if (fd < 0) return false;
  bool good = true;
  for (size_t at = 0; good && at < bytes.size();) {
    ssize_t n = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    good = n > 0;
    at += size_t(std::max<ssize_t>(n, 0));
  }
  good = ::close(fd) == 0 && good;
  good = good && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (!good) ::unlink(temporary.c_str());
  return good;
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

std::string encode_tar_index(const TarIndex& index, const File& shard) {
  Writer w;
  w.out_ = kMagic;
  for (int64_t number : state_of(shard)) w.number(number);
  for (auto* list : {&index.keys, &index.extensions}) {
    w.number(int64_t(list->size()));
    for (const std::string& s : *list) w.text(s);
  }
  w.number(int64_t(index.members.size()));
  for (const TarIndex::Member& m : index.members) {
    w.number(m.offset);
    w.number(m.size);
    w.number(int64_t(uint64_t(m.sample) << 32 | m.extension));
  }
  w.number(int64_t(base::xxh3(w.out_)));
  return std::move(w.out_);
}

std::optional<TarIndex> decode_tar_index(std::string_view bytes, const File& shard) {
  if (!bytes.starts_with(kMagic) || bytes.size() < kMagic.size() + 8) return std::nullopt;
  std::string_view body = bytes.substr(0, bytes.size() - 8);
  if (Reader(bytes.substr(body.size())).number() != int64_t(base::xxh3(body))) return std::nullopt;
  Reader r(body.substr(kMagic.size()));
  for (int64_t number : state_of(shard))
    if (r.number() != number) return std::nullopt;
  TarIndex index;
  for (auto* list : {&index.keys, &index.extensions}) {
    list->resize(r.count(8));
    for (std::string& s : *list) s = r.text();
  }
  index.members.resize(r.count(24));
  for (TarIndex::Member& m : index.members) {
    m.offset = r.number();
    m.size = r.number();
    uint64_t both = uint64_t(r.number());
    m.sample = uint32_t(both >> 32);
    m.extension = uint32_t(both);
    bool inside = m.offset >= 0 && m.size >= 0 && m.size <= shard.size() &&
                  m.offset <= shard.size() - m.size && m.sample < index.keys.size() &&
                  m.extension < index.extensions.size();
    if (!inside) return std::nullopt;
  }
  if (!r.done()) return std::nullopt;
  return index;
}

std::vector<std::string> tar_index_paths(const std::string& shard_path,
                                         const OpenContext& context) {
  // Shards of different directories may have the same name.
  auto inside = [&](const std::string& dir) {
    std::error_code problem;
    std::string absolute =
        std::filesystem::absolute(shard_path, problem).lexically_normal().string();
    return fmt::format("{}/{}.{:016x}.index", dir,
                       std::filesystem::path(shard_path).filename().string(), base::xxh3(absolute));
  };
  std::vector<std::string> paths{context.index_dir.empty() ? shard_path + ".index"
                                                           : inside(context.index_dir)};
  if (!context.run_index_dir.empty()) paths.push_back(inside(context.run_index_dir));
  return paths;
}

namespace {

TarIndex read_or_build(const std::string& shard_path, const OpenContext& context) {
  File shard(shard_path);
  std::vector<std::string> paths = tar_index_paths(shard_path, context);
  for (const std::string& path : paths)
    if (std::optional<std::string> bytes = read_whole(path))
      if (std::optional<TarIndex> index = decode_tar_index(*bytes, shard)) return std::move(*index);
  TarIndex index = build_tar_index(shard, context.token);
  if (!context.write_index) return index;
  std::string bytes = encode_tar_index(index, shard);
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (path != shard_path + ".index")
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    if (write_whole(path, bytes)) break;
  }
  return index;
}

}  // namespace

TarIndex load_tar_index(const std::string& shard_path, const OpenContext& context) {
  TarIndex index = read_or_build(shard_path, context);
  // An empty shard is not an error, because downloaders write them. A failed copy may be all zeros,
  // which is a valid tar, too.
  if (index.keys.empty() && base::where().rank == 0)
    base::log::warning(
        "'{}' is a tar without a single sample; if it should hold some, copy or pack it again",
        shard_path);
  return index;
}

}  // namespace data
