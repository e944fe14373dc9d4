// SPDX-License-Identifier: Apache-2.0
// A file whose datasets the ranks of a communicator fill or read together, by HDF5's MPI-IO driver.
// Its structure exists already. HDF5 calls MPI here, so only main threads use these classes. A
// build with a serial HDF5 refuses them (version.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "comm/comm.hpp"

namespace io {

// How ranks use a file together.
struct H5Sharing {
  // All ranks take part in each transfer, so that MPI-IO may collect bytes of several ranks. With
  // false each rank makes its own transfers.
  bool collective = true;
  std::map<std::string, std::string> hints;  // for MPI-IO, which ignores those it does not know
};

class H5SharedFile {
 public:
  // Makes a file without content, or empties it. One rank calls. Some hints, such as stripes, count
  // at this moment only.
  static void create(const std::string& path, const H5Sharing& sharing);

  enum class Mode { read, write };
  // All ranks of `comm` call this and close().
  H5SharedFile(comm::Comm& comm, const std::string& path, Mode mode, const H5Sharing& sharing);
  H5SharedFile(const H5SharedFile&) = delete;
  ~H5SharedFile();
  void close();

  // Chooses a contiguous dataset for the next transfers. All ranks call if they share collectively.
  void open(const std::string& dataset);
  // Moves the bytes [begin, end) of the dataset, whole elements, without conversion. All ranks make
  // equally many transfers if they share collectively; an empty one takes part and moves nothing.
  void write(int64_t begin, int64_t end, const void* data);
  void read(int64_t begin, int64_t end, void* data);

 private:
  void close_dataset();
  std::string path_, dataset_;
  // HDF5's identifiers; -1: none, as in a build with a serial HDF5
  [[maybe_unused]] int64_t file_ = -1, transfer_ = -1, set_ = -1;
};

}  // namespace io
