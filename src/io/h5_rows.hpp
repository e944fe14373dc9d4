// SPDX-License-Identifier: Apache-2.0
// Reads single rows of a dataset in any order. A row is everything at one index of the first axis.
// The dataset stays open, and any thread may read rows. Threads read at the same time if a row is
// one piece of the file and stored as T is in memory. Every other call holds HDF5's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/h5.hpp"

namespace io {

class H5Rows {
 public:
  enum class Kind {
    integers,  // 1 to 8 bytes each; enumerations too
    floats,    // 2 to 8 bytes each
    text,      // fixed or variable length
    bytes,     // lists of bytes of any length, for example whole image files
    other,
  };

  // Throws Failure if the dataset does not exist, has no axis, or is compressed by a filter that
  // the library lacks.
  H5Rows(const H5File& file, const std::string& dataset);
  H5Rows(H5Rows&& other) noexcept;
  H5Rows& operator=(H5Rows&&) = delete;
  ~H5Rows();

  Kind kind() const { return kind_; }
  int64_t count() const { return count_; }
  const std::vector<int64_t>& shape() const { return shape_; }  // shape of a row; {} = one element
  int64_t row_bytes() const;  // per row; an element of variable length counts as a pointer
  // Returns the bytes that HDF5 may need to hold to read one row; 0 if the dataset is not chunked.
  int64_t chunk_bytes() const { return chunk_bytes_; }
  // True if rows are stored in other files. HDF5 finds these relative to this file or to the
  // working directory.
  bool elsewhere() const;
  // Throws Failure if rows are missing: absent sources or external files, or data that was never
  // written. HDF5 would return zeros. `count_chunks`: look for single chunks, which takes longer.
  void check_stored(bool count_chunks) const;
  std::string type_text() const;  // "i64 [16]", "text", "lists of bytes", "a compound type"
  // Returns how to write values of a type that has no Kind, for messages.
  std::string_view way_out() const {
    return other_.substr(std::min(other_.find(';'), other_.size()));
  }
  bool is_u8() const { return kind_ == Kind::integers && size_ == 1 && !signed_; }
  bool is_u64() const { return kind_ == Kind::integers && size_ == 8 && !signed_; }

  // Reads and converts all elements of a row. T is float, int64_t, uint64_t or uint8_t. A number
  // that T cannot hold becomes the nearest one that T can hold.
  template <class T>
  void read(int64_t row, std::span<T> out) const;
  // Reads the texts of a row in order, without the padding of their type. Throws Failure before it
  // allocates if they have more than `most` bytes.
  std::vector<std::string> read_texts(int64_t row, int64_t most) const;
  // Reads the bytes of a row of lists. Throws Failure before it allocates if they are more than
  // `most`. `into` returns the memory for them.
  void read_bytes(int64_t row, int64_t most, const std::function<uint8_t*(size_t)>& into) const;

 private:
  // The place of rows that are read without HDF5: adjacent in the file, as numbers of one type:
  // float 'f', int64_t 'i', uint64_t 'u' or uint8_t 'b'. 0: the rows need HDF5.
  struct Place {
    int descriptor = -1;  // HDF5's, which is open as long as the dataset is
    int64_t offset = 0;
    char number = 0;
  };
  Place place_of(int64_t set, int64_t type) const;
  int64_t elements() const;
  Failure too_long(int64_t row, int64_t most) const;
  void select(int64_t row) const;
  void transfer(int64_t row, int64_t memory_type, void* out, int64_t plist) const;

  std::string path_, dataset_;
  int64_t set_ = -1, type_ = -1, space_ = -1;
  Kind kind_ = Kind::other;
  bool signed_ = false, variable_ = false;
  std::string_view other_;  // description of a type that cannot be read, with the way out
  int64_t size_ = 0, count_ = 0, chunk_bytes_ = 0;
  std::vector<int64_t> shape_;
  Place place_;
};

}  // namespace io
