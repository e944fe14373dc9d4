// SPDX-License-Identifier: Apache-2.0
// What this rank can do, measured in this process while every rank is busy with the same: what a
// step's time is compared with.
#pragma once

#include <vector>

#include "comm/comm.hpp"
#include "kernels/gemm.hpp"

namespace host {

double median_of(const std::vector<double>& sorted);

// FLOP/s of a square product of operands of this type that fits the caches, found in about
// `seconds`.
double measure_peak(comm::Comm& world, int threads, device::DType type, double seconds);

// Seconds of one call of each product alone, called again and again (the median); `seconds` for
// each of them.
std::vector<double> measure_gemms(comm::Comm& world, int threads,
                                  const std::vector<kernels::GemmUse>& shapes, double seconds);

// Seconds that a fixed number of multiply-adds in registers take now (some tenths of a
// millisecond), on the slowest thread of all ranks. Where a hypervisor or a sibling of a core takes
// part of it, this grows, though no CPU time is counted as stolen.
double probe_cores(comm::Comm& world, int threads);

// Seconds of MPI's all-reduce of so many bytes of floats over the world, the median of some.
double measure_all_reduce(comm::Comm& world, int64_t bytes);

// Bytes/s, read and written ones added up, of copying more than the caches hold.
double measure_copy(comm::Comm& world, int threads, double seconds);

}  // namespace host
