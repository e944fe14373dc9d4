// SPDX-License-Identifier: Apache-2.0
// The names of a data set's classes by number, if the deck gives them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/options.hpp"
#include "data/sources/class_names.hpp"

namespace data {

struct ClassList {
  std::string key;  // key of the deck that names the list: "data.val.path"
  ClassNames names;
};

// Returns the list of names whose numbers are in `field` of a data set, after all ops. Returns
// nothing if the numbers come from the data, or if the list is not on this machine.
std::optional<ClassList> class_list_of(const Sections& sections, const std::string& name,
                                       const std::string& field);

// Returns the first number that the two lists give to different classes; -1 if there is none. One
// list may be shorter.
int64_t first_difference(const std::vector<std::string>& one,
                         const std::vector<std::string>& other);
// Returns the first number of `other` whose class has another number in `one`; -1 if there is none.
int64_t first_moved(const std::vector<std::string>& one, const std::vector<std::string>& other);
// `texts` describe the classes `names` in their order. Returns the first number whose text is the
// name of another class, if the texts cannot be in the order of the names. This is so if some texts
// are exchanged, or if more texts name another class than their own. Returns -1 otherwise.
// Capitals, spaces and _ or - for a space do not count.
int64_t text_of_another(const std::vector<std::string>& texts,
                        const std::vector<std::string>& names);

}  // namespace data
