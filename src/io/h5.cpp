// SPDX-License-Identifier: Apache-2.0
#include "io/h5.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "io/h5_handle.hpp"

namespace io {

std::recursive_mutex& h5_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

H5Lock::H5Lock() : lock_(h5_mutex()) {
  static bool ready = [] {
  // The run directory has its own lock, and many cluster file systems refuse HDF5's locks.
#ifndef TRAINER_HDF5_LOCKING
    ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);  // read when the library starts
#endif
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors become exceptions
    add_filters();
    return true;
  }();
  (void)ready;
}

namespace {

const char* filter_problem = nullptr;

}  // namespace

void note_filter_problem(const char* why) { filter_problem = why; }

void fail_h5(const std::string& what, const std::string& path) {
  struct Words {
    std::string outer, inner;
  } words;
  auto collect = [](unsigned, const H5E_error2_t* e, void* data) -> herr_t {
    Words& w = *static_cast<Words*>(data);
    w.outer = e->desc ? e->desc : "";  // the last entry is the function that was called
    if (w.inner.empty()) w.inner = w.outer;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &words);
  H5Eclear2(H5E_DEFAULT);
  if (const char* why = std::exchange(filter_problem, nullptr)) words.inner = why;
  // HDF5 puts the system's errno into a long text with times and addresses.
  constexpr std::string_view kNumber = "errno = ";
  if (size_t at = words.inner.find(kNumber); at != words.inner.npos)
    if (int number = std::atoi(words.inner.c_str() + at + kNumber.size()); number != 0)
      throw Failure(fmt::format("{}: cannot {}: {}", path, what, std::strerror(number)), number);
  std::string text = words.outer == words.inner ? words.inner : words.outer + ": " + words.inner;
  throw Failure(
      fmt::format("{}: cannot {}: {}", path, what, text.empty() ? "HDF5 gives no reason" : text),
      0);
}

// ---------------------------------------------------------------- types

H5Type h5_type_of(device::DType type) {
  switch (type) {
    case device::DType::f32:
      return H5Type::f32;
    case device::DType::f64:
      return H5Type::f64;
    case device::DType::bf16:
      return H5Type::bf16;
    case device::DType::f16:
      return H5Type::f16;
    case device::DType::i32:
      return H5Type::i32;
    case device::DType::i64:
      return H5Type::i64;
    case device::DType::u8:
      return H5Type::u8;
  }
  return H5Type::other;
}

std::optional<device::DType> dtype_of(H5Type type) {
  switch (type) {
    case H5Type::f32:
      return device::DType::f32;
    case H5Type::f64:
      return device::DType::f64;
    case H5Type::bf16:
      return device::DType::bf16;
    case H5Type::f16:
      return device::DType::f16;
    case H5Type::i32:
      return device::DType::i32;
    case H5Type::i64:
      return device::DType::i64;
    case H5Type::u8:
      return device::DType::u8;
    default:
      return {};
  }
}

const char* name_of(H5Type type) {
  switch (type) {
    case H5Type::f32:
      return "f32";
    case H5Type::f64:
      return "f64";
    case H5Type::bf16:
      return "bf16";
    case H5Type::f16:
      return "f16";
    case H5Type::half:
      return "half";
    case H5Type::i32:
      return "i32";
    case H5Type::i64:
      return "i64";
    case H5Type::u8:
      return "u8";
    case H5Type::u64:
      return "u64";
    case H5Type::text:
      return "text";
    case H5Type::other:
      break;
  }
  return "other";
}

int64_t offset_of(hid_t dataset) {
  if (H5Dget_storage_size(dataset) == 0) return -1;  // HDF5 would add the user block to "undefined"
  haddr_t offset = H5Dget_offset(dataset);
  if (offset != HADDR_UNDEF) return int64_t(offset);
  H5Eclear2(H5E_DEFAULT);  // a chunked dataset is an error to HDF5
  return -1;
}

namespace {

// Makes the type of half once; the library closes it at exit. A sign bit, 5 bits of exponent, 10 of
// mantissa.
hid_t half_type() {
  static const hid_t type = [] {
    const hid_t made = H5Tcopy(H5T_IEEE_F32LE);
    CHECK(made >= 0 && H5Tset_fields(made, 15, 10, 5, 0, 10) >= 0 && H5Tset_size(made, 2) >= 0 &&
              H5Tset_ebias(made, 15) >= 0,
          "HDF5 makes no type for half");
    return made;
  }();
  return type;
}

}  // namespace

hid_t file_type(H5Type type) {
  switch (type) {
    case H5Type::f32:
      return H5T_IEEE_F32LE;
    case H5Type::f64:
      return H5T_IEEE_F64LE;
    case H5Type::bf16:
    case H5Type::f16:
      return H5T_STD_U16LE;
    case H5Type::half:
      return half_type();
    case H5Type::i32:
      return H5T_STD_I32LE;
    case H5Type::i64:
      return H5T_STD_I64LE;
    case H5Type::u8:
      return H5T_STD_U8LE;
    case H5Type::u64:
      return H5T_STD_U64LE;
    default:
      break;
  }
  CHECK(false, "no HDF5 file type for {}", name_of(type));
  return -1;
}

// ---------------------------------------------------------------- files

namespace {

// Keeps links and attributes in the group's header at any number, because a second index would grow
// and fragment. Stores no times, so equal contents make equal files. `creation` is a list of group
// creation, or of file creation for the root group.
void compact_headers(hid_t creation, const std::string& path) {
  check_h5(H5Pset_link_phase_change(creation, 60000, 50000), "choose how links are stored", path);
  check_h5(H5Pset_attr_phase_change(creation, 60000, 50000), "choose how attributes are stored",
           path);
  check_h5(H5Pset_obj_track_times(creation, false), "leave out times", path);
}

}  // namespace

H5Handle file_access(const std::string& path, H5F_libver_t newest) {
  H5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list", path);
  check_h5(H5Pset_libver_bounds(access, H5F_LIBVER_V18, newest), "choose the format", path);
#ifdef TRAINER_HDF5_LOCKING
  check_h5(H5Pset_file_locking(access, false, true), "turn off file locking", path);
#endif
  return access;
}

// The memory of a new file. HDF5's memory driver gets it through these callbacks and does not own
// it, so the memory outlives the closed file.
struct H5File::Image {
  std::string bytes;

  static void* make(size_t size, H5FD_file_image_op_t, void* self) {
    static_cast<Image*>(self)->bytes.assign(size, '\0');
    return static_cast<Image*>(self)->bytes.data();
  }
  static void* grow(void*, size_t size, H5FD_file_image_op_t, void* self) {
    static_cast<Image*>(self)->bytes.resize(size);
    return static_cast<Image*>(self)->bytes.data();
  }
  static herr_t keep(void*, H5FD_file_image_op_t, void*) { return 0; }
  static void* copy(void* to, const void* from, size_t size, H5FD_file_image_op_t, void*) {
    return std::memcpy(to, from, size);
  }
  static void* share(void* self) { return self; }
  static herr_t unshare(void*) { return 0; }
};

H5File::H5File(int64_t id, std::string path, std::unique_ptr<Image> image)
    : id_(id), path_(std::move(path)), image_(std::move(image)) {}

H5File H5File::create(const std::string& path, const H5Create& how) {
  H5Lock lock;
  // V18 has compact object headers with checksums, and old libraries can read it.
  H5Handle access = file_access(path, H5F_LIBVER_V18);
  auto image = std::make_unique<Image>();
  H5FD_file_image_callbacks_t memory{Image::make,  Image::copy,    Image::grow, Image::keep,
                                     Image::share, Image::unshare, image.get()};
  check_h5(H5Pset_file_image_callbacks(access, &memory), "keep the file's memory", path);
  check_h5(H5Pset_fapl_core(access, size_t{1} << 16, false), "use the memory driver", path);
  check_h5(H5Pset_alignment(access, hsize_t(how.aligned_from), hsize_t(how.alignment)),
           "set the alignment", path);
  if (how.metadata_block)
    check_h5(H5Pset_meta_block_size(access, hsize_t(how.metadata_block)),
             "set the metadata block size", path);
  H5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "make a property list", path);
  check_h5(H5Pset_userblock(creation, hsize_t(how.user_block)), "set the user block", path);
  compact_headers(creation, path);
  // The name must not exist, because the library would load an existing file first.
  H5Handle file(H5Fcreate((path + ".in_memory").c_str(), H5F_ACC_TRUNC, creation, access), H5Fclose,
                "create the file", path);
  return H5File(file.release(), path, std::move(image));
}

H5File H5File::open(const std::string& path) {
  H5Lock lock;
  note_call("h5open", path);
  struct stat s {};
  if (::stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))
    // the library would block forever on a pipe
    throw Failure(fmt::format("{} is not a regular file", path), 0);
  // Other programs write newer formats.
  H5Handle access = file_access(path, H5F_LIBVER_LATEST);
  H5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose, "open the file", path);
  return H5File(file.release(), path, nullptr);
}

H5File::H5File(H5File&& other) noexcept
    : id_(std::exchange(other.id_, -1)),
      path_(std::move(other.path_)),
      image_(std::move(other.image_)),
      contiguous_(std::exchange(other.contiguous_, -1)),
      groups_(std::move(other.groups_)) {}

H5File& H5File::operator=(H5File&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(path_, other.path_);
  std::swap(image_, other.image_);
  std::swap(contiguous_, other.contiguous_);
  std::swap(groups_, other.groups_);
  return *this;
}

H5File::~H5File() {
  if (id_ < 0) return;
  H5Lock lock;
  close_handles();
  H5Fclose(id_);
}

std::string H5File::close_to_image() {
  CHECK(image_ && id_ >= 0, "{} is not a new file", path_);
  H5Lock lock;
  close_handles();
  check_h5(H5Fclose(std::exchange(id_, -1)), "close the file", path_);
  std::string bytes = std::move(image_->bytes);
  image_.reset();
  bytes.resize(bytes.find_last_not_of('\0') + 1);  // HDF5 grows the memory in steps
  return bytes;
}

void H5File::close() {
  if (id_ < 0) return;
  if (image_) {
    H5Lock lock;
    hsize_t size = 0;
    check_h5(H5Fflush(id_, H5F_SCOPE_LOCAL), "finish the file", path_);
    check_h5(H5Fget_filesize(id_, &size), "ask for the file's length", path_);
    std::string bytes = close_to_image();
    bytes.resize(std::max(bytes.size(), size_t(size)));
    write_file_atomically(path_, bytes, false);
    return;
  }
  H5Lock lock;
  close_handles();
  check_h5(H5Fclose(std::exchange(id_, -1)), "close the file", path_);
}

// ---------------------------------------------------------------- structure

int64_t H5File::group_id(const std::string& group) {
  H5Lock lock;
  if (auto known = groups_.find(group); known != groups_.end()) return known->second;
  hid_t id = -1;
  if (group == "/") {
    id = H5Gopen2(id_, "/", H5P_DEFAULT);
  } else {
    hid_t parent = group_id(parent_of(group));
    std::string name = group.substr(group.rfind('/') + 1);
    htri_t there = H5Lexists(parent, name.c_str(), H5P_DEFAULT);
    check_h5(there, "look for " + group, path_);
    if (there) {
      id = H5Gopen2(parent, name.c_str(), H5P_DEFAULT);
    } else {
      H5Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "make a property list", path_);
      compact_headers(creation, path_);
      id = H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT);
    }
  }
  if (id < 0) fail_h5("open or make group " + group, path_);
  groups_[group] = id;
  return id;
}

void H5File::close_handles() {
  for (const auto& [name, id] : groups_) H5Gclose(id);
  groups_.clear();
  if (contiguous_ >= 0) H5Pclose(std::exchange(contiguous_, -1));
}

bool H5File::exists(const std::string& object) const {
  H5Lock lock;
  if (object == "/") return true;
  // H5Lexists requires that every parent exists
  for (size_t end = object.find('/', 1);; end = object.find('/', end + 1)) {
    std::string part = object.substr(0, end);
    htri_t there = H5Lexists(id_, part.c_str(), H5P_DEFAULT);
    if (there < 0) H5Eclear2(H5E_DEFAULT);  // a parent is not a group
    if (there <= 0) return false;
    if (end == std::string::npos) return true;
  }
}

std::vector<std::string> H5File::datasets(const std::string& group) const {
  H5Lock lock;
  H5Handle root(H5Gopen2(id_, group.c_str(), H5P_DEFAULT), H5Gclose, "open group " + group, path_);
  std::vector<std::string> found;
  auto visit = [](hid_t, const char* name, const H5O_info_t* object, void* data) -> herr_t {
    if (object->type == H5O_TYPE_DATASET)
      static_cast<std::vector<std::string>*>(data)->push_back(name);
    return 0;
  };
  check_h5(H5Ovisit2(root, H5_INDEX_NAME, H5_ITER_NATIVE, visit, &found, H5O_INFO_BASIC),
           "list " + group, path_);
  for (std::string& name : found) name = (group == "/" ? "/" : group + "/") + name;
  std::sort(found.begin(), found.end());
  return found;
}

H5Info H5File::info(const std::string& dataset) const {
  H5Lock lock;
  H5Handle set(H5Dopen2(id_, dataset.c_str(), H5P_DEFAULT), H5Dclose, "open dataset " + dataset,
               path_);
  H5Handle type(H5Dget_type(set), H5Tclose, "read the type of " + dataset, path_);
  H5Handle space(H5Dget_space(set), H5Sclose, "read the shape of " + dataset, path_);
  H5Info info;
  int rank = H5Sget_simple_extent_ndims(space);
  check_h5(rank, "read the shape of " + dataset, path_);
  std::vector<hsize_t> dims(size_t(rank) + 1);
  check_h5(H5Sget_simple_extent_dims(space, dims.data(), nullptr), "read the shape of " + dataset,
           path_);
  info.shape.assign(dims.begin(), dims.begin() + rank);
  int64_t count = H5Sget_simple_extent_npoints(space), size = int64_t(H5Tget_size(type));
  info.bytes = count * size;
  if (H5Tget_class(type) == H5T_STRING) {
    info.type = H5Type::text;
    info.text_bytes = H5Tis_variable_str(type) > 0 ? 0 : size;
  } else {
    for (H5Type t : {H5Type::f32, H5Type::f64, H5Type::i32, H5Type::i64, H5Type::u8, H5Type::u64,
                     H5Type::half, H5Type::bf16})
      if (H5Tequal(type, file_type(t)) > 0) info.type = t;
    if (info.type == H5Type::bf16) {  // the type itself is only "16 unsigned bits"
      auto name = attribute(dataset, "dtype");
      const std::string* text = name ? std::get_if<std::string>(&*name) : nullptr;
      info.type = !text             ? H5Type::other
                  : *text == "bf16" ? H5Type::bf16
                  : *text == "f16"  ? H5Type::f16
                                    : H5Type::other;
    }
  }
  info.offset = offset_of(set);
  return info;
}

}  // namespace io
