// SPDX-License-Identifier: Apache-2.0
// A struct has one list of members for saving and for restoring. It hands each member with its name
// to a MemberList, which writes it to a checkpoint's numbers and texts or reads it.
#pragma once

#include <string>

#include "checkpoint/state.hpp"

namespace train {

class MemberList {
 public:
  virtual ~MemberList() = default;
  virtual void number(const std::string& name, double& value) = 0;
  virtual void text(const std::string& name, std::string& value) = 0;
  // Returns true if an optional member follows: when writing, returns `now`; when reading, whether
  // the checkpoint has it.
  virtual bool has(const std::string& name, bool now) const = 0;
  void number(const std::string& name, int64_t& value) {
    double exact = double(value);
    number(name, exact);
    value = int64_t(exact);
  }
};

class MemberWriter : public MemberList {
 public:
  explicit MemberWriter(checkpoint::State& to) : to_(to) {}
  using MemberList::number;
  void number(const std::string& name, double& value) override { to_.numbers[name] = value; }
  void text(const std::string& name, std::string& value) override { to_.texts[name] = value; }
  bool has(const std::string&, bool now) const override { return now; }

 private:
  checkpoint::State& to_;
};

// Members that the checkpoint lacks keep their values.
class MemberReader : public MemberList {
 public:
  explicit MemberReader(const checkpoint::State& from) : from_(from) {}
  using MemberList::number;
  void number(const std::string& name, double& value) override {
    if (auto it = from_.numbers.find(name); it != from_.numbers.end()) value = it->second;
  }
  void text(const std::string& name, std::string& value) override {
    if (auto it = from_.texts.find(name); it != from_.texts.end()) value = it->second;
  }
  bool has(const std::string& name, bool) const override {
    return from_.numbers.contains(name) || from_.texts.contains(name);
  }

 private:
  const checkpoint::State& from_;
};

}  // namespace train
