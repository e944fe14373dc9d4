// SPDX-License-Identifier: Apache-2.0
#include "case_file.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/error.hpp"

namespace golden {
namespace {

// Closes an HDF5 identifier at the end of its scope.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  operator hid_t() const { return id_; }
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

Shape extent(hid_t space) {
  int rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> dims(size_t(std::max(rank, 0)));
  if (rank > 0) H5Sget_simple_extent_dims(space, dims.data(), nullptr);
  return {dims.begin(), dims.end()};
}

int64_t elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

// Reads all strings of an attribute or data set. `read` is the call that fills memory of the given
// type.
std::vector<std::string> read_strings(hid_t type, hid_t space,
                                      const std::function<bool(hid_t, void*)>& read) {
  auto count = size_t(elements(extent(space)));
  std::vector<std::string> out;
  if (H5Tget_class(type) != H5T_STRING) return out;
  if (H5Tis_variable_str(type) > 0) {
    Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(memory, H5T_VARIABLE);
    H5Tset_cset(memory, H5Tget_cset(type));
    std::vector<char*> text(count, nullptr);
    if (!read(memory, text.data())) return out;
    for (char* t : text) out.emplace_back(t ? t : "");
    H5Dvlen_reclaim(memory, space, H5P_DEFAULT, text.data());
    return out;
  }
  size_t size = H5Tget_size(type);
  std::string text(count * size, '\0');
  if (!read(type, text.data())) return out;
  for (size_t i = 0; i < count; ++i) {
    std::string one = text.substr(i * size, size);
    out.push_back(one.substr(0, one.find('\0')));
  }
  return out;
}

// Returns the strings of an attribute; none if there is no such attribute of strings.
std::vector<std::string> attribute_strings(hid_t file, const std::string& name,
                                           const std::string& attribute) {
  Handle found(H5Aopen_by_name(file, name.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT),
               H5Aclose);
  if (!found.ok()) return {};
  Handle type(H5Aget_type(found), H5Tclose), space(H5Aget_space(found), H5Sclose);
  return read_strings(type, space,
                      [&](hid_t memory, void* data) { return H5Aread(found, memory, data) >= 0; });
}

herr_t collect(hid_t, const char* name, const H5O_info_t* info, void* data) {
  if (info->type == H5O_TYPE_DATASET) static_cast<std::vector<std::string>*>(data)->push_back(name);
  return 0;
}

}  // namespace

std::string text_of(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

CaseFile::CaseFile(const std::string& path) : path_(path) {
  // HDF5 must not print errors: this reader reports them with the name of the set.
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file_ < 0) base::fail(base::Exit::config, "{}: cannot be opened as an HDF5 file", path);
  const std::vector<std::string> text = attribute_strings(file_, "config", "json");
  if (text.size() == 1) config_ = nlohmann::json::parse(text[0], nullptr, false);
}

CaseFile::~CaseFile() { H5Fclose(file_); }

const nlohmann::json& CaseFile::config() const {
  if (!has_config())
    base::fail(base::Exit::config,
               "{}: no case: /config has no attribute json with an object in it", path_);
  return config_;
}

std::vector<std::string> CaseFile::groups() const {
  std::vector<std::string> sets;
  if (H5Ovisit2(file_, H5_INDEX_NAME, H5_ITER_INC, collect, &sets, H5O_INFO_BASIC) < 0)
    fail("/", "cannot be listed");
  std::set<std::string> names;
  for (const std::string& set : sets)
    if (size_t slash = set.find('/'); slash != set.npos) names.insert(set.substr(0, slash));
  return {names.begin(), names.end()};
}

double CaseFile::number(const std::string& name, const std::string& attribute) const {
  Handle found(H5Aopen_by_name(file_, name.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT),
               H5Aclose);
  double value = 0;
  if (!found.ok() || H5Aread(found, H5T_NATIVE_DOUBLE, &value) < 0)
    fail(name, fmt::format("has no attribute {} with a number", attribute));
  return value;
}

std::vector<double> CaseFile::numbers(const std::string& name, const std::string& attribute) const {
  Handle found(H5Aopen_by_name(file_, name.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT),
               H5Aclose);
  Handle space(found.ok() ? H5Aget_space(found) : hid_t(-1), H5Sclose);
  std::vector<double> values(space.ok() ? size_t(elements(extent(space))) : 0);
  if (values.empty() || H5Aread(found, H5T_NATIVE_DOUBLE, values.data()) < 0)
    fail(name, fmt::format("has no attribute {} with numbers", attribute));
  return values;
}

bool CaseFile::has_attribute(const std::string& name, const std::string& attribute) const {
  return H5Aexists_by_name(file_, name.c_str(), attribute.c_str(), H5P_DEFAULT) > 0;
}

std::string CaseFile::text(const std::string& name, const std::string& attribute) const {
  const std::vector<std::string> text = attribute_strings(file_, name, attribute);
  if (text.size() != 1) fail(name, fmt::format("has no attribute {} with a text", attribute));
  return text[0];
}

nlohmann::json CaseFile::json(const std::string& name, const std::string& attribute) const {
  nlohmann::json value = nlohmann::json::parse(text(name, attribute), nullptr, false);
  if (value.is_discarded()) fail(name, fmt::format("its attribute {} is no JSON", attribute));
  return value;
}

void CaseFile::fail(const std::string& name, const std::string& problem) const {
  base::fail(base::Exit::config, "{}: {}: {}", path_, name, problem);
}

bool CaseFile::has(const std::string& name) const {
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
    if (H5Lexists(file_, name.substr(0, slash).c_str(), H5P_DEFAULT) <= 0) return false;
  return H5Lexists(file_, name.c_str(), H5P_DEFAULT) > 0;
}

Shape CaseFile::shape(const std::string& name) const {
  Handle set(has(name) ? H5Dopen2(file_, name.c_str(), H5P_DEFAULT) : hid_t(-1), H5Dclose);
  if (!set.ok()) fail(name, "no such data set");
  Handle space(H5Dget_space(set), H5Sclose);
  return extent(space);
}

template <class T>
std::vector<T> CaseFile::read(const std::string& name, const Shape& expected, int64_t memory_type,
                              int type_class) const {
  if (Shape found = shape(name); found != expected)
    fail(name, fmt::format("has the shape {}, not {}", text_of(found), text_of(expected)));
  Handle set(H5Dopen2(file_, name.c_str(), H5P_DEFAULT), H5Dclose);
  Handle type(H5Dget_type(set), H5Tclose);
  if (H5Tget_class(type) != type_class)
    fail(name, type_class == H5T_FLOAT ? "holds no floats" : "holds no integers");
  std::vector<T> out(size_t(elements(expected)));
  if (H5Dread(set, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) < 0)
    fail(name, "cannot be read");
  return out;
}

std::vector<float> CaseFile::floats(const std::string& name, const Shape& expected) const {
  return read<float>(name, expected, H5T_NATIVE_FLOAT, H5T_FLOAT);
}
std::vector<double> CaseFile::doubles(const std::string& name, const Shape& expected) const {
  return read<double>(name, expected, H5T_NATIVE_DOUBLE, H5T_FLOAT);
}
std::vector<int32_t> CaseFile::ints(const std::string& name, const Shape& expected) const {
  return read<int32_t>(name, expected, H5T_NATIVE_INT32, H5T_INTEGER);
}
std::vector<uint8_t> CaseFile::bytes(const std::string& name, const Shape& expected) const {
  return read<uint8_t>(name, expected, H5T_NATIVE_UINT8, H5T_INTEGER);
}

std::vector<std::string> CaseFile::strings(const std::string& name) const {
  auto count = size_t(elements(shape(name)));
  Handle set(H5Dopen2(file_, name.c_str(), H5P_DEFAULT), H5Dclose);
  Handle type(H5Dget_type(set), H5Tclose), space(H5Dget_space(set), H5Sclose);
  auto out = read_strings(type, space, [&](hid_t memory, void* data) {
    return H5Dread(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;
  });
  if (out.size() != count) fail(name, "holds no strings");
  return out;
}

double CaseFile::tolerance(const std::string& name) const {
  if (H5Aexists_by_name(file_, name.c_str(), "tol", H5P_DEFAULT) <= 0) return 0;
  Handle attribute(H5Aopen_by_name(file_, name.c_str(), "tol", H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  double value = 0;
  if (!attribute.ok() || H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0 || !(value >= 0))
    fail(name, "its attribute tol is no number of at least 0");
  return value;
}

bool CaseFile::rounding_noise_only(const std::string& name) const {
  return H5Aexists_by_name(file_, name.c_str(), "rounding_noise_only", H5P_DEFAULT) > 0;
}

std::vector<std::string> CaseFile::below(const std::string& group) const {
  std::vector<std::string> names;
  if (!has(group)) return names;
  Handle id(H5Gopen2(file_, group.c_str(), H5P_DEFAULT), H5Gclose);
  if (!id.ok()) fail(group, "is no group");
  if (H5Ovisit2(id, H5_INDEX_NAME, H5_ITER_INC, collect, &names, H5O_INFO_BASIC) < 0)
    fail(group, "cannot be listed");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace golden
