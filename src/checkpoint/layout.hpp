// SPDX-License-Identifier: Apache-2.0
// What lies where in a checkpoint file:
//
//   0 .. 4096       text (header.hpp): HDF5's user block
//   4096 .. H       everything that makes it an HDF5 file: groups, dataset headers, attributes; one
//   piece H ..            the datasets, contiguous, each at an offset all ranks know:
//                   /params/..., /optimizer/..., ...    logical tensors
//                   /deck                               resolved deck, one string
//                   /checksums/tensors, /checksums/blocks, /checksums/file   see checksum.hpp
//                   /checksums/index    CBOR: what the structure says, for a reader that has no
//                   second to spare
//                                       (HDF5 takes 70 us to find and open each of a thousand
//                                       datasets)
//
// Root attributes: format, step, write_completed (1) and the caller's numbers and texts. The
// structure depends on no data, so it is made beside their writing, and becomes part of the file
// when all else is there and proved.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/state.hpp"
#include "io/h5.hpp"

namespace checkpoint {

constexpr int64_t kUserBlock = 4096;
// of datasets of at least kAlignedFrom bytes: whole pages for the writers
constexpr int64_t kAlignment = 4096;
constexpr int64_t kAlignedFrom = 1 << 18;  // padding below 1 % of such a dataset on average
inline const char* const kDeck = "/deck";
inline const char* const kTensorSums = "/checksums/tensors";
inline const char* const kBlockSums = "/checksums/blocks";
inline const char* const kFileSum = "/checksums/file";
inline const char* const kIndex = "/checksums/index";

// One dataset whose bytes are checked: a logical tensor, or the deck.
struct Entry {
  std::string name;
  io::H5Type type = io::H5Type::f32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  int64_t offset = -1;      // from the start of the file
  int64_t first_block = 0;  // of this entry, counted over all entries
  int64_t blocks() const;
};

struct FileLayout {
  std::vector<Entry> entries;                                // ordered by name
  int64_t tensor_sums = -1, block_sums = -1, file_sum = -1;  // offsets of the checksum datasets
  int64_t index = -1, index_bytes = 0;
  int64_t blocks = 0;  // of all entries
  int64_t file_bytes = 0;
  int64_t data_begin = 0;  // H above

  const Entry* find(const std::string& name) const;
  // Ranges of the file, in order, that no dataset covers from data_begin on: padding.
  std::vector<std::pair<int64_t, int64_t>> gaps() const;
};

// The entries of a state, without offsets. Error(Exit::internal) if two tensors have the same name.
FileLayout layout_of(const State& state);
// Completes entries that have type, shape and bytes: order and block numbers.
void number_blocks(FileLayout& layout);

// The bytes of the file as far as HDF5 writes them: all datasets (without their data, so with holes
// of zeros) and attributes. Fills in the layout's offsets.
std::string make_structure(const std::string& name, const State& state, FileLayout& layout);
// All that the offsets follow from, as one text: those of two states with the same one are the
// same.
std::string structure_key(const State& state, const FileLayout& layout);
// The bytes of kIndex, whose number does not depend on the offsets.
std::string encode_index(const State& state, const FileLayout& layout);

// Bytes of all tensors in the file: exact. For `--mode plan`.
int64_t planned_dataset_bytes(const std::vector<shard::TensorSlice>& tensors);
// Bytes of the whole file: found by creating it in memory without its data, so by the code that
// will write it. Exact for the numbers and texts in `state`; the second form assumes some.
int64_t planned_bytes(const State& state);
int64_t planned_bytes(const std::vector<shard::TensorSlice>& tensors);

}  // namespace checkpoint
