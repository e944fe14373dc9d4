// SPDX-License-Identifier: Apache-2.0
#include "io/h5_rows.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "io/files.hpp"
#include "io/h5_handle.hpp"
#include "io/h5_stored.hpp"

namespace io {
namespace {

// Memory for the elements of variable length of one row, freed together after the read. HDF5
// requests it with lengths from the file, so each length is checked before the allocation.
struct Lengths {
  explicit Lengths(int64_t limit) : left(limit) {}
  int64_t left;
  bool refused = false;
  std::vector<std::unique_ptr<uint8_t[]>> blocks;

  static void* allocate(size_t size, void* self) {
    Lengths& l = *static_cast<Lengths*>(self);
    l.refused = size > size_t(l.left);
    if (l.refused) return nullptr;
    l.left -= int64_t(size);
    l.blocks.emplace_back(new (std::nothrow) uint8_t[std::max<size_t>(size, 1)]);
    return l.blocks.back().get();
  }
  static void release(void*, void*) {}
};

H5Handle transfer_list(Lengths& lengths, const std::string& path) {
  H5Handle list(H5Pcreate(H5P_DATASET_XFER), H5Pclose, "make a property list", path);
  check_h5(H5Pset_vlen_mem_manager(list, Lengths::allocate, &lengths, Lengths::release, &lengths),
           "set the memory of variable lengths", path);
  return list;
}

H5Rows::Kind kind_of(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
    case H5T_ENUM:  // HDF5 converts them to numbers; h5py writes booleans as enums
      return H5Rows::Kind::integers;
    case H5T_FLOAT:
      return H5Rows::Kind::floats;
    case H5T_STRING:
      return H5Rows::Kind::text;
    default:
      return H5Rows::Kind::other;
  }
}

// Describes a type that has no Kind, and how to write its values instead.
std::string_view other_type(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_COMPOUND:
      return "a compound type; write each of its members as a dataset of its own";
    case H5T_OPAQUE:
      return "opaque bytes; write files as lists of bytes, h5py.vlen_dtype(numpy.uint8)";
    case H5T_REFERENCE:
      return "references to other objects; write what they lead to";
    case H5T_BITFIELD:
      return "bit fields; write them as integers";
    case H5T_ARRAY:
      return "arrays in one element; write their axes as axes of the dataset";
    case H5T_VLEN:
      return "lists of elements other than bytes; write rows of one length";
    default:
      return "of another type";
  }
}

// The types of H5Rows::Place::number.
template <class T>
constexpr char kNumber = 0;
template <>
constexpr char kNumber<float> = 'f';
template <>
constexpr char kNumber<int64_t> = 'i';
template <>
constexpr char kNumber<uint64_t> = 'u';
template <>
constexpr char kNumber<uint8_t> = 'b';

template <class... T>
char number_of(hid_t type) {
  char found = 0;
  ((H5Tequal(type, memory_type<T>()) > 0 ? void(found = kNumber<T>) : void()), ...);
  return found;
}

}  // namespace

// The caller holds the lock.
H5Rows::Place H5Rows::place_of(int64_t set, int64_t type) const {
  Place place{.number = number_of<float, int64_t, uint64_t, uint8_t>(type)};
  if (!place.number || is_elsewhere(set)) return {};
  place.offset = offset_of(set);
  if (place.offset < 0) return {};  // in chunks, or in the dataset's header
  int64_t end = 0;                  // a file may claim any number of rows
  if (__builtin_mul_overflow(count_, row_bytes(), &end) ||
      __builtin_add_overflow(end, place.offset, &end))
    return {};
  const hid_t file = H5Iget_file_id(set), access = file < 0 ? -1 : H5Fget_access_plist(file);
  int* descriptor = nullptr;
  // Other drivers than this one give other handles.
  if (access >= 0 && H5Pget_driver(access) == H5FD_SEC2 &&
      H5Fget_vfd_handle(file, access, reinterpret_cast<void**>(&descriptor)) >= 0 && descriptor)
    place.descriptor = *descriptor;
  if (access >= 0) H5Pclose(access);
  if (file >= 0) H5Fclose(file);
  return place.descriptor < 0 ? Place{} : place;
}

H5Rows::H5Rows(const H5File& file, const std::string& dataset)
    : path_(file.path()), dataset_(dataset) {
  H5Lock lock;
  note_call("h5rows", path_);
  H5Handle set(H5Dopen2(file.id_, dataset.c_str(), H5P_DEFAULT), H5Dclose,
               "open dataset " + dataset, path_);
  H5Handle type(H5Dget_type(set), H5Tclose, "read the type of " + dataset, path_);
  H5Handle space(H5Dget_space(set), H5Sclose, "read the shape of " + dataset, path_);
  int axes = H5Sget_simple_extent_ndims(space);
  if (axes < 1) throw Failure(fmt::format("{}: dataset {} has no axis of rows", path_, dataset), 0);
  std::vector<hsize_t> dims(static_cast<size_t>(axes));
  check_h5(H5Sget_simple_extent_dims(space, dims.data(), nullptr), "read the shape of " + dataset,
           path_);
  count_ = int64_t(dims[0]);
  shape_.assign(dims.begin() + 1, dims.end());
  kind_ = kind_of(type);
  size_ = int64_t(H5Tget_size(type));
  if (kind_ == Kind::integers) signed_ = H5Tget_sign(type) == H5T_SGN_2;
  if (kind_ == Kind::text) variable_ = H5Tis_variable_str(type) > 0;
  if (H5Tget_class(type) == H5T_VLEN) {
    H5Handle element(H5Tget_super(type), H5Tclose, "read the type of " + dataset, path_);
    if (H5Tget_class(element) == H5T_INTEGER && H5Tget_size(element) == 1) {
      kind_ = Kind::bytes;
      signed_ = H5Tget_sign(element) == H5T_SGN_2;
    }
  }
  if (kind_ == Kind::other) other_ = other_type(type);
  H5Handle creation(H5Dget_create_plist(set), H5Pclose, "read the layout of " + dataset, path_);
  if (H5Pget_layout(creation) == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(dims.size());
    check_h5(H5Pget_chunk(creation, axes, chunk.data()), "read the chunks of " + dataset, path_);
    chunk_bytes_ = size_;
    for (hsize_t n : chunk) chunk_bytes_ *= int64_t(n);  // HDF5 keeps them below 4 GiB
  }
  check_filters(set, dataset, path_);
  place_ = place_of(set, type);
  H5Handle memory = memory_text_type(type, dataset, path_);
  set_ = set.release();
  type_ = memory.release();
  space_ = space.release();
}

bool H5Rows::elsewhere() const {
  H5Lock lock;
  return is_elsewhere(set_);
}

void H5Rows::check_stored(bool count_chunks) const {
  H5Lock lock;
  io::check_stored(set_, dataset_, path_, count_chunks);
}

H5Rows::H5Rows(H5Rows&& other) noexcept
    : path_(std::move(other.path_)),
      dataset_(std::move(other.dataset_)),
      set_(std::exchange(other.set_, -1)),
      type_(std::exchange(other.type_, -1)),
      space_(std::exchange(other.space_, -1)),
      kind_(other.kind_),
      signed_(other.signed_),
      variable_(other.variable_),
      other_(other.other_),
      size_(other.size_),
      count_(other.count_),
      chunk_bytes_(other.chunk_bytes_),
      shape_(std::move(other.shape_)),
      place_(other.place_) {}

H5Rows::~H5Rows() {
  if (set_ < 0) return;
  H5Lock lock;
  H5Sclose(space_);
  H5Tclose(type_);
  H5Dclose(set_);
}

// A file may claim any shape, so the product is limited to the largest number.
int64_t H5Rows::elements() const {
  int64_t n = 1;
  for (int64_t d : shape_)
    if (__builtin_mul_overflow(n, d, &n)) return std::numeric_limits<int64_t>::max();
  return n;
}

int64_t H5Rows::row_bytes() const {
  int64_t n = elements();
  return __builtin_mul_overflow(n, size_, &n) ? std::numeric_limits<int64_t>::max() : n;
}

Failure H5Rows::too_long(int64_t row, int64_t most) const {
  return Failure(fmt::format("{}: row {} of {} has more than {} bytes, the limit for a row", path_,
                             row, dataset_, most),
                 0);
}

std::string H5Rows::type_text() const {
  std::string shape;
  for (int64_t d : shape_) shape += fmt::format("{}{}", shape.empty() ? "" : ",", d);
  std::string suffix = shape_.empty() ? "" : fmt::format(" [{}]", shape);
  switch (kind_) {
    case Kind::integers:
      return fmt::format("{}{}{}", signed_ ? 'i' : 'u', size_ * 8, suffix);
    case Kind::floats:
      return fmt::format("f{}{}", size_ * 8, suffix);
    case Kind::text:
      return "text" + suffix;
    case Kind::bytes:
      return "lists of bytes" + suffix;
    case Kind::other:
      break;
  }
  return fmt::format("{}{}", other_.substr(0, other_.find(';')), suffix);
}

// The caller holds the lock.
void H5Rows::select(int64_t row) const {
  CHECK(row >= 0 && row < count_, "row {} of {}", row, count_);
  std::vector<hsize_t> start(shape_.size() + 1), size(start.size(), 1);
  start[0] = hsize_t(row);
  for (size_t i = 0; i < shape_.size(); ++i) size[i + 1] = hsize_t(shape_[i]);
  check_h5(H5Sselect_hyperslab(space_, H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr),
           fmt::format("select row {} of {}", row, dataset_), path_);
}

void H5Rows::transfer(int64_t row, int64_t memory_type, void* out, int64_t plist) const {
  select(row);
  hsize_t count = hsize_t(elements());
  if (count == 0) return;
  H5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose, "make a shape", path_);
  check_h5(H5Dread(set_, memory_type, memory, space_, plist, out),
           fmt::format("read row {} of {}", row, dataset_), path_);
}

template <class T>
void H5Rows::read(int64_t row, std::span<T> out) const {
  CHECK(kind_ == Kind::integers || kind_ == Kind::floats, "{} of {} holds {}", dataset_, path_,
        type_text());
  CHECK(int64_t(out.size()) == elements(), "{} elements for rows of {}", out.size(), elements());
  CHECK(row >= 0 && row < count_, "row {} of {}", row, count_);
  if (place_.number == kNumber<T>) {
    const int64_t bytes = int64_t(out.size_bytes());
    read_descriptor(place_.descriptor, path_, out.data(), bytes, place_.offset + row * bytes);
    return;
  }
  H5Lock lock;
  transfer(row, memory_type<T>(), out.data(), H5P_DEFAULT);
}

std::vector<std::string> H5Rows::read_texts(int64_t row, int64_t most) const {
  H5Lock lock;
  CHECK(kind_ == Kind::text, "{} of {} holds {}", dataset_, path_, type_text());
  size_t count = size_t(elements());
  std::vector<std::string> out;
  if (!variable_) {
    std::string all(count * size_t(size_), '\0');
    transfer(row, type_, all.data(), H5P_DEFAULT);
    for (size_t i = 0; i < count; ++i) {
      std::string text = all.substr(i * size_t(size_), size_t(size_));
      text.resize(text.find_last_not_of('\0') + 1);  // npos + 1 = 0
      out.push_back(std::move(text));
    }
    return out;
  }
  Lengths lengths(most);
  H5Handle list = transfer_list(lengths, path_);
  std::vector<char*> texts(count);
  try {
    transfer(row, type_, texts.data(), list);
  } catch (const Failure&) {
    if (lengths.refused) throw too_long(row, most);
    throw;
  }
  for (const char* t : texts) out.emplace_back(t ? t : "");
  return out;
}

void H5Rows::read_bytes(int64_t row, int64_t most,
                        const std::function<uint8_t*(size_t)>& into) const {
  H5Lock lock;
  CHECK(kind_ == Kind::bytes && shape_.empty(), "{} of {} holds {}", dataset_, path_, type_text());
  Lengths lengths(most);
  H5Handle list = transfer_list(lengths, path_);
  // A conversion of signed bytes to others would make all negative ones zero.
  H5Handle type(H5Tvlen_create(signed_ ? H5T_NATIVE_INT8 : H5T_NATIVE_UINT8), H5Tclose,
                "make a type", path_);
  hvl_t bytes{0, nullptr};
  try {
    transfer(row, type, &bytes, list);
  } catch (const Failure&) {
    if (lengths.refused) throw too_long(row, most);
    throw;
  }
  if (uint8_t* out = into(bytes.len); bytes.len) std::memcpy(out, bytes.p, bytes.len);
}

template void H5Rows::read(int64_t, std::span<float>) const;
template void H5Rows::read(int64_t, std::span<int64_t>) const;
template void H5Rows::read(int64_t, std::span<uint64_t>) const;
template void H5Rows::read(int64_t, std::span<uint8_t>) const;

}  // namespace io
