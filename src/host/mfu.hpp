// SPDX-License-Identifier: Apache-2.0
// What a step's FLOPs are compared with. Model FLOPs (models::Model::train_flops) are those of the
// mathematics, whatever is computed twice or left out; hardware FLOPs those of the products that
// ran. Both over time and the dense peak of all devices: MFU and HFU.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "config/table.hpp"

namespace host {

struct ProfileOptions {
  double peak_tflops = 0;
  bool forbid_waits = false;
  void bind(config::Table& t);
};

// FLOPs of products and attention that a queue has run so far.
int64_t hardware_flops(const device::Queue& queue);

// Dense TFLOP/s of a GPU by its name as the driver tells it, from its vendor's data sheet;
// `compute`: f32 (no tensor cores), tf32, bf16 or fp16. 0: not in the table, a part of a GPU (MIG),
// or another vendor's.
double listed_peak_tflops(const std::string& gpu, const std::string& compute);

struct Peak {
  double flops = 0;  // FLOP/s of all devices together; 0: not known
  std::string text;  // for the log
};
struct RankGpu {
  std::string name, uuid;
};
// The GPUs of all ranks, each counted once however many ranks share it. `peak_tflops`: of one of
// them, 0 = by the table.
Peak peak_of_gpus(const std::vector<RankGpu>& ranks, const std::string& compute,
                  double peak_tflops);
// Of this job: of its GPUs, or on CPUs measured in about `seconds`, with all ranks busy. All ranks
// call it.
Peak find_peak(comm::Comm& world, device::Kind kind, int threads, const std::string& compute,
               const ProfileOptions& options, double seconds);

// Explains a utilisation above 100 %; "" if neither is. `flops` is the peak, `measured` that this
// program measured it.
std::string utilisation_note(double mfu, double hfu, double flops, bool measured);

}  // namespace host
