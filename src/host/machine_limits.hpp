// SPDX-License-Identifier: Apache-2.0
// Measures what this rank can do while every rank is busy with the same measurement. Step times are
// compared with these numbers.
#pragma once

#include <vector>

#include "comm/comm.hpp"
#include "kernels/gemm.hpp"

namespace host {

double median_of(const std::vector<double>& sorted);

// Returns the FLOP/s of a square product that fits the caches, with operands of this type. The
// search takes about `seconds`.
double measure_peak(comm::Comm& world, int threads, device::DType type, double seconds);

// Returns the median seconds of one call of each product, called repeatedly with nothing else
// running. Each product is measured for `seconds`.
std::vector<double> measure_gemms(comm::Comm& world, int threads,
                                  const std::vector<kernels::GemmUse>& shapes, double seconds);

// Returns the seconds of a fixed number of multiply-adds in registers (some tenths of a
// millisecond), on the slowest thread of all ranks. The time grows if a hypervisor or the other
// thread of the core takes a share that no counter of stolen time shows.
double probe_cores(comm::Comm& world, int threads);

// Returns the median seconds of an all-reduce of this many bytes of floats over the world. The
// buffer is of the kind that gradients use (Comm::shared_buffer).
double measure_all_reduce(comm::Comm& world, int64_t bytes);

// Returns bytes/s, read and written bytes added up, of copying more than the caches hold.
double measure_copy(comm::Comm& world, int threads, double seconds);

}  // namespace host
