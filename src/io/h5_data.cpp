// SPDX-License-Identifier: Apache-2.0
// Datasets and attributes of H5File.
#include <algorithm>

#include "io/h5.hpp"
#include "io/h5_handle.hpp"

namespace io {

template <>
hid_t memory_type<float>() {
  return H5T_NATIVE_FLOAT;
}
template <>
hid_t memory_type<double>() {
  return H5T_NATIVE_DOUBLE;
}
template <>
hid_t memory_type<int32_t>() {
  return H5T_NATIVE_INT32;
}
template <>
hid_t memory_type<int64_t>() {
  return H5T_NATIVE_INT64;
}
template <>
hid_t memory_type<uint8_t>() {
  return H5T_NATIVE_UINT8;
}
template <>
hid_t memory_type<uint16_t>() {
  return H5T_NATIVE_UINT16;
}
template <>
hid_t memory_type<uint64_t>() {
  return H5T_NATIVE_UINT64;
}

namespace {

H5Handle make_space(const std::vector<int64_t>& shape, const std::string& path) {
  std::vector<hsize_t> dims(shape.begin(), shape.end());
  return H5Handle(dims.empty() ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(int(dims.size()), dims.data(), nullptr),
                  H5Sclose, "make a shape", path);
}

H5Handle text_type(int64_t bytes, const std::string& path) {
  H5Handle type(H5Tcopy(H5T_C_S1), H5Tclose, "make a string type", path);
  // The string is padded with zeros, not terminated, so its text may fill every byte. HDF5 allows
  // no string of length 0.
  check_h5(H5Tset_size(type, size_t(std::max<int64_t>(bytes, 1))), "make a string type", path);
  check_h5(H5Tset_strpad(type, H5T_STR_NULLPAD), "make a string type", path);
  check_h5(H5Tset_cset(type, H5T_CSET_UTF8), "make a string type", path);
  return type;
}

// Stores no times, like the groups.
H5Handle dataset_creation(const std::string& path) {
  H5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "make a property list", path);
  check_h5(H5Pset_obj_track_times(creation, false), "make a property list", path);
  return creation;
}

const char* leaf_of(const std::string& path) { return path.c_str() + path.rfind('/') + 1; }

std::string without_padding(std::string text) {
  text.resize(text.find_last_not_of('\0') + 1);  // npos + 1 = 0
  return text;
}

}  // namespace

H5Handle memory_text_type(hid_t type, const std::string& dataset, const std::string& path) {
  const std::string what = "read the type of " + dataset;
  H5Handle memory(H5Tcopy(type), H5Tclose, what, path);
  if (H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0)
    check_h5(H5Tset_strpad(memory, H5T_STR_NULLPAD), what, path);
  return memory;
}

int64_t H5File::contiguous_creation() {
  if (contiguous_ >= 0) return contiguous_;
  H5Handle creation = dataset_creation(path_);
  check_h5(H5Pset_layout(creation, H5D_CONTIGUOUS), "choose a contiguous layout", path_);
  check_h5(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), "allocate early", path_);
  check_h5(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), "leave out the fill", path_);
  return contiguous_ = creation.release();
}

int64_t H5File::create_contiguous(const std::string& dataset, H5Type type,
                                  const std::vector<int64_t>& shape) {
  H5Lock lock;
  hid_t group = group_id(parent_of(dataset));
  H5Handle space = make_space(shape, path_);
  H5Handle set(H5Dcreate2(group, leaf_of(dataset), file_type(type), space, H5P_DEFAULT,
                          contiguous_creation(), H5P_DEFAULT),
               H5Dclose, "create dataset " + dataset, path_);
  if (type == H5Type::bf16 || type == H5Type::f16)
    write_attribute(set, dataset, "dtype", name_of(type), path_);
  return offset_of(set);
}

int64_t H5File::create_contiguous_text(const std::string& dataset, int64_t bytes) {
  H5Lock lock;
  hid_t group = group_id(parent_of(dataset));
  H5Handle type = text_type(bytes, path_), space = make_space({}, path_);
  H5Handle set(H5Dcreate2(group, leaf_of(dataset), type, space, H5P_DEFAULT, contiguous_creation(),
                          H5P_DEFAULT),
               H5Dclose, "create dataset " + dataset, path_);
  return offset_of(set);
}

int64_t H5File::create_contiguous_texts(const std::string& dataset, int64_t count, int64_t bytes) {
  H5Lock lock;
  hid_t group = group_id(parent_of(dataset));
  H5Handle type = text_type(bytes, path_), space = make_space({count}, path_);
  H5Handle set(H5Dcreate2(group, leaf_of(dataset), type, space, H5P_DEFAULT, contiguous_creation(),
                          H5P_DEFAULT),
               H5Dclose, "create dataset " + dataset, path_);
  return offset_of(set);
}

void H5File::create_extendible(const std::string& dataset, H5Type type, int64_t length,
                               int64_t chunk) {
  H5Lock lock;
  hid_t group = group_id(parent_of(dataset));
  H5Handle creation = dataset_creation(path_);
  hsize_t now = hsize_t(length), most = H5S_UNLIMITED, piece = hsize_t(chunk);
  check_h5(H5Pset_chunk(creation, 1, &piece), "set the chunks of " + dataset, path_);
  H5Handle space(H5Screate_simple(1, &now, &most), H5Sclose, "make a shape", path_);
  H5Handle set(H5Dcreate2(group, leaf_of(dataset), file_type(type), space, H5P_DEFAULT, creation,
                          H5P_DEFAULT),
               H5Dclose, "create dataset " + dataset, path_);
}

// ---------------------------------------------------------------- whole datasets

template <class T>
void H5File::transfer(const std::string& dataset, T* data, size_t count, bool writing) const {
  H5Lock lock;
  std::string what = (writing ? "write dataset " : "read dataset ") + dataset;
  H5Handle set(H5Dopen2(id_, dataset.c_str(), H5P_DEFAULT), H5Dclose, "open dataset " + dataset,
               path_);
  H5Handle space(H5Dget_space(set), H5Sclose, "read the shape of " + dataset, path_);
  CHECK(H5Sget_simple_extent_npoints(space) == hssize_t(count),
        "{} of {}: {} elements given, {} there", what, path_, count,
        H5Sget_simple_extent_npoints(space));
  if (count == 0) return;
  check_h5(writing ? H5Dwrite(set, memory_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data)
                   : H5Dread(set, memory_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
           what, path_);
}

template <class T>
std::vector<T> H5File::read(const std::string& dataset) const {
  H5Info i = info(dataset);
  int64_t count = 1;
  for (int64_t n : i.shape) count *= n;
  std::vector<T> values(static_cast<size_t>(count));
  transfer(dataset, values.data(), values.size(), false);
  return values;
}

template <class T>
void H5File::write(const std::string& dataset, std::span<const T> values) {
  transfer(dataset, const_cast<T*>(values.data()), values.size(), true);
}

template <class T>
void H5File::create(const std::string& dataset, std::span<const T> values,
                    const std::vector<int64_t>& shape) {
  H5Lock lock;
  H5Type type = H5Type::other;
  for (H5Type t : {H5Type::f32, H5Type::f64, H5Type::i32, H5Type::i64, H5Type::u8, H5Type::u64})
    if (H5Tequal(file_type(t), memory_type<T>()) > 0) type = t;  // both are little endian
  create_contiguous(dataset, type, shape);
  write(dataset, values);
}

#define INSTANTIATE(T)                                                    \
  template std::vector<T> H5File::read<T>(const std::string&) const;      \
  template void H5File::write<T>(const std::string&, std::span<const T>); \
  template void H5File::create<T>(const std::string&, std::span<const T>, \
                                  const std::vector<int64_t>&);
INSTANTIATE(float)
INSTANTIATE(double)
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)
INSTANTIATE(uint8_t)
INSTANTIATE(uint64_t)
#undef INSTANTIATE
template std::vector<uint16_t> H5File::read<uint16_t>(const std::string&) const;
template void H5File::write<uint16_t>(const std::string&, std::span<const uint16_t>);

std::string H5File::read_text(const std::string& dataset) const {
  std::vector<std::string> all = read_texts(dataset);
  if (all.size() != 1)
    throw Failure(fmt::format("{}: {} holds {} strings, not one", path_, dataset, all.size()), 0);
  return all[0];
}

std::vector<std::string> H5File::read_texts(const std::string& dataset) const {
  H5Lock lock;
  H5Handle set(H5Dopen2(id_, dataset.c_str(), H5P_DEFAULT), H5Dclose, "open dataset " + dataset,
               path_);
  H5Handle type(H5Dget_type(set), H5Tclose, "read the type of " + dataset, path_);
  H5Handle space(H5Dget_space(set), H5Sclose, "read the shape of " + dataset, path_);
  if (H5Tget_class(type) != H5T_STRING)
    throw Failure(fmt::format("{}: {} does not hold text", path_, dataset), 0);
  size_t count = size_t(H5Sget_simple_extent_npoints(space));
  std::vector<std::string> out;
  if (count == 0) return out;
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> texts(count);
    check_h5(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data()),
             "read dataset " + dataset, path_);
    for (char* text : texts) out.emplace_back(text ? text : "");
    H5Dvlen_reclaim(type, space, H5P_DEFAULT, texts.data());
    return out;
  }
  size_t size = H5Tget_size(type);
  std::string all(count * size, '\0');
  H5Handle memory = memory_text_type(type, dataset, path_);
  check_h5(H5Dread(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()),
           "read dataset " + dataset, path_);
  for (size_t i = 0; i < count; ++i) out.push_back(without_padding(all.substr(i * size, size)));
  return out;
}

// ---------------------------------------------------------------- attributes

void write_attribute(hid_t owner, const std::string& object, const std::string& name,
                     const H5Attribute& value, const std::string& path) {
  std::string what = fmt::format("write attribute {} of {}", name, object);
  const std::string* text = std::get_if<std::string>(&value);
  H5Handle type = text ? text_type(int64_t(text->size()), path)
                       : H5Handle(H5Tcopy(std::holds_alternative<double>(value) ? H5T_IEEE_F64LE
                                                                                : H5T_STD_I64LE),
                                  H5Tclose, what, path);
  htri_t there = H5Aexists(owner, name.c_str());
  check_h5(there, what, path);
  if (there) {
    H5Handle old(H5Aopen(owner, name.c_str(), H5P_DEFAULT), H5Aclose, what, path);
    H5Handle old_type(H5Aget_type(old), H5Tclose, what, path);
    if (H5Tequal(type, old_type) <= 0) {
      check_h5(H5Adelete(owner, name.c_str()), what, path);
      there = false;
    }
  }
  H5Handle space = make_space({}, path);
  H5Handle attribute(there ? H5Aopen(owner, name.c_str(), H5P_DEFAULT)
                           : H5Acreate2(owner, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
                     H5Aclose, what, path);
  if (text) {
    std::string padded = text->empty() ? std::string(1, '\0') : *text;
    check_h5(H5Awrite(attribute, type, padded.data()), what, path);
  } else if (const double* number = std::get_if<double>(&value)) {
    check_h5(H5Awrite(attribute, H5T_NATIVE_DOUBLE, number), what, path);
  } else {
    check_h5(H5Awrite(attribute, H5T_NATIVE_INT64, &std::get<int64_t>(value)), what, path);
  }
}

void H5File::set_attribute(const std::string& object, const std::string& name,
                           const H5Attribute& value) {
  H5Lock lock;
  H5Handle owner(H5Oopen(id_, object.c_str(), H5P_DEFAULT), H5Oclose, "open " + object, path_);
  write_attribute(owner, object, name, value, path_);
}

std::optional<H5Attribute> H5File::attribute(const std::string& object,
                                             const std::string& name) const {
  H5Lock lock;
  std::string what = fmt::format("read attribute {} of {}", name, object);
  H5Handle owner(H5Oopen(id_, object.c_str(), H5P_DEFAULT), H5Oclose, "open " + object, path_);
  htri_t there = H5Aexists(owner, name.c_str());
  check_h5(there, what, path_);
  if (!there) return {};
  H5Handle attribute(H5Aopen(owner, name.c_str(), H5P_DEFAULT), H5Aclose, what, path_);
  H5Handle type(H5Aget_type(attribute), H5Tclose, what, path_);
  H5Handle space(H5Aget_space(attribute), H5Sclose, what, path_);
  if (H5Sget_simple_extent_npoints(space) != 1) return {};  // the program writes only single values
  switch (H5Tget_class(type)) {
    case H5T_INTEGER: {
      int64_t number = 0;
      check_h5(H5Aread(attribute, H5T_NATIVE_INT64, &number), what, path_);
      return number;
    }
    case H5T_FLOAT: {
      double number = 0;
      check_h5(H5Aread(attribute, H5T_NATIVE_DOUBLE, &number), what, path_);
      return number;
    }
    case H5T_STRING: {
      if (H5Tis_variable_str(type) > 0) {
        char* text = nullptr;
        check_h5(H5Aread(attribute, type, &text), what, path_);
        std::string out = text ? text : "";
        H5free_memory(text);
        return out;
      }
      std::string text(H5Tget_size(type), '\0');
      H5Handle memory = memory_text_type(type, name, path_);
      check_h5(H5Aread(attribute, memory, text.data()), what, path_);
      return without_padding(std::move(text));
    }
    default:
      return {};
  }
}

std::vector<std::string> H5File::attributes(const std::string& object) const {
  H5Lock lock;
  H5Handle owner(H5Oopen(id_, object.c_str(), H5P_DEFAULT), H5Oclose, "open " + object, path_);
  std::vector<std::string> names;
  auto visit = [](hid_t, const char* name, const H5A_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->push_back(name);
    return 0;
  };
  hsize_t position = 0;
  check_h5(H5Aiterate2(owner, H5_INDEX_NAME, H5_ITER_NATIVE, &position, visit, &names),
           "list attributes of " + object, path_);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace io
