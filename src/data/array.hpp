// SPDX-License-Identifier: Apache-2.0
// The data that flows from a source to the model: the named values of one sample, and their specs,
// which are known before any sample is read.
//
// The folder data holds everything between files and batches: sources, sample order, preprocessing
// ops, tokenizers, loader. It may use base, device (element types only), io and config. To add a
// source, an op or a tokenizer, write one file that ends in a row function and list that function
// in registry.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "device/types.hpp"

namespace data {

// Memory, 64-byte aligned, not cleared. Released blocks wait in a small pool of their thread:
// decoding thousands of images per second then needs no fresh pages from the system. At least 16
// bytes after the end may be read (but not used), which lets loops load whole vectors.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(size_t size) { reset(size); }
  // Returns a view of memory that another object owns and that must outlive the view. A copy of the
  // view owns its memory.
  static Bytes borrowed(uint8_t* data, size_t size);
  Bytes(const Bytes& other);
  Bytes(Bytes&& other) noexcept { swap(other); }
  Bytes& operator=(Bytes other) noexcept {
    swap(other);
    return *this;
  }
  ~Bytes();

  void reset(size_t size);  // the content is lost; a block that is large enough is kept
  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void swap(Bytes& other) noexcept;
  uint8_t* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;  // no capacity: empty or borrowed
};

int64_t blocks_from_system();  // number of blocks that this process has allocated; for tests

int64_t count_of(const std::vector<int64_t>& shape);     // product
std::string text_of(const std::vector<int64_t>& shape);  // "[224,224,3]", "?" for an unknown size

// A dense array in row-major order.
struct Array {
  device::DType type = device::DType::u8;
  std::vector<int64_t> shape;
  Bytes bytes;

  Array() = default;
  Array(device::DType element, std::vector<int64_t> dims) { reset(element, std::move(dims)); }
  void reset(device::DType element, std::vector<int64_t> dims);  // the content is lost
  int64_t count() const { return count_of(shape); }
  device::View view() const { return {const_cast<uint8_t*>(bytes.data()), type, count()}; }
  uint8_t* u8() { return view().u8(); }
  float* f32() { return view().f32(); }
  int32_t* i32() { return view().i32(); }
  const uint8_t* u8() const { return view().u8(); }
  const float* f32() const { return view().f32(); }
  const int32_t* i32() const { return view().i32(); }
};

// Several texts that belong to one sample, such as all descriptions of an image.
using Texts = std::vector<std::string>;

// Undecoded file content | text | numbers | texts.
using Value = std::variant<Bytes, std::string, Array, Texts>;
using Sample = std::map<std::string, Value>;

// The final places of fields, such as rows of a batch. An op may write its result there, which
// saves a copy. The caller checks whether a place was used.
using Places = std::map<std::string, std::span<uint8_t>>;

// The description of a field, known without reading any sample.
struct FieldSpec {
  enum class Kind { bytes, text, array, texts };
  Kind kind = Kind::bytes;
  device::DType type = device::DType::u8;  // arrays
  std::vector<int64_t> shape;              // arrays; -1 = differs from sample to sample
  // arrays of i32: all values are in [0, limit); 0 = not known
  int64_t limit = 0;

  static FieldSpec encoded() { return {}; }
  static FieldSpec characters() { return {Kind::text, {}, {}, 0}; }
  static FieldSpec list_of_texts() { return {Kind::texts, {}, {}, 0}; }
  static FieldSpec array(device::DType type, std::vector<int64_t> shape, int64_t limit = 0) {
    return {Kind::array, type, std::move(shape), limit};
  }
  bool fixed() const;  // true for an array whose sizes are all known
  bool operator==(const FieldSpec&) const = default;
};
using Spec = std::map<std::string, FieldSpec>;

// How value_range and normalize map bytes to floats: v = to_low + (byte - low) / width * to_width,
// then (v - mean) / deviation of the channel. Each operation is rounded.
struct ByteScale {
  float low = 0, width = 255, to_low = 0, to_width = 1;
  std::array<float, 3> mean{0, 0, 0}, deviation{1, 1, 1};
  bool operator==(const ByteScale&) const = default;
};

std::string text_of(const FieldSpec& field);  // "f32 [224,224,3]", "encoded bytes", "text", "texts"
std::string text_of(const Spec& spec);        // "image u8 [?,?,3], text text"
// Returns how the value differs from the field's spec, or "".
std::string mismatch(const FieldSpec& field, const Value& value);

}  // namespace data
