// SPDX-License-Identifier: Apache-2.0
// The first 4096 bytes of a checkpoint file are a text that identifies the file. With it a reader
// verifies the file's structure before HDF5 parses a byte, because damaged metadata can crash the
// library. The text is written last, so a file without it was never finished.
//
//   trainer checkpoint: an HDF5 file behind 4096 bytes of text
//   format=2
//   step=1000
//   file_bytes=1155432448
//   structure=4096+450560     all but tensor data, checksums and padding: offset+length, ...
//   structure_xxh3=0123456789abcdef
//   index=1155400000+98765    layout.hpp
//   index_xxh3=...
//   header_xxh3=...           hash of the text above
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/layout.hpp"
#include "io/files.hpp"

namespace checkpoint {

struct Header {
  int format = kFormat;
  int64_t step = 0;
  int64_t file_bytes = 0;
  std::vector<std::pair<int64_t, int64_t>> structure;  // begin, end
  uint64_t structure_hash = 0;
  std::pair<int64_t, int64_t> index;  // begin, end
  uint64_t index_hash = 0;
};

std::string encode(const Header& header);     // returns kUserBlock bytes
Header decode_header(std::string_view text);  // throws Error(Exit::checkpoint)

// Returns the byte ranges of the structure in a finished file: [kUserBlock, data_begin) and each
// gap between datasets that is not all zeros.
std::vector<std::pair<int64_t, int64_t>> find_structure(const io::File& file,
                                                        const FileLayout& layout);
uint64_t hash_structure(const io::File& file,
                        const std::vector<std::pair<int64_t, int64_t>>& structure);

// Reads and verifies header, length and structure, but no tensor data, so a call is cheap. Throws
// Error(Exit::checkpoint), which names the defect.
Header check_header(const std::string& path);

}  // namespace checkpoint
