// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layout.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "checkpoint/checksum.hpp"

namespace checkpoint {
namespace {

constexpr size_t kLongestText = 60000;  // bytes of an attribute; HDF5 allows 64 KiB with its header

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

// Estimates the bytes of all metadata, so that HDF5 stores it in one piece. The estimate is
// generous: HDF5 1.10 needs 140 to 180 bytes per dataset and 90 to 140 per group, plus names.
// Excess room stays empty. If the room is too small, HDF5 puts the rest into gaps, which
// find_structure finds and hashes (header.hpp).
int64_t metadata_room(const State& state, const FileLayout& layout) {
  std::set<std::string> groups;
  int64_t bytes = 2048;
  for (const Entry& e : layout.entries) {
    bytes += 224 + int64_t(e.name.size() - e.name.rfind('/')) + 16 * int64_t(e.shape.size());
    for (size_t end = e.name.find('/', 1); end != std::string::npos;
         end = e.name.find('/', end + 1))
      groups.insert(e.name.substr(0, end));
  }
  for (const std::string& g : groups) bytes += 192 + 2 * int64_t(g.size() - g.rfind('/'));
  for (const auto& [name, value] : state.numbers) bytes += 136 + int64_t(name.size());
  for (const auto& [name, text] : state.texts)
    if (name != "deck") bytes += 128 + int64_t(name.size() + text.size());
  return base::round_up(bytes, kAlignment);
}

// Returns the end of the file as its superblock states it. The superblock follows the user block.
// Files with the formats of HDF5 1.8 have superblocks of version 2, and addresses of 8 bytes.
int64_t stated_end(const std::string& image) {
  constexpr size_t kVersion = 8, kBytesOfAddress = 9, kEnd = 28;
  CHECK(image.size() >= size_t(kUserBlock) + kEnd + 8, "a file of {} bytes", image.size());
  const char* superblock = image.data() + kUserBlock;
  CHECK(superblock[kVersion] == 2 && superblock[kBytesOfAddress] == 8,
        "an HDF5 file with a superblock of version {}", int(superblock[kVersion]));
  int64_t end = 0;
  std::memcpy(&end, superblock + kEnd, sizeof end);
  return end;
}

}  // namespace

bool is_reserved(const std::string& attribute) {
  for (const char* name : {"format", "step", "write_completed"})
    if (attribute == name) return true;
  return false;
}

int64_t Entry::blocks() const { return block_count(bytes); }

const Entry* FileLayout::find(const std::string& name) const {
  auto at = std::lower_bound(entries.begin(), entries.end(), name,
                             [](const Entry& e, const std::string& n) { return e.name < n; });
  return at != entries.end() && at->name == name ? &*at : nullptr;
}

std::vector<std::pair<int64_t, int64_t>> FileLayout::gaps() const {
  std::vector<std::pair<int64_t, int64_t>> data;
  for (const Entry& e : entries)
    if (e.bytes) data.emplace_back(e.offset, e.offset + e.bytes);
  data.emplace_back(tensor_sums, tensor_sums + 8 * int64_t(entries.size()));
  data.emplace_back(block_sums, block_sums + 8 * blocks);
  data.emplace_back(file_sum, file_sum + 8);
  data.emplace_back(index, index + index_bytes);
  std::sort(data.begin(), data.end());
  std::vector<std::pair<int64_t, int64_t>> gaps;
  int64_t end = data_begin;
  for (const auto& [from, to] : data) {
    if (from > end) gaps.emplace_back(end, from);
    end = std::max(end, to);
  }
  if (file_bytes > end) gaps.emplace_back(end, file_bytes);
  return gaps;
}

void number_blocks(FileLayout& layout) {
  std::sort(layout.entries.begin(), layout.entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  layout.blocks = 0;
  for (Entry& e : layout.entries) {
    e.first_block = layout.blocks;
    layout.blocks += e.blocks();
  }
}

FileLayout layout_of(const State& state) {
  FileLayout layout;
  for (const shard::TensorSlice& t : state.tensors) {
    CHECK(t.name.size() > 1 && t.name[0] == '/' && !t.name.starts_with("/checksums/"),
          "bad tensor name '{}'", t.name);
    layout.entries.push_back({.name = t.name,
                              .type = io::h5_type_of(t.type),
                              .shape = t.shape,
                              .bytes = elements(t.shape) * device::size_of(t.type)});
  }
  if (auto deck = state.texts.find("deck"); deck != state.texts.end() && !deck->second.empty())
    layout.entries.push_back({.name = kDeck,
                              .type = io::H5Type::text,
                              .shape = {},
                              .bytes = int64_t(deck->second.size())});
  number_blocks(layout);
  for (size_t i = 1; i < layout.entries.size(); ++i)
    CHECK(layout.entries[i].name != layout.entries[i - 1].name,
          "tensor {} appears twice in the state", layout.entries[i].name);
  return layout;
}

std::string structure_key(const State& state, const FileLayout& layout) {
  std::string key;
  for (const Entry& e : layout.entries)
    key += fmt::format("{} {} {} {}\n", e.name, name_of(e.type), fmt::join(e.shape, "x"), e.bytes);
  for (const auto& [name, value] : state.numbers) key += name + "\n";
  for (const auto& [name, text] : state.texts) key += fmt::format("{} {}\n", name, text.size());
  return key;
}

std::string make_structure(const std::string& name, const State& state, FileLayout& layout) {
  std::lock_guard lock(io::h5_mutex());
  io::H5File file = io::H5File::create(name, {.user_block = kUserBlock,
                                              .alignment = kAlignment,
                                              .aligned_from = kAlignedFrom,
                                              .metadata_block = metadata_room(state, layout)});
  // Attributes come first, before anything else grows the root group's header.
  file.set_attribute("/", "format", int64_t{kFormat});
  file.set_attribute("/", "step", state.step);
  file.set_attribute("/", "write_completed", int64_t{1});
  for (const auto& [attribute, value] : state.numbers) {
    CHECK(!is_reserved(attribute) && !state.texts.contains(attribute),
          "attribute {} exists already", attribute);
    file.set_attribute("/", attribute, value);
  }
  for (const auto& [attribute, text] : state.texts) {
    if (attribute == "deck") continue;
    CHECK(!is_reserved(attribute), "attribute {} is the checkpoint's own", attribute);
    if (text.size() > kLongestText)
      base::fail(base::Exit::config, "{} is too long for a checkpoint: {} bytes", attribute,
                 text.size());
    file.set_attribute("/", attribute, text);
  }
  layout.data_begin = INT64_MAX;
  layout.file_bytes = 0;
  auto placed = [&](int64_t offset, int64_t bytes) {
    if (bytes == 0) return offset;
    CHECK(offset >= kUserBlock, "{}: a dataset has no place in the file", name);
    layout.data_begin = std::min(layout.data_begin, offset);
    layout.file_bytes = std::max(layout.file_bytes, offset + bytes);
    return offset;
  };
  for (Entry& e : layout.entries)
    e.offset = placed(e.type == io::H5Type::text ? file.create_contiguous_text(e.name, e.bytes)
                                                 : file.create_contiguous(e.name, e.type, e.shape),
                      e.bytes);
  CHECK(layout.file_bytes > 0, "a checkpoint without a single tensor");
  int64_t tensors = int64_t(layout.entries.size());
  layout.tensor_sums =
      placed(file.create_contiguous(kTensorSums, io::H5Type::u64, {tensors}), 8 * tensors);
  layout.block_sums = placed(file.create_contiguous(kBlockSums, io::H5Type::u64, {layout.blocks}),
                             8 * layout.blocks);
  layout.file_sum = placed(file.create_contiguous(kFileSum, io::H5Type::u64, {1}), 8);
  layout.index_bytes = int64_t(encode_index(state, layout).size());
  layout.index = placed(file.create_contiguous(kIndex, io::H5Type::u8, {layout.index_bytes}),
                        layout.index_bytes);
  file.set_attribute(
      "/checksums", "how",
      std::string("XXH3-64. blocks: of every 1 MiB of each dataset's bytes, datasets by path. "
                  "tensors: of the block hashes of each. file: of the hashes of all tensors."));
  std::string image = file.close_to_image();
  // HDF5 frees the unused space behind the last dataset on close. Metadata that did not fit
  // elsewhere may be stored there, and belongs to the file.
  layout.file_bytes = std::max(layout.file_bytes, stated_end(image));
  return image;
}

int64_t planned_dataset_bytes(const std::vector<shard::TensorSlice>& tensors) {
  int64_t bytes = 0;
  for (const shard::TensorSlice& t : tensors) bytes += elements(t.shape) * device::size_of(t.type);
  return bytes;
}

int64_t planned_bytes(const State& state) {
  FileLayout layout = layout_of(state);
  make_structure("planned checkpoint", state, layout);
  return layout.file_bytes;
}

int64_t planned_bytes(const std::vector<shard::TensorSlice>& tensors) {
  State state{.step = 1, .tensors = tensors, .numbers = {}, .texts = {}};
  for (int i = 0; i < 8; ++i) state.numbers[fmt::format("number_{}", i)] = i;
  state.texts = {{"name", std::string(32, ' ')},
                 {"version", std::string(160, ' ')},
                 {"deck", std::string(12 << 10, ' ')}};
  return planned_bytes(state);
}

}  // namespace checkpoint
