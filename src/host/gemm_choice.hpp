// SPDX-License-Identifier: Apache-2.0
// Implements run.gemm_search: chooses the algorithms of products on GPUs. All ranks and all jobs of
// a run use the same choices.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "comm/comm.hpp"
#include "device/queue.hpp"

namespace host {

enum class GemmSearch { automatic, off, on };
inline constexpr std::pair<const char*, GemmSearch> kGemmSearchNames[] = {
    {"auto", GemmSearch::automatic}, {"off", GemmSearch::off}, {"on", GemmSearch::on}};

struct ChooserOptions {
  bool times = true;   // times shapes without a choice; if false, uses their first proposal
  bool writes = true;  // writes the choices to the file
  // If ranks have different GPUs or libraries: true: an error; false: a warning, first proposals.
  bool needs_one_platform = true;
};

// Returns EngineOptions::choose_products. Rank 0 reads the choices of `file` ("": no file) if they
// were made for this GPU. It times the missing ones, writes all back and sends them to the other
// ranks. All ranks call the returned function.
std::function<void(device::Queue&)> product_chooser(comm::Comm& world, const std::string& file,
                                                    const ChooserOptions& options);

}  // namespace host
