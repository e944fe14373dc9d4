// SPDX-License-Identifier: Apache-2.0
// The names of a data set's class numbers, where the deck gives them.
#pragma once

#include <optional>
#include <string>

#include "data/options.hpp"
#include "data/sources/class_names.hpp"

namespace data {

struct ClassList {
  std::string key;  // key of the deck that names the list: "data.val.path"
  ClassNames names;
};

// Returns the list that gives `field` of a data set, after all ops, its numbers; nothing if the
// numbers come from the data, or if the list is not on this machine.
std::optional<ClassList> class_list_of(const Sections& sections, const std::string& name,
                                       const std::string& field);

// Returns the first number that stands for two classes; -1 if there is none. One list may be
// shorter.
int64_t first_difference(const ClassNames& one, const ClassNames& other);

}  // namespace data
