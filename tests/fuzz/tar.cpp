// SPDX-License-Identifier: Apache-2.0
// The first byte selects the reader of the rest: 'i' a stored index, 'c' a shard whose headers get
// right checksums (which no mutation would find), anything else a shard without changes.
#include <cstring>

#include "base/hash.hpp"
#include "data/sources/tar_index.hpp"
#include "memory_file.hpp"
#include "targets.hpp"

namespace fuzz {
namespace {

constexpr size_t kBlock = 512;

std::string with_checksums(std::string shard) {
  for (size_t at = 0; at + kBlock <= shard.size(); at += kBlock) {
    char* header = shard.data() + at;
    if (std::memcmp(header + 257, "ustar", 5) != 0) continue;
    std::memset(header + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += uint8_t(header[i]);
    for (size_t i = 0; i < 6; ++i) header[148 + 5 - i] = char('0' + (sum >> (3 * i) & 7));
    header[154] = '\0';
  }
  return shard;
}

void check(const data::TarIndex& index, const data::File& shard) {
  for (const data::TarIndex::Member& m : index.members)
    expect(m.offset >= 0 && m.size >= 0 && m.offset <= shard.size() - m.size &&
               m.sample < index.keys.size() && m.extension < index.extensions.size(),
           "an index points outside of its shard");
}

// Magic, size and time of the shard precede the input and the checksum follows it, so that the
// reader reaches the entries.
void stored_index(std::string_view input) {
  MemoryFile memory(std::string(2048, 'x'));
  data::File shard(memory.path());
  std::string empty = data::encode_tar_index({}, shard);
  std::string text = empty.substr(0, empty.size() - 4 * sizeof(int64_t)).append(input);
  uint64_t hash = base::xxh3(text);
  text.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  if (auto index = data::decode_tar_index(text, shard)) {
    check(*index, shard);
    expect(data::encode_tar_index(*index, shard) == text, "decoding and encoding changes an index");
  }
  data::decode_tar_index(input, shard);
}

}  // namespace

void tar(std::string_view input) {
  if (input.empty()) return;
  std::string_view rest = input.substr(1);
  if (input[0] == 'i') return stored_index(rest);
  MemoryFile memory(input[0] == 'c' ? with_checksums(std::string(rest)) : std::string(input));
  data::File shard(memory.path());
  data::TarIndex index = data::build_tar_index(shard);
  check(index, shard);
  expect(data::decode_tar_index(data::encode_tar_index(index, shard), shard) == index,
         "an index does not survive its file");
}

}  // namespace fuzz
