// SPDX-License-Identifier: Apache-2.0
// Reads the manifest of a file and converts it to bytes for other ranks.
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/catalogue.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/header.hpp"

namespace checkpoint {
namespace {

using Json = nlohmann::json;

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  base::fail(base::Exit::checkpoint, format, std::forward<Args>(args)...);
}

std::string binary(const Json& json) {
  std::string bytes;
  Json::to_cbor(json, bytes);
  return bytes;
}

// Offsets have a fixed width, so that the size of the index does not depend on their values.
std::string fixed(int64_t offset) { return fmt::format("{:020}", offset); }
int64_t number(const Json& text) { return std::stoll(text.get<std::string>()); }

// Numbers are stored as their bits, which also keeps NaN and infinities.
Json attributes_json(const State& state) {
  Json numbers = Json::object();
  for (const auto& [name, value] : state.numbers)
    numbers[name] = hex(std::bit_cast<uint64_t>(value));
  return {{"step", fixed(state.step)}, {"numbers", numbers}, {"texts", state.texts}};
}

void from_json(const Json& json, State& state) {
  state.step = number(json.at("step"));
  state.numbers.clear();
  for (const auto& [name, bits] : json.at("numbers").items())
    state.numbers[name] =
        std::bit_cast<double>(uint64_t(std::stoull(bits.get<std::string>(), nullptr, 16)));
  state.texts = json.at("texts").get<std::map<std::string, std::string>>();
}

Json layout_json(const FileLayout& layout) {
  Json entries = Json::array();
  for (const Entry& e : layout.entries)
    entries.push_back({e.name, int(e.type), e.shape, e.bytes, fixed(e.offset)});
  return {{"entries", entries},
          {"tensor_sums", fixed(layout.tensor_sums)},
          {"block_sums", fixed(layout.block_sums)},
          {"file_sum", fixed(layout.file_sum)},
          {"data_begin", fixed(layout.data_begin)}};
}

FileLayout layout_of_json(const Json& json) {
  FileLayout layout;
  for (const Json& e : json.at("entries"))
    layout.entries.push_back({.name = e.at(0).get<std::string>(),
                              .type = io::H5Type(e.at(1).get<int>()),
                              .shape = e.at(2).get<std::vector<int64_t>>(),
                              .bytes = e.at(3).get<int64_t>(),
                              .offset = number(e.at(4))});
  number_blocks(layout);
  layout.tensor_sums = number(json.at("tensor_sums"));
  layout.block_sums = number(json.at("block_sums"));
  layout.file_sum = number(json.at("file_sum"));
  layout.data_begin = number(json.at("data_begin"));
  return layout;
}

// Reads a range of the file. Throws if the range is not inside the file.
std::string read_range(const io::File& file, int64_t begin, int64_t bytes, const char* what) {
  if (begin < kUserBlock || bytes < 0 || begin > file.size() - bytes)
    refuse("{} lies outside the file", what);
  std::string out(size_t(bytes), '\0');
  file.read_at(out.data(), bytes, begin);
  return out;
}
std::vector<uint64_t> read_hashes(const io::File& file, int64_t begin, int64_t count,
                                  const char* what) {
  std::string bytes = read_range(file, begin, 8 * count, what);
  std::vector<uint64_t> out(static_cast<size_t>(count));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

}  // namespace

std::string encode_index(const State& state, const FileLayout& layout) {
  Json attributes = attributes_json(state);
  attributes["texts"].erase("deck");  // the deck is a dataset
  return binary({{"state", attributes}, {"layout", layout_json(layout)}});
}

Manifest inspect(const std::string& path, int64_t step) {
  Header header = check_header(path);
  if (header.step != step) refuse("its name says step {}, its header step {}", step, header.step);
  io::File file(path, io::File::Mode::read);
  std::string index =
      read_range(file, header.index.first, header.index.second - header.index.first, kIndex);
  if (base::xxh3(index) != header.index_hash) refuse("{} is damaged (checksum)", kIndex);
  Manifest m;
  try {
    Json json = Json::from_cbor(index);
    from_json(json.at("state"), m.state);
    m.layout = layout_of_json(json.at("layout"));
  } catch (const std::exception& e) {
    refuse("{} cannot be read: {}", kIndex, e.what());
  }
  if (m.state.step != step) refuse("its index and its header give different steps");
  m.layout.file_bytes = header.file_bytes;
  m.layout.index = header.index.first;
  m.layout.index_bytes = header.index.second - header.index.first;
  for (const Entry& e : m.layout.entries)
    if (e.bytes > 0 && (e.offset < kUserBlock || e.offset > header.file_bytes - e.bytes))
      refuse("the bytes of {} are not inside the file", e.name);
  std::vector<uint64_t> tensors =
      read_hashes(file, m.layout.tensor_sums, int64_t(m.layout.entries.size()), kTensorSums);
  m.blocks = read_hashes(file, m.layout.block_sums, m.layout.blocks, kBlockSums);
  if (read_hashes(file, m.layout.file_sum, 1, kFileSum)[0] != hash_of(tensors))
    refuse("its list of tensor checksums is damaged");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Entry& e = m.layout.entries[i];
    if (hash_of({m.blocks.data() + e.first_block, size_t(e.blocks())}) != tensors[i])
      refuse("the block checksums of {} are damaged", e.name);
  }
  if (const Entry* deck = m.layout.find(kDeck); deck && deck->type == io::H5Type::text) {
    std::string text = read_range(file, deck->offset, deck->bytes, kDeck);
    for (int64_t b = 0; b < deck->blocks(); ++b)
      if (base::xxh3(text.data() + b * kBlock, size_t(block_bytes(b, deck->bytes))) !=
          m.blocks[size_t(deck->first_block + b)])
        refuse("{} is damaged (checksum)", kDeck);
    m.state.texts["deck"] = text;
  }
  return m;
}

std::string pack(const Manifest& m) {
  return binary({{"state", attributes_json(m.state)},
                 {"layout", layout_json(m.layout)},
                 {"blocks", m.blocks}});
}

Manifest unpack(const std::string& bytes) {
  Json json = Json::from_cbor(bytes);
  Manifest m;
  from_json(json.at("state"), m.state);
  m.layout = layout_of_json(json.at("layout"));
  m.blocks = json.at("blocks").get<std::vector<uint64_t>>();
  return m;
}

}  // namespace checkpoint
