// SPDX-License-Identifier: Apache-2.0
// Reads one HDF5 file in the format of tests/golden/README.md. Errors are Error(Exit::config) that
// name the file and the set.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace golden {

using Shape = std::vector<int64_t>;
std::string text_of(const Shape& shape);  // "[12, 7]"

class CaseFile {
 public:
  explicit CaseFile(const std::string& path);
  ~CaseFile();
  CaseFile(const CaseFile&) = delete;

  const std::string& path() const { return path_; }
  // True if /config has attribute `json`, an object. Only cases have it.
  bool has_config() const { return config_.is_object(); }
  // Returns attribute `json` of /config; an error if the file has none.
  const nlohmann::json& config() const;
  // Returns the sorted names of the file's top-level groups that hold data sets.
  std::vector<std::string> groups() const;
  // Returns a numeric attribute of a group or data set.
  double number(const std::string& name, const std::string& attribute) const;
  std::vector<double> numbers(const std::string& name, const std::string& attribute) const;
  bool has_attribute(const std::string& name, const std::string& attribute) const;
  // Returns an attribute that holds JSON. `name`: a group or data set, or "/" for the file.
  nlohmann::json json(const std::string& name, const std::string& attribute = "json") const;

  // Returns an attribute that holds text.
  std::string text(const std::string& name, const std::string& attribute) const;

  bool has(const std::string& name) const;
  Shape shape(const std::string& name) const;
  std::vector<float> floats(const std::string& name, const Shape& expected) const;
  std::vector<double> doubles(const std::string& name, const Shape& expected) const;
  std::vector<int32_t> ints(const std::string& name, const Shape& expected) const;
  std::vector<uint8_t> bytes(const std::string& name, const Shape& expected) const;
  std::vector<std::string> strings(const std::string& name) const;
  // Returns attribute `tol`, or 0, which means exact, where the set has none.
  double tolerance(const std::string& name) const;
  bool rounding_noise_only(const std::string& name) const;
  // Returns the sorted paths of all data sets below a group, relative to it.
  std::vector<std::string> below(const std::string& group) const;

  [[noreturn]] void fail(const std::string& name, const std::string& problem) const;

 private:
  template <class T>
  std::vector<T> read(const std::string& name, const Shape& expected, int64_t memory_type,
                      int type_class) const;

  std::string path_;
  int64_t file_ = -1;
  nlohmann::json config_;
};

}  // namespace golden
