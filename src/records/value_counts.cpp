// SPDX-License-Identifier: Apache-2.0
#include "records/value_counts.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "kernels/bf16_value.hpp"
#include "kernels/f16_value.hpp"

namespace records {
namespace {

constexpr uint32_t kSign = 0x80000000, kFraction = 0x7fffff;
constexpr int kFractionBits = 23;
constexpr int64_t kPart = 16384;  // values that a thread counts at a time

// Converts a part of a view to floats and calls `work` with it.
template <class Work>
void for_part(const device::View& values, int64_t begin, int64_t count, const Work& work) {
  if (values.type == device::DType::f32) return work(values.f32() + begin);
  float part[kPart];
  const auto* halves = static_cast<const uint16_t*>(values.data) + begin;
  using namespace kernels::loops;
  if (values.type == device::DType::bf16)
    for (int64_t i = 0; i < count; ++i) part[i] = to_float(Bf16{halves[i]});
  else
    for (int64_t i = 0; i < count; ++i) part[i] = to_float(F16{halves[i]});
  work(part);
}

}  // namespace

int bucket_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const int size = int((bits & ~kSign) >> (kFractionBits - 1));
  return bits & kSign ? -size : size;
}

double bucket_edge(int bucket) {
  return double(std::bit_cast<float>(uint32_t(std::abs(bucket)) << (kFractionBits - 1)));
}

BucketRange range_of(int bucket) {
  if (bucket == 0) return {-bucket_edge(1), bucket_edge(1)};
  // The edge after the last finite values is infinite as a float.
  const double near = bucket_edge(bucket), far = std::abs(bucket) == ValueCounts::kLast
                                                     ? 0x1p128
                                                     : bucket_edge(std::abs(bucket) + 1);
  return bucket > 0 ? BucketRange{near, far} : BucketRange{-far, -near};
}

ValueCounts::ValueCounts() : words_(kSums + 4 * size_t(kExponents)) {}

void ValueCounts::add(const device::View& values, int threads, float factor) {
  using device::DType;
  CHECK(values.type == DType::f32 || values.type == DType::bf16 || values.type == DType::f16,
        "values of type {} to count", device::name_of(values.type));
  const int64_t parts = (values.count + kPart - 1) / kPart;
  const int workers = int(std::clamp<int64_t>(parts, 1, threads));
  std::vector<ValueCounts> others(size_t(workers) - 1);
#pragma omp parallel for num_threads(workers) schedule(static)
  for (int w = 0; w < workers; ++w) {
    ValueCounts& mine = w == 0 ? *this : others[size_t(w) - 1];
    for (int64_t p = parts * w / workers; p < parts * (w + 1) / workers; ++p) {
      const int64_t begin = p * kPart, count = std::min(kPart, values.count - begin);
      for_part(values, begin, count, [&](const float* x) { mine.add_part(x, count, factor); });
    }
  }
  for (const ValueCounts& other : others) merge(other);
}

void ValueCounts::add_part(const float* values, int64_t count, float factor) {
  uint64_t* const words = words_.data();
  float low = float(low_), high = float(high_);
  for (int64_t i = 0; i < count; ++i) {
    const float x = values[i] * factor;
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t size = bits & ~kSign, exponent = size >> kFractionBits;
    if (exponent == kExponents) {
      ++words[kNonfinite];
      continue;
    }
    const bool negative = (bits & kSign) != 0;
    const int bucket = int(size >> (kFractionBits - 1));
    ++words[size_t(kLast + (negative ? -bucket : bucket))];
    const uint64_t mantissa = (size & kFraction) | (exponent ? kFraction + 1 : 0),
                   upper = mantissa >> 12, lower = mantissa & 0xfff;
    uint64_t* const sums = words + kSums + 4 * exponent;
    sums[0] += negative ? -mantissa : mantissa;
    sums[1] += upper * upper;
    sums[2] += upper * lower;
    sums[3] += lower * lower;
    low = std::min(low, x);
    high = std::max(high, x);
  }
  low_ = double(low);
  high_ = double(high);
}

void ValueCounts::merge(const ValueCounts& other) {
  for (size_t i = 0; i < words_.size(); ++i) words_[i] += other.words_[i];
  low_ = std::min(low_, other.low_);
  high_ = std::max(high_, other.high_);
}

int64_t ValueCounts::count() const {
  int64_t n = 0;
  for (int bucket = -kLast; bucket <= kLast; ++bucket) n += in_bucket(bucket);
  return n;
}

double ValueCounts::mean() const {
  double sum = 0;
  for (int e = 0; e < kExponents; ++e)
    sum += std::ldexp(double(int64_t(words_[kSums + 4 * size_t(e)])), std::max(e, 1) - 150);
  return sum / double(count());
}

double ValueCounts::rms() const {
  double sum = 0;
  for (int e = 0; e < kExponents; ++e) {
    const uint64_t* const sums = words_.data() + kSums + 4 * size_t(e);
    const double squares = 0x1p24 * double(sums[1]) + 0x1p13 * double(sums[2]) + double(sums[3]);
    sum += std::ldexp(squares, 2 * (std::max(e, 1) - 150));
  }
  return std::sqrt(sum / double(count()));
}

// Sums of doubles are exact up to 2^53, so ranks add halves of words.
void ValueCounts::collect(std::span<double> halves) const {
  for (size_t i = 0; i < words_.size(); ++i) {
    halves[2 * i] = double(words_[i] & 0xffffffff);
    halves[2 * i + 1] = double(words_[i] >> 32);
  }
}

void ValueCounts::take(std::span<const double> halves) {
  for (size_t i = 0; i < words_.size(); ++i)
    words_[i] = uint64_t(halves[2 * i]) + (uint64_t(halves[2 * i + 1]) << 32);
}

void ValueCounts::add_some(comm::Comm& world, std::span<ValueCounts> some) {
  const size_t each = 2 * some.front().words_.size();
  std::vector<double> halves(some.size() * each);
  for (size_t i = 0; i < some.size(); ++i)
    some[i].collect(std::span(halves).subspan(i * each, each));
  world.all_reduce({halves.data(), device::DType::f64, int64_t(halves.size())}).wait();
  for (size_t i = 0; i < some.size(); ++i) {
    some[i].take(std::span(halves).subspan(i * each, each));
    some[i].low_ = -world.max(-some[i].low_);
    some[i].high_ = world.max(some[i].high_);
  }
}

void ValueCounts::add_up(comm::Comm& world, std::span<ValueCounts> all) {
  constexpr size_t kMost = 64;  // at a time: 2 MiB
  for (size_t at = 0; at < all.size(); at += kMost)
    add_some(world, all.subspan(at, std::min(kMost, all.size() - at)));
}

}  // namespace records
