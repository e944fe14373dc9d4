// SPDX-License-Identifier: Apache-2.0
// Owning handles and error texts for h5*.cpp. Only io includes this header.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

#include "io/h5.hpp"

namespace io {

// Adds filters that HDF5 itself lacks: lzf, if the build found its library.
void add_filters();

// Holds the lock of all HDF5 calls. The first H5Lock turns off the library's error output and adds
// the filters.
class H5Lock {
 public:
  H5Lock();

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

// Keeps the reason why a filter fails, for the fail_h5 that follows: HDF5 1.14 drops what filters
// put on its stack of errors. Call it under the lock, as HDF5 calls filters.
void note_filter_problem(const char* why);
[[noreturn]] void fail_h5(const std::string& what, const std::string& path);

// An HDF5 identifier with the function that closes it. Create and destroy it under the lock.
class H5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  // `what` names the action ("open dataset /x"), `path` the file.
  H5Handle(hid_t id, Close close, const std::string& what, const std::string& path)
      : id_(id), close_(close) {
    if (id < 0) fail_h5(what, path);
  }
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  H5Handle& operator=(H5Handle&&) = delete;
  ~H5Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }
  hid_t release() { return std::exchange(id_, -1); }

 private:
  hid_t id_;
  Close close_;
};

inline void check_h5(herr_t result, const std::string& what, const std::string& path) {
  if (result < 0) fail_h5(what, path);
}

// Returns a list of file access: files of the format of HDF5 1.8 up to `newest`, without locks.
H5Handle file_access(const std::string& path, H5F_libver_t newest);
int64_t offset_of(hid_t dataset);  // -1 if the data is not one allocated piece
// Writes an attribute of an open object.
void write_attribute(hid_t owner, const std::string& object, const std::string& name,
                     const H5Attribute& value, const std::string& path);
// Returns the memory type for texts of a file. With it HDF5 replaces the file's padding of texts,
// such as spaces, by zeros. Types other than text are copied.
H5Handle memory_text_type(hid_t type, const std::string& dataset, const std::string& path);
hid_t file_type(H5Type type);  // returns a predefined type; not for text
template <class T>
hid_t memory_type();

}  // namespace io
