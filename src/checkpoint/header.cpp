// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/header.hpp"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/text.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/foreign_file.hpp"

namespace checkpoint {
namespace {

constexpr std::string_view kTitle = "trainer checkpoint: an HDF5 file behind 4096 bytes of text\n";
constexpr const char* kNoCheckpoint = "it does not begin as a checkpoint of this program";
constexpr std::string_view kOwnHash = "header_xxh3=";

template <class T>
T number(const std::map<std::string, std::string>& lines, const std::string& key, int base = 10) {
  auto line = lines.find(key);
  if (line == lines.end()) base::fail(base::Exit::checkpoint, "its header has no line {}=", key);
  const std::string& text = line->second;
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size())
    base::fail(base::Exit::checkpoint, "its header has a bad number: {}={}", key, text);
  return value;
}

}  // namespace

std::string encode(const Header& h) {
  std::string text(kTitle);
  text +=
      fmt::format("format={}\nstep={}\nfile_bytes={}\nstructure=", h.format, h.step, h.file_bytes);
  for (size_t i = 0; i < h.structure.size(); ++i)
    text += fmt::format("{}{}+{}", i ? " " : "", h.structure[i].first,
                        h.structure[i].second - h.structure[i].first);
  text += fmt::format("\nstructure_xxh3={}\nindex={}+{}\nindex_xxh3={}\n", hex(h.structure_hash),
                      h.index.first, h.index.second - h.index.first, hex(h.index_hash));
  text += fmt::format("{}{}\n", kOwnHash, hex(base::xxh3(text)));
  CHECK(int64_t(text.size()) <= kUserBlock, "the checkpoint's metadata lie in {} pieces",
        h.structure.size());
  text.resize(size_t(kUserBlock), '\0');
  return text;
}

Header decode_header(std::string_view text) {
  if (text.find_first_not_of('\0') == text.npos)
    base::fail(base::Exit::checkpoint, "it was never finished (no header)");
  if (!text.starts_with(kTitle)) base::fail(base::Exit::checkpoint, "{}", kNoCheckpoint);
  size_t own = text.find(kOwnHash), end = own == text.npos ? own : text.find('\n', own);
  if (end == text.npos || text.substr(own + kOwnHash.size(), end - own - kOwnHash.size()) !=
                              hex(base::xxh3(text.substr(0, own))))
    base::fail(base::Exit::checkpoint, "its header is damaged (checksum)");
  std::map<std::string, std::string> lines;
  for (const std::string& line : base::split(text.substr(0, own), '\n'))
    if (size_t equals = line.find('='); equals != line.npos)
      lines[line.substr(0, equals)] = line.substr(equals + 1);
  Header h;
  h.format = number<int>(lines, "format");
  if (h.format != kFormat)
    base::fail(base::Exit::checkpoint, "it has format {}, this program reads format {}", h.format,
               kFormat);
  h.step = number<int64_t>(lines, "step");
  h.file_bytes = number<int64_t>(lines, "file_bytes");
  h.structure_hash = number<uint64_t>(lines, "structure_xxh3", 16);
  auto range = [&](const std::string& piece) {
    std::vector<std::string> parts = base::split(piece, '+');
    std::map<std::string, std::string> named{{"begin", parts[0]},
                                             {"length", parts.size() == 2 ? parts[1] : ""}};
    int64_t begin = number<int64_t>(named, "begin"), length = number<int64_t>(named, "length");
    if (begin < kUserBlock || length < 0 || begin > h.file_bytes - length)
      base::fail(base::Exit::checkpoint, "its header has a bad range: {}", piece);
    return std::pair(begin, begin + length);
  };
  for (const std::string& piece : base::split(lines["structure"], ' '))
    h.structure.push_back(range(piece));
  h.index = range(lines["index"]);
  h.index_hash = number<uint64_t>(lines, "index_xxh3", 16);
  return h;
}

std::vector<std::pair<int64_t, int64_t>> find_structure(const io::File& file,
                                                        const FileLayout& layout) {
  std::vector<std::pair<int64_t, int64_t>> found{{kUserBlock, layout.data_begin}};
  std::string bytes;
  for (const auto& [begin, end] : layout.gaps()) {
    bytes.resize(size_t(end - begin));
    file.read_at(bytes.data(), end - begin, begin);
    if (bytes.find_first_not_of('\0') != bytes.npos) found.emplace_back(begin, end);
  }
  return found;
}

uint64_t hash_structure(const io::File& file,
                        const std::vector<std::pair<int64_t, int64_t>>& structure) {
  std::string bytes;
  std::vector<uint64_t> hashes;
  for (const auto& [begin, end] : structure) {
    bytes.resize(size_t(end - begin));
    file.read_at(bytes.data(), end - begin, begin);
    hashes.push_back(base::xxh3(bytes));
  }
  return hash_of(hashes);
}

Header check_header(const std::string& path) {
  io::File file(path, io::File::Mode::read);
  int64_t bytes = file.size();
  std::string text(size_t(std::min(bytes, kUserBlock)), '\0');
  file.read_at(text.data(), int64_t(text.size()), 0);
  // A file of another kind is not a cut checkpoint, so fetching it again would not help.
  const bool unfinished = text.find_first_not_of('\0') == text.npos;
  if (!unfinished && !text.starts_with(kTitle.substr(0, text.size())))
    base::fail(base::Exit::checkpoint, "{}{}", kNoCheckpoint, foreign_hint(path));
  if (bytes < kUserBlock)
    base::fail(base::Exit::checkpoint, "it is cut: {} bytes, shorter than its header", bytes);
  Header h = decode_header(text);
  if (bytes < h.file_bytes)
    base::fail(base::Exit::checkpoint, "it is cut: {} of {} bytes", bytes, h.file_bytes);
  if (bytes > h.file_bytes)
    base::fail(base::Exit::checkpoint, "it has {} bytes, {} were written", bytes, h.file_bytes);
  if (hash_structure(file, h.structure) != h.structure_hash)
    base::fail(base::Exit::checkpoint,
               "its HDF5 structure is damaged (checksum of groups, headers and attributes)");
  return h;
}

}  // namespace checkpoint
