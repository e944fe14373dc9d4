// SPDX-License-Identifier: Apache-2.0
// Files of the classes of consecutive samples (classes.hpp). A file has a line that names the
// format, the state of the source, first and last sample, names and sizes of the classes, zeros up
// to a multiple of 8 bytes, the numbers of the samples, and a checksum of all.
#pragma once

#include <memory>
#include <string>

#include "data/sources/classes.hpp"
#include "data/sources/index_file.hpp"

namespace data {

// The samples of a file, and the state of their source.
struct ClassRange {
  uint64_t state = 0;
  int64_t begin = 0, end = 0;
};

std::string encode_class_piece(const ClassPiece& piece, const ClassRange& range);
// Returns false if the bytes are damaged, or if they are of another range or state.
bool decode_class_piece(const std::shared_ptr<const IndexBytes>& bytes, const ClassRange& range,
                        ClassPiece& out);

}  // namespace data
