// SPDX-License-Identifier: Apache-2.0
// The version of the library that runs products and convolutions on CPUs. Bits differ between
// versions.
#pragma once

#include <string>

namespace kernels {

std::string onednn_version();  // as it was loaded, for example "2.6.3"

}  // namespace kernels
