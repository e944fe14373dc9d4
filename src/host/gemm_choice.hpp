// SPDX-License-Identifier: Apache-2.0
// Implements run.gemm_search: chooses the algorithms of products on GPUs. All ranks and all jobs of
// a run use the same choices.
#pragma once

#include <functional>
#include <string>

#include "comm/comm.hpp"
#include "device/queue.hpp"

namespace host {

// Returns EngineOptions::choose_products; empty if nothing is searched. Rank 0 reads the choices of
// `file` ("": no file) if they were made for this GPU. It times the missing ones, writes all back
// and sends them to the other ranks. All ranks call the returned function.
std::function<void(device::Queue&)> product_chooser(comm::Comm& world, const std::string& file,
                                                    bool writes = true);

}  // namespace host
