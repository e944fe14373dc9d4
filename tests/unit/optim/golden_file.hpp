// SPDX-License-Identifier: Apache-2.0
// Reads golden HDF5 files: float, int and text, for these tests only.
#pragma once

#include <hdf5.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "../recorded.hpp"

namespace golden {

class File {
 public:
  explicit File(const std::string& name)
      : id_(H5Fopen(tests::source_file("tests/golden/" + std::string(name)).c_str(), H5F_ACC_RDONLY,
                    H5P_DEFAULT)) {
    if (id_ < 0) throw std::runtime_error("cannot open " + name);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // a query for a missing set is not an error here
  }
  ~File() { H5Fclose(id_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::vector<std::string> children(const std::string& group) const {
    std::vector<std::string> names;
    auto add = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
      static_cast<std::vector<std::string>*>(out)->push_back(name);
      return 0;
    };
    hid_t g = H5Gopen2(id_, group.c_str(), H5P_DEFAULT);
    H5Literate(g, H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names);
    H5Gclose(g);
    return names;
  }
  bool has(const std::string& path) const {
    for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
      if (H5Lexists(id_, path.substr(0, slash).c_str(), H5P_DEFAULT) <= 0) return false;
      if (slash == std::string::npos) return true;
    }
  }
  std::vector<int64_t> shape(const std::string& path) const {
    hid_t d = H5Dopen2(id_, path.c_str(), H5P_DEFAULT), s = H5Dget_space(d);
    std::vector<hsize_t> dims(size_t(H5Sget_simple_extent_ndims(s)));
    H5Sget_simple_extent_dims(s, dims.data(), nullptr);
    H5Sclose(s);
    H5Dclose(d);
    return {dims.begin(), dims.end()};
  }
  std::vector<float> floats(const std::string& path) const {
    hid_t d = H5Dopen2(id_, path.c_str(), H5P_DEFAULT), s = H5Dget_space(d);
    std::vector<float> out(size_t(H5Sget_simple_extent_npoints(s)));
    if (H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) < 0)
      throw std::runtime_error("cannot read " + path);
    H5Sclose(s);
    H5Dclose(d);
    return out;
  }
  double number(const std::string& object, const std::string& attribute) const {
    double x = 0;
    hid_t a = H5Aopen_by_name(id_, object.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Aread(a, H5T_NATIVE_DOUBLE, &x) < 0)
      throw std::runtime_error("no " + attribute + " at " + object);
    H5Aclose(a);
    return x;
  }
  std::string text(const std::string& object, const std::string& attribute) const {
    hid_t a = H5Aopen_by_name(id_, object.c_str(), attribute.c_str(), H5P_DEFAULT, H5P_DEFAULT),
          t = H5Aget_type(a);
    char* p = nullptr;
    if (a < 0 || H5Aread(a, t, &p) < 0)
      throw std::runtime_error("no " + attribute + " at " + object);
    std::string out = p;
    H5free_memory(p);
    H5Tclose(t);
    H5Aclose(a);
    return out;
  }

 private:
  hid_t id_;
};

}  // namespace golden
