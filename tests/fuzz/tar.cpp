// SPDX-License-Identifier: Apache-2.0
// The first byte selects the reader of the rest: 'i' a stored index, 'c' a shard whose headers get
// right checksums (which no mutation would find), anything else a shard without changes.
#include <algorithm>
#include <cstring>
#include <memory>

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

// Reads all samples of an index file. Returns it, or null if it is damaged.
std::shared_ptr<const data::TarIndexFile> read_all(std::string bytes) {
  auto file = data::TarIndexFile::open(std::make_unique<data::IndexBytes>(std::move(bytes)));
  for (int64_t i = 0; file && i < file->head().samples; ++i)
    if (auto sample = file->find(i))
      for (const data::TarIndexFile::Member& m : sample->members)
        expect(m.offset >= 0 && m.size >= 0 && m.extension < file->head().extensions.size(),
               "an index has a member that cannot be");
  return file;
}

void append(std::string& text, uint64_t number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// The first byte divides the rest into head and groups. The head gets its length and its checksum,
// so that the reader reaches the entries.
void stored_index(std::string_view input) {
  read_all(std::string(input));
  if (input.empty()) return;
  const std::string_view rest = input.substr(1);
  const size_t head = std::min(rest.size(), size_t(uint8_t(input[0])));
  const std::string empty = data::encode_tar_index({}, data::FileState{});
  std::string text = empty.substr(0, empty.find('\n') + 1);
  const size_t state = sizeof(data::FileState);
  append(text, text.size() + 8 + state + head + 8);
  text.append(state, '\0').append(rest.substr(0, head));
  append(text, base::xxh3(text));
  read_all(text.append(rest.substr(head)));
}

}  // namespace

void tar(std::string_view input) {
  if (input.empty()) return;
  std::string_view rest = input.substr(1);
  if (input[0] == 'i') return stored_index(rest);
  MemoryFile memory(input[0] == 'c' ? with_checksums(std::string(rest)) : std::string(input));
  data::File shard(memory.path());
  const data::TarIndex index = data::build_tar_index(shard);
  for (const data::TarIndex::Member& m : index.members)
    expect(m.offset >= 0 && m.size >= 0 && m.offset <= shard.size() - m.size &&
               m.sample < index.keys.size() && m.extension < index.extensions.size(),
           "an index points outside of its shard");
  const auto file = read_all(data::encode_tar_index(index, shard.state()));
  expect(file && file->head().samples == int64_t(index.keys.size()),
         "an index does not survive its file");
  for (size_t i = 0; i < index.keys.size(); ++i) {
    const auto sample = file->find(int64_t(i));
    expect(sample && sample->key == index.keys[i], "a sample does not survive its index");
  }
}

}  // namespace fuzz
