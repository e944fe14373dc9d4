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
  std::string descr;  // "<f4"; for a structured type the text of the list, brackets included
  bool fortran = false;
  std::vector<int64_t> shape;
};
// Throws Error(Exit::checkpoint), which names the defect of the text.
NpyHeader parse_npy_header(std::string_view text);

// True if the values begin with their most significant bytes.
bool is_big_endian(std::string_view descr);
// Reverses the bytes of each value of `size` bytes; `bytes` is a multiple of `size`.
void reverse_bytes(char* values, int64_t bytes, int64_t size);

// Returns the type of "<f4", "<f8", "<f2", "<i8", of these with ">", and of "|V2" or "<V2", which
// mean bfloat16. NumPy has no bfloat16. Returns none for anything else.
std::optional<device::DType> weight_type(std::string_view descr);

}  // namespace checkpoint
