// SPDX-License-Identifier: Apache-2.0
// Single rows of a dataset, read at random: what a data set of samples needs. A row is everything
// at one index of the first axis. The dataset stays open; every call takes HDF5's lock, so rows may
// be read by any thread.
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
    integers,  // of 1 to 8 bytes
    floats,    // of 2 to 8 bytes
    text,      // of fixed or variable length
    bytes,     // lists of bytes of any length, such as whole image files
    other,
  };

  // Failure if there is none or it has no axis
  H5Rows(const H5File& file, const std::string& dataset);
  H5Rows(H5Rows&& other) noexcept;
  H5Rows& operator=(H5Rows&&) = delete;
  ~H5Rows();

  Kind kind() const { return kind_; }
  int64_t count() const { return count_; }
  const std::vector<int64_t>& shape() const { return shape_; }  // of a row; {} = one element
  int64_t row_bytes() const;  // of a row, each element of variable length counted as a pointer
  // what HDF5 may have to hold to read one row
  int64_t chunk_bytes() const { return chunk_bytes_; }
  std::string type_text() const;  // "i64 [16]", "text", "lists of bytes"
  bool is_u8() const { return kind_ == Kind::integers && size_ == 1 && !signed_; }

  // All elements of a row, converted. T is float, int64_t or uint8_t.
  template <class T>
  void read(int64_t row, std::span<T> out) const;
  // The texts of a row in order. Failure if they have more than `most` bytes, before memory is
  // taken.
  std::vector<std::string> read_texts(int64_t row, int64_t most) const;
  // The bytes of a row of lists, at most `most` likewise; `into` is asked for the memory that takes
  // them.
  void read_bytes(int64_t row, int64_t most, const std::function<uint8_t*(size_t)>& into) const;

 private:
  int64_t elements() const;
  Failure too_long(int64_t row, int64_t most) const;
  void select(int64_t row) const;
  void transfer(int64_t row, int64_t memory_type, void* out, int64_t plist) const;

  std::string path_, dataset_;
  int64_t set_ = -1, type_ = -1, space_ = -1;
  Kind kind_ = Kind::other;
  bool signed_ = false, variable_ = false;
  int64_t size_ = 0, count_ = 0, chunk_bytes_ = 0;
  std::vector<int64_t> shape_;
};

}  // namespace io
