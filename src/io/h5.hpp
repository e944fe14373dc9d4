// SPDX-License-Identifier: Apache-2.0
// HDF5 files. The library is not thread safe: every call of a process takes one lock, which these
// classes do themselves. Handles close themselves; errors are io::Failure with file, object and
// HDF5's own words.
//
// Paths are absolute ("/params/encoder/pos_embedding"); "/" is the root group. Numbers lie little
// endian in the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "device/types.hpp"
#include "io/files.hpp"

namespace io {

// Hold it across several calls that must not be interleaved with another thread's.
std::recursive_mutex& h5_mutex();

// How the elements of a dataset lie in the file. bf16 and f16 are unsigned 16-bit integers with an
// attribute "dtype"
// ("bf16", "f16"), because HDF5 has no such types; text is one string of fixed length.
enum class H5Type { f32, f64, bf16, f16, i32, i64, u8, u64, text, other };
H5Type h5_type_of(device::DType type);
std::optional<device::DType> dtype_of(H5Type type);
const char* name_of(H5Type type);

using H5Attribute = std::variant<int64_t, double, std::string>;

// How a new file is laid out; the defaults suit small serial files.
struct H5Create {
  int64_t user_block = 0;  // bytes before HDF5's own: 0 or a power of two >= 512
  int64_t alignment = 1;   // of datasets of at least `aligned_from` bytes
  int64_t aligned_from = 1;
  int64_t metadata_block =
      // metadata are taken from blocks of this size, so that they lie together; 0 = HDF5's choice
      0;
};

struct H5Info {
  H5Type type = H5Type::other;
  std::vector<int64_t> shape;  // {} = scalar
  int64_t text_bytes = 0;      // type text: length of the string
  // of the data from the start of the file; -1 if not one contiguous allocated piece
  int64_t offset = -1;
  int64_t bytes = 0;  // of all elements as they lie in the file
};

class H5File {
 public:
  // New files are built in memory and written by us when they are finished: HDF5 1.10 does not
  // survive a disk that is full or fails while it writes (it crashes when the process ends).
  static H5File create(const std::string& path, const H5Create& how = {});
  static H5File open(const std::string& path);  // for reading
  H5File(H5File&& other) noexcept;
  H5File& operator=(H5File&& other) noexcept;
  ~H5File();  // a new file that was not closed is never written
  // A new file appears under its path, replacing what was there, as io::write_file_atomically does
  // it without syncs.
  void close();
  // Closes a new file without writing it, and returns its bytes: up to the last one that HDF5
  // wrote. What lies behind (space of datasets that were not written) is zeros up to the file's
  // length.
  std::string close_to_image();
  const std::string& path() const { return path_; }

  // ---- structure
  // parents too; an existing one is fine
  void make_group(const std::string& group) { group_id(group); }
  bool exists(const std::string& object) const;
  // paths of all below it, bytewise order
  std::vector<std::string> datasets(const std::string& group = "/") const;
  H5Info info(const std::string& dataset) const;

  // ---- new datasets; parent groups are made. Contiguous: space is allocated at once and not
  // filled. Returns the offset of the data in the file, -1 for an empty dataset.
  int64_t create_contiguous(const std::string& dataset, H5Type type,
                            const std::vector<int64_t>& shape);
  int64_t create_contiguous_text(const std::string& dataset, int64_t bytes);
  // 1-D, chunked
  void create_extendible(const std::string& dataset, H5Type type, int64_t length, int64_t chunk);
  template <class T>
  // contiguous
  void create(const std::string& dataset, std::span<const T> values,
              const std::vector<int64_t>& shape);

  // ---- whole datasets; T is float, double, int32_t, int64_t, uint8_t, uint16_t, uint64_t; HDF5
  // converts
  template <class T>
  std::vector<T> read(const std::string& dataset) const;
  template <class T>
  void write(const std::string& dataset, std::span<const T> values);
  // scalar string, of fixed or variable length
  std::string read_text(const std::string& dataset) const;
  std::vector<std::string> read_texts(const std::string& dataset) const;  // array of strings

  // ---- attributes of a group or dataset. Setting an existing one of the same type and size writes
  // in place.
  void set_attribute(const std::string& object, const std::string& name, const H5Attribute& value);
  std::optional<H5Attribute> attribute(const std::string& object, const std::string& name) const;
  std::vector<std::string> attributes(const std::string& object) const;

 private:
  friend class H5Rows;
  struct Image;
  H5File(int64_t id, std::string path, std::unique_ptr<Image> image);
  template <class T>
  void transfer(const std::string& dataset, T* data, size_t count, bool write) const;
  int64_t group_id(const std::string& group);  // opened or made, parents too; stays open
  void close_handles();
  int64_t id_ = -1;
  std::string path_;
  std::unique_ptr<Image> image_;  // of a new file
  int64_t contiguous_creation();
  // how such datasets are created: the library takes long to make such a list
  int64_t contiguous_ = -1;
  // open ones: walking down long paths for each of a thousand datasets is slow
  std::map<std::string, int64_t> groups_;
};

}  // namespace io
