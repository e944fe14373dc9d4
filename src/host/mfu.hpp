// SPDX-License-Identifier: Apache-2.0
// Computes MFU and HFU: FLOP/s of a step over the dense peak of all devices. MFU counts the model
// FLOPs of the mathematics (models::Model::train_flops), even if products are computed twice or
// left out. HFU counts the hardware FLOPs of the products that ran.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "config/table.hpp"
#include "host/compute.hpp"

namespace host {

struct ProfileOptions {
  double peak_tflops = 0;
  bool forbid_waits = false;
  void bind(config::Table& t);
};

// FLOPs of products and attention that a queue has run so far.
int64_t hardware_flops(const device::Queue& queue);

// Returns the dense TFLOP/s of a GPU from its vendor's data sheet, by the name that the driver
// reports. `compute` is f32 (no tensor cores), tf32, bf16 or fp16. Returns 0 for a GPU outside the
// table, a part of a GPU (MIG), or another vendor's.
double listed_peak_tflops(const std::string& gpu, Compute compute);

struct Peak {
  double flops = 0;  // FLOP/s of all devices together; 0: not known
  std::string text;  // for the log
};
struct RankGpu {
  std::string name, uuid;
};
// Returns the peak of the GPUs of all ranks. A GPU that ranks share counts once. `peak_tflops` is
// the peak of one GPU; 0 = from the table.
Peak peak_of_gpus(const std::vector<RankGpu>& ranks, Compute compute, double peak_tflops);
// Returns the peak of this job's GPUs. On CPUs it is measured in about `seconds` while all ranks
// are busy. All ranks call.
Peak find_peak(comm::Comm& world, device::Kind kind, int threads, Compute compute,
               const ProfileOptions& options, double seconds);

// Explains a utilisation above 100 %; returns "" if neither exceeds it. `flops` is the peak;
// `measured` is true if this program measured the peak.
std::string utilisation_note(double mfu, double hfu, double flops, bool measured);

}  // namespace host
