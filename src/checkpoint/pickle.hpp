// SPDX-License-Identifier: Apache-2.0
// Reads a Python pickle as data. A pickle is a program for a machine with a stack. It may name any
// function of any Python module and call it. Here nothing is called: a call is a value of its own,
// and a name that is not among the known harmless ones is refused.
// Format: pickletools of CPython, protocols 2 to 5.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace checkpoint {

// A value, known by its index in Pickle::values.
using PickleIndex = uint32_t;

struct PickleValue {
  enum class Kind {
    none,     // None
    number,   // True, False, a whole number of at most 64 bits
    text,     // a str
    bytes,    // bytes; also a real number or a whole number of more than 64 bits, as stored
    list,     // list, tuple or set
    dict,     // `pairs` alone
    name,     // text is MODULE.NAME of a class or function
    call,     // items: what is called, its arguments, states that it is given
    outside,  // items: an id of something beside the pickle, such as the numbers of a tensor
    mark,     // of the stack alone
  };
  Kind kind = Kind::none;
  int64_t number = 0;
  std::string text = {};
  std::vector<PickleIndex> items = {};
  std::vector<std::pair<PickleIndex, PickleIndex>> pairs =
      {};  // of a dict, or of a call that made one
};

struct Pickle {
  std::vector<PickleValue> values;  // a value may occur in several others, and in itself
  PickleIndex root = 0;
  int64_t bytes = 0;  // length of the pickle, which may be followed by something else

  const PickleValue& operator[](PickleIndex i) const { return values[i]; }
  bool is_call_of(PickleIndex i, std::string_view name) const {
    return values[i].kind == PickleValue::Kind::call && values[values[i].items[0]].text == name;
  }
};

// Throws Error(Exit::checkpoint), which names the defect, or the name that is not read.
// is_harmless returns true for a MODULE.NAME that a pickle may hold.
Pickle parse_pickle(std::string_view text, bool (*is_harmless)(std::string_view name));

}  // namespace checkpoint
