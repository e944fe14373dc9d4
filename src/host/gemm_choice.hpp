// SPDX-License-Identifier: Apache-2.0
// run.gemm_search: which algorithms the products on GPUs run with, the same on all ranks and in all
// jobs of a run.
#pragma once

#include <functional>
#include <string>

#include "comm/comm.hpp"
#include "device/queue.hpp"

namespace host {

// For EngineOptions::choose_products. Rank 0 takes the choices of
// `file` (none: "") if they are for this GPU, times what they lack, writes them back and tells the
// others. All ranks call what is returned.
std::function<void(device::Queue&)> product_chooser(comm::Comm& world, const std::string& file);

}  // namespace host
