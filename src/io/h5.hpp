// SPDX-License-Identifier: Apache-2.0
// HDF5 files. The library is not thread safe, so these classes hold one lock per process during
// every call. Handles close themselves. Errors are io::Failure with file, object and HDF5's
// message.
//
// Paths are absolute ("/params/encoder/pos_embedding"); "/" is the root group. Numbers in a file
// are little endian.
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

// The lock of all HDF5 calls. Hold it across several calls that must not interleave with another
// thread's.
std::recursive_mutex& h5_mutex();

// The element type of a dataset in the file. bf16 and f16 are stored as unsigned 16-bit integers
// with an attribute "dtype" ("bf16", "f16"), because HDF5 has no such types. half is IEEE binary16
// as a floating-point type of the file, which h5py reads as float16. text is one string of fixed
// length.
enum class H5Type { f32, f64, bf16, f16, half, i32, i64, u8, u64, text, other };
H5Type h5_type_of(device::DType type);
std::optional<device::DType> dtype_of(H5Type type);
const char* name_of(H5Type type);

using H5Attribute = std::variant<int64_t, double, std::string>;

// The layout options of a new file. The defaults suit small serial files.
struct H5Create {
  int64_t user_block = 0;  // bytes in front of the HDF5 data: 0 or a power of two >= 512
  int64_t alignment = 1;   // bytes; for datasets of at least `aligned_from` bytes
  int64_t aligned_from = 1;
  // HDF5 allocates metadata in blocks of this many bytes, to keep it together; 0 = HDF5's choice
  int64_t metadata_block = 0;
};

struct H5Info {
  H5Type type = H5Type::other;
  std::vector<int64_t> shape;  // {} = scalar
  int64_t text_bytes = 0;      // length of the string, for type text
  // offset of the data from the start of the file; -1 if the data is not one allocated piece
  int64_t offset = -1;
  int64_t bytes = 0;  // of all elements in the file
};

class H5File {
 public:
  // A new file is built in memory and written by close(), not by HDF5. HDF5 1.10 crashes at process
  // exit if one of its writes failed, for example on a full disk.
  static H5File create(const std::string& path, const H5Create& how = {});
  static H5File open(const std::string& path);  // opens for reading
  H5File(H5File&& other) noexcept;
  H5File& operator=(H5File&& other) noexcept;
  ~H5File();  // discards a new file that was not closed
  // Writes a new file with io::write_file_atomically without syncs, which replaces an existing
  // file.
  void close();
  // Closes a new file without writing it, and returns its bytes up to the last one that is not
  // zero. The rest of the file, up to its length, is zeros.
  std::string close_to_image();
  const std::string& path() const { return path_; }

  // ---- structure

  // Creates a group and its parents, if they do not exist.
  void make_group(const std::string& group) { group_id(group); }
  bool exists(const std::string& object) const;
  // Returns the paths of all datasets below `group`, in bytewise order.
  std::vector<std::string> datasets(const std::string& group = "/") const;
  H5Info info(const std::string& dataset) const;

  // ---- new datasets; parent groups are created

  // Allocates the space of a contiguous dataset at once, unfilled. Returns the offset of the data
  // in the file, -1 for an empty dataset.
  int64_t create_contiguous(const std::string& dataset, H5Type type,
                            const std::vector<int64_t>& shape);
  int64_t create_contiguous_text(const std::string& dataset, int64_t bytes);
  // An array of `count` strings of `bytes` each, in UTF-8, padded with zeros.
  int64_t create_contiguous_texts(const std::string& dataset, int64_t count, int64_t bytes);
  // Creates a chunked dataset with one axis.
  void create_extendible(const std::string& dataset, H5Type type, int64_t length, int64_t chunk);
  // Creates a contiguous dataset and writes `values`.
  template <class T>
  void create(const std::string& dataset, std::span<const T> values,
              const std::vector<int64_t>& shape);

  // ---- whole datasets; T is float, double, int32_t, int64_t, uint8_t, uint16_t, uint64_t; HDF5
  // converts
  template <class T>
  std::vector<T> read(const std::string& dataset) const;
  template <class T>
  void write(const std::string& dataset, std::span<const T> values);
  // Reads a scalar string of fixed or variable length.
  std::string read_text(const std::string& dataset) const;
  // Reads an array of strings.
  std::vector<std::string> read_texts(const std::string& dataset) const;

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
  // Opens or creates a group and its parents; the group stays open.
  int64_t group_id(const std::string& group);
  void close_handles();
  int64_t id_ = -1;
  std::string path_;
  std::unique_ptr<Image> image_;  // memory of a new file
  int64_t contiguous_creation();
  // creation list of contiguous datasets, kept because the library is slow to make one
  int64_t contiguous_ = -1;
  // open groups; resolving a long path for each of a thousand datasets is slow
  std::map<std::string, int64_t> groups_;
};

}  // namespace io
