// SPDX-License-Identifier: Apache-2.0
// Reads single rows of a dataset in any order. A row is everything at one index of the first axis.
// The dataset stays open. Every call holds HDF5's lock, so any thread may read rows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
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
  // True if rows lie in other files, which HDF5 finds by the place of this one or of the process.
  bool elsewhere() const { return elsewhere_; }
  // Throws Failure if rows are not there: missing sources or external files, or data that was never
  // written. HDF5 would give zeros. `count_chunks`: look for single chunks, which takes longer.
  void check_stored(bool count_chunks) const;
  std::string type_text() const;  // "i64 [16]", "text", "lists of bytes"
  bool is_u8() const { return kind_ == Kind::integers && size_ == 1 && !signed_; }
  bool is_u64() const { return kind_ == Kind::integers && size_ == 8 && !signed_; }

  // Reads and converts all elements of a row. T is float, int64_t,
  // uint64_t or uint8_t; HDF5 takes the nearest number for one that T cannot hold.
  template <class T>
  void read(int64_t row, std::span<T> out) const;
  // Reads the texts of a row in order, without the padding of their type. Throws Failure before it
  // allocates if they have more than `most` bytes.
  std::vector<std::string> read_texts(int64_t row, int64_t most) const;
  // Reads the bytes of a row of lists, at most `most` as above. `into` returns the memory for them.
  void read_bytes(int64_t row, int64_t most, const std::function<uint8_t*(size_t)>& into) const;

 private:
  int64_t elements() const;
  Failure too_long(int64_t row, int64_t most) const;
  void select(int64_t row) const;
  void transfer(int64_t row, int64_t memory_type, void* out, int64_t plist) const;

  std::string path_, dataset_;
  int64_t set_ = -1, type_ = -1, space_ = -1;
  Kind kind_ = Kind::other;
  bool signed_ = false, variable_ = false, elsewhere_ = false;
  int64_t size_ = 0, count_ = 0, chunk_bytes_ = 0;
  std::vector<int64_t> shape_;
};

}  // namespace io
