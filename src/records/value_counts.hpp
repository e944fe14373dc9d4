// SPDX-License-Identifier: Apache-2.0
// Counts the values of a tensor by size. Ranks count their parts and add them up as integers. So
// counts, mean and root mean square do not depend on which rank counts what, or in which order: the
// same values give the same bits on every mesh.
//
// A bucket reaches from 2^k to 1.5 x 2^k, or from there to 2^(k+1). Its number has the sign of its
// values and grows with their size. Bucket 0 holds zeros, and values below 2^-127 of either sign.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "comm/comm.hpp"

namespace records {

// Returns the number of the bucket of a finite value.
int bucket_of(float value);
// Returns the least absolute value of a bucket with this number or its negative.
double bucket_edge(int bucket);
struct BucketRange {
  double low, high;
};
BucketRange range_of(int bucket);

class ValueCounts {
 public:
  static constexpr int kLast = 509;  // bucket of the largest finite values

  ValueCounts();
  // Counts values of f32, bf16 or f16, in host memory. f32 values are first multiplied by `factor`.
  void add(const device::View& values, int threads, float factor = 1);

  // All results below but nonfinite() are about finite values.
  int64_t count() const;
  int64_t nonfinite() const { return int64_t(words_[kNonfinite]); }
  int64_t in_bucket(int bucket) const { return int64_t(words_[size_t(kLast + bucket)]); }
  // inf and -inf without values; both zeros are +0
  double min() const { return low_ + 0.0; }
  double max() const { return high_ + 0.0; }
  double mean() const;
  double rms() const;

  // Gives every rank the counts of all ranks. All ranks call, with equally many.
  static void add_up(comm::Comm& world, std::span<ValueCounts> all);

 private:
  // Words that are added up: counts by bucket, of values that are not finite, and four sums for
  // each exponent. A value is mantissa x 2^(exponent - 150), with an integer mantissa of 24 bits in
  // two halves. The four sums are of the signed mantissas, and of high x high, high x low and low x
  // low. They hold 2^39 values.
  static constexpr size_t kNonfinite = 2 * kLast + 1, kSums = kNonfinite + 1;
  static constexpr int kExponents = 255;

  void add_part(const float* values, int64_t count, float factor);
  void merge(const ValueCounts& other);
  void collect(std::span<double> halves) const;
  void take(std::span<const double> halves);
  static void add_some(comm::Comm& world, std::span<ValueCounts> some);

  std::vector<uint64_t> words_;
  double low_ = std::numeric_limits<double>::infinity(),
         high_ = -std::numeric_limits<double>::infinity();
};

}  // namespace records
