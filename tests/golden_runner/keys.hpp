// SPDX-License-Identifier: Apache-2.0
// Reads a JSON object key by key. A key that no caller requested is an error.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "case_file.hpp"

namespace golden {

class Keys {
 public:
  // `path` is the object's name in messages, for example "config: train".
  Keys(const CaseFile& file, const nlohmann::json& object, std::string path)
      : file_(file), object_(object), path_(std::move(path)) {
    if (!object_.is_object()) file_.fail(path_, "is no object");
  }

  // Returns the value, or nullptr if the key is absent or null.
  const nlohmann::json* find(const std::string& key) {
    asked_.insert(key);
    auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool given(const std::string& key) const { return object_.contains(key); }

  int64_t integer(const std::string& key, int64_t otherwise) {
    const nlohmann::json* v = find(key);
    if (v && !v->is_number_integer()) wrong(key, "no integer");
    return v ? v->get<int64_t>() : otherwise;
  }
  double number(const std::string& key, double otherwise) {
    const nlohmann::json* v = find(key);
    if (v && !v->is_number()) wrong(key, "no number");
    return v ? v->get<double>() : otherwise;
  }
  bool flag(const std::string& key, bool otherwise) {
    const nlohmann::json* v = find(key);
    if (v && !v->is_boolean()) wrong(key, "neither true nor false");
    return v ? v->get<bool>() : otherwise;
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    const nlohmann::json* v = find(key);
    if (v && !v->is_string()) wrong(key, "no string");
    return v ? v->get<std::string>() : otherwise;
  }
  std::vector<double> numbers(const std::string& key) {
    const nlohmann::json* v = find(key);
    std::vector<double> out;
    if (v && !v->is_array()) wrong(key, "no list");
    for (const nlohmann::json& x : v ? *v : nlohmann::json::array()) {
      if (!x.is_number()) wrong(key, "no list of numbers");
      out.push_back(x.get<double>());
    }
    return out;
  }
  std::vector<int64_t> integers(const std::string& key) {
    std::vector<int64_t> out;
    for (const double v : numbers(key)) {
      if (v != double(int64_t(v))) wrong(key, "no list of integers");
      out.push_back(int64_t(v));
    }
    return out;
  }
  [[noreturn]] void wrong(const std::string& key, const std::string& problem) const {
    file_.fail(path_ + "." + key, object_.contains(key)
                                      ? fmt::format("{} is {}", object_.at(key).dump(), problem)
                                      : problem);
  }
  // Fails if the object has a key that no caller requested.
  void done() const {
    std::vector<std::string> known(asked_.begin(), asked_.end());
    for (const auto& [key, value] : object_.items())
      if (!asked_.count(key)) {
        std::string near = base::nearest_name(key, known);
        file_.fail(path_ + "." + key,
                   fmt::format("unknown option (value {}){}; known here: {}", value.dump(),
                               near.empty() ? "" : fmt::format(", did they mean \"{}\"?", near),
                               base::join(known, ", ")));
      }
  }

 private:
  const CaseFile& file_;
  const nlohmann::json& object_;
  std::string path_;
  std::set<std::string> asked_;
};

}  // namespace golden
