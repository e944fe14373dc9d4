// SPDX-License-Identifier: Apache-2.0
#include "io/h5_shared.hpp"

#include <algorithm>
#include <utility>

#include "io/h5_boxes.hpp"
#include "io/h5_handle.hpp"
#ifdef TRAINER_HDF5_MPIO
#include "comm/mpi_handle.hpp"
#endif

namespace io {
#ifdef TRAINER_HDF5_MPIO
namespace {

void check_mpi(int code, const char* what, const std::string& path) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Failure(fmt::format("{}: MPI-IO cannot {}: {}", path, what, text), 0);
}

// Hints in MPI's own form, which HDF5 copies. HDF5's header declares MPI's functions.
class Hints {
 public:
  Hints(const std::map<std::string, std::string>& hints, const std::string& path) {
    check_mpi(MPI_Info_create(&info_), "take hints", path);
    for (const auto& [name, value] : hints)
      check_mpi(MPI_Info_set(info_, name.c_str(), value.c_str()), "take hints", path);
  }
  Hints(const Hints&) = delete;
  ~Hints() {
    if (info_ != MPI_INFO_NULL) MPI_Info_free(&info_);
  }
  operator MPI_Info() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

H5Handle shared_access(MPI_Comm comm, const std::string& path, const H5Sharing& sharing) {
  H5Handle access = file_access(path, H5F_LIBVER_V18);
  const Hints hints(sharing.hints, path);
  check_h5(H5Pset_fapl_mpio(access, comm, hints), "use the MPI-IO driver", path);
  // One rank reads where the datasets are, and tells the others.
  check_h5(H5Pset_all_coll_metadata_ops(access, sharing.collective), "share the structure", path);
  return access;
}

// Selects bytes [begin, end) of a dataset, or nothing.
H5Handle selection(hid_t set, int64_t begin, int64_t end, const std::string& path) {
  const char* what = "select elements";
  H5Handle space(H5Dget_space(set), H5Sclose, what, path);
  const H5Handle type(H5Dget_type(set), H5Tclose, what, path);
  if (begin == end) {
    check_h5(H5Sselect_none(space), what, path);
    return space;
  }
  const auto size = int64_t(H5Tget_size(type));
  const int axes = H5Sget_simple_extent_ndims(space);
  check_h5(axes, what, path);
  CHECK(begin % size == 0 && end % size == 0, "{}: bytes [{}, {}) of elements of {}", path, begin,
        end, size);
  if (axes == 0) return space;  // one element, which is selected already
  std::vector<hsize_t> dims(size_t(axes), 0);
  check_h5(H5Sget_simple_extent_dims(space, dims.data(), nullptr), what, path);
  H5S_seloper_t how = H5S_SELECT_SET;
  for (const H5Box& box :
       boxes_of({dims.begin(), dims.end()}, uint64_t(begin / size), uint64_t(end / size))) {
    const std::vector<hsize_t> start(box.start.begin(), box.start.end()),
        count(box.count.begin(), box.count.end());
    check_h5(H5Sselect_hyperslab(space, how, start.data(), nullptr, count.data(), nullptr), what,
             path);
    how = H5S_SELECT_OR;
  }
  return space;
}

// The elements in memory, one after the other.
H5Handle memory_of(hid_t selected, const std::string& path) {
  const hssize_t chosen = H5Sget_select_npoints(selected);
  check_h5(chosen < 0 ? -1 : 0, "count elements", path);
  const hsize_t count = hsize_t(std::max<hssize_t>(chosen, 1));
  H5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose, "describe memory", path);
  if (chosen == 0) check_h5(H5Sselect_none(memory), "describe memory", path);
  return memory;
}

}  // namespace

// Does not use HDF5, because 1.10 crashes at the end of a process if one of its writes failed.
void H5SharedFile::create(const std::string& path, const H5Sharing& sharing) {
  note_call("create by MPI-IO", path);
  const Hints hints(sharing.hints, path);
  MPI_File file = MPI_FILE_NULL;
  check_mpi(
      MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_CREATE | MPI_MODE_WRONLY, hints, &file),
      "create the file", path);
  check_mpi(MPI_File_close(&file), "close the new file", path);
}

H5SharedFile::H5SharedFile(comm::Comm& comm, const std::string& path, Mode mode,
                           const H5Sharing& sharing)
    : path_(path) {
  H5Lock lock;
  const auto* handle = static_cast<const MPI_Comm*>(comm::mpi_handle(comm));
  CHECK(handle, "{}: MPI-IO needs ranks of MPI", path);
  const H5Handle access = shared_access(*handle, path, sharing);
  H5Handle transfer(H5Pcreate(H5P_DATASET_XFER), H5Pclose, "make a property list", path);
  check_h5(
      H5Pset_dxpl_mpio(transfer, sharing.collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT),
      "choose the kind of transfers", path);
  const unsigned flags = mode == Mode::write ? H5F_ACC_RDWR : H5F_ACC_RDONLY;
  H5Handle file(H5Fopen(path.c_str(), flags, access), H5Fclose, "open the file by MPI-IO", path);
  file_ = file.release();
  transfer_ = transfer.release();
}

H5SharedFile::~H5SharedFile() {
  if (file_ < 0) return;
  H5Lock lock;
  close_dataset();
  H5Pclose(transfer_);
  H5Fclose(file_);
  H5Eclear2(H5E_DEFAULT);
}

void H5SharedFile::close_dataset() {
  if (set_ >= 0) H5Dclose(std::exchange(set_, -1));
}

void H5SharedFile::close() {
  H5Lock lock;
  close_dataset();
  H5Pclose(std::exchange(transfer_, -1));
  check_h5(H5Fclose(std::exchange(file_, -1)), "close the file by MPI-IO", path_);
}

void H5SharedFile::open(const std::string& dataset) {
  H5Lock lock;
  close_dataset();
  dataset_ = dataset;
  H5Handle set(H5Dopen2(hid_t(file_), dataset.c_str(), H5P_DEFAULT), H5Dclose,
               "open dataset " + dataset, path_);
  set_ = set.release();
}

void H5SharedFile::write(int64_t begin, int64_t end, const void* data) {
  H5Lock lock;
  const H5Handle chosen = selection(hid_t(set_), begin, end, path_),
                 memory = memory_of(chosen, path_),
                 type(H5Dget_type(hid_t(set_)), H5Tclose, "read a type", path_);
  check_h5(H5Dwrite(hid_t(set_), type, memory, chosen, hid_t(transfer_), data),
           "write dataset " + dataset_ + " by MPI-IO", path_);
}

void H5SharedFile::read(int64_t begin, int64_t end, void* data) {
  H5Lock lock;
  const H5Handle chosen = selection(hid_t(set_), begin, end, path_),
                 memory = memory_of(chosen, path_),
                 type(H5Dget_type(hid_t(set_)), H5Tclose, "read a type", path_);
  check_h5(H5Dread(hid_t(set_), type, memory, chosen, hid_t(transfer_), data),
           "read dataset " + dataset_ + " by MPI-IO", path_);
}

#else

namespace {

[[noreturn]] void refuse(const std::string& path) {
  base::fail(base::Exit::config, "{}: this program's HDF5 is serial and has no MPI-IO driver",
             path);
}

}  // namespace

void H5SharedFile::create(const std::string& path, const H5Sharing&) { refuse(path); }
H5SharedFile::H5SharedFile(comm::Comm&, const std::string& path, Mode, const H5Sharing&) {
  refuse(path);
}
H5SharedFile::~H5SharedFile() = default;
void H5SharedFile::close() { refuse(path_); }
void H5SharedFile::open(const std::string&) { refuse(path_); }
void H5SharedFile::write(int64_t, int64_t, const void*) { refuse(path_); }
void H5SharedFile::read(int64_t, int64_t, void*) { refuse(path_); }

#endif
}  // namespace io
