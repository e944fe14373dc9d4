// SPDX-License-Identifier: Apache-2.0
// The header of a NumPy array: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/types.hpp"

namespace checkpoint {

struct NpyHeader {
  std::string descr;  // "<f4"; of a structured type everything between the brackets
  bool fortran = false;
  std::vector<int64_t> shape;
};
// Error(Exit::checkpoint) says what is wrong with the text.
NpyHeader parse_npy_header(std::string_view text);

// "<f4", "<f8", "<f2", and "|V2" or "<V2" for bfloat16, which NumPy does not know; none for
// anything else.
std::optional<device::DType> weight_type(std::string_view descr);

}  // namespace checkpoint
