// SPDX-License-Identifier: Apache-2.0
// The layout of a checkpoint file:
//
//   0 .. 4096       text (header.hpp): HDF5's user block
//   4096 .. H       what makes it an HDF5 file: groups, dataset headers, attributes; one piece
//   H ..            the datasets, contiguous, each at an offset that all ranks know:
//                   /params/..., /optimizer/..., ...    logical tensors
//                   /deck                               resolved deck, one string
//                   /checksums/tensors, /checksums/blocks, /checksums/file   see checksum.hpp
//                   /checksums/index    CBOR copy of the structure, for fast readers:
//                                       HDF5 needs 70 us to find and open a dataset
//
// Root attributes: format, step, write_completed (1) and the caller's numbers and texts. The
// structure depends on no tensor data, so a thread builds it while the data is written. The
// structure is added to the file last, after all data is written and verified.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/state.hpp"
#include "io/h5.hpp"

namespace checkpoint {

constexpr int64_t kUserBlock = 4096;
// bytes; aligns datasets of at least kAlignedFrom bytes, so that writers write whole pages
constexpr int64_t kAlignment = 4096;
constexpr int64_t kAlignedFrom = 1 << 18;  // padding below 1 % of such a dataset on average
inline const char* const kDeck = "/deck";
inline const char* const kTensorSums = "/checksums/tensors";
inline const char* const kBlockSums = "/checksums/blocks";
inline const char* const kFileSum = "/checksums/file";
inline const char* const kIndex = "/checksums/index";

// One dataset with checksums: a logical tensor or the deck.
struct Entry {
  std::string name;
  io::H5Type type = io::H5Type::f32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  int64_t offset = -1;      // from the start of the file
  int64_t first_block = 0;  // index of the entry's first block among the blocks of all entries
  int64_t blocks() const;
};

struct FileLayout {
  std::vector<Entry> entries;                                // ordered by name
  int64_t tensor_sums = -1, block_sums = -1, file_sum = -1;  // offsets of the checksum datasets
  int64_t index = -1, index_bytes = 0;
  int64_t blocks = 0;  // in all entries together
  int64_t file_bytes = 0;
  int64_t data_begin = 0;  // H above

  const Entry* find(const std::string& name) const;
  // Returns the ranges from data_begin on that no dataset covers (padding), in order.
  std::vector<std::pair<int64_t, int64_t>> gaps() const;
};

// Returns the entries of a state, without offsets. Throws Error(Exit::internal) if two tensors have
// the same name.
FileLayout layout_of(const State& state);
// Sorts the entries by name and numbers their blocks. Type, shape and bytes must be set.
void number_blocks(FileLayout& layout);

// Returns the file as HDF5 creates it: all attributes and datasets, with zeros for the data. Fills
// in the layout's offsets.
std::string make_structure(const std::string& name, const State& state, FileLayout& layout);
// Returns a text of everything that determines the offsets. Two states with equal texts have equal
// offsets.
std::string structure_key(const State& state, const FileLayout& layout);
// Returns the contents of kIndex. Their size does not depend on the offsets.
std::string encode_index(const State& state, const FileLayout& layout);

// Returns the exact bytes of all tensors in the file. For `--mode plan`.
int64_t planned_dataset_bytes(const std::vector<shard::TensorSlice>& tensors);
// Returns the bytes of the whole file. Builds the structure in memory with the code that later
// writes it. The first form is exact for the numbers and texts in `state`; the second form assumes
// typical ones.
int64_t planned_bytes(const State& state);
int64_t planned_bytes(const std::vector<shard::TensorSlice>& tensors);

}  // namespace checkpoint
