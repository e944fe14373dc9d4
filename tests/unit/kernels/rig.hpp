// SPDX-License-Identifier: Apache-2.0
// Tools that the tests of the ops share: buffers between guard bands, seeded numbers, comparison
// with double references, the instruction sets and thread counts to try, and the list of tested
// ops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "kernels/cpu/instructions.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/testing.hpp"
#include "mirror.hpp"

namespace rig {

using device::Queue;
using device::View;
using kernels::Write;

// Numbers are pure functions of (name, index), so tests do not depend on each other's order. Most
// tests use the same numbers again, and drawing them takes longer than many ops, so they are kept.
inline std::vector<float> normals(int64_t count, const std::string& name, double scale = 1,
                                  double shift = 0) {
  thread_local std::map<std::string, std::vector<double>> drawn;
  std::vector<double>& known = drawn[name];
  const base::Stream stream(20231, name);
  while (int64_t(known.size()) < count) known.push_back(stream.normal(known.size()));
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = float(shift + scale * known[i]);
  return out;
}
inline std::vector<int32_t> integers(int64_t count, int64_t begin, int64_t end,
                                     const std::string& name) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  base::Stream stream(20232, name);
  for (int64_t i = 0; i < count; ++i)
    out[size_t(i)] = int32_t(begin + int64_t(stream.uniform64(uint64_t(i)) * double(end - begin)));
  return out;
}
inline std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// A tensor between guard bands of NaN with a known pattern. Reading a guard spoils a result, and
// writing one shows.
class Tensor {
 public:
  static constexpr uint32_t kGuard = 0x7fc0dead;
  static constexpr size_t kBand = 64;

  // `shift` is the distance in floats from 64-byte alignment, as slices of bigger tensors may have.
  explicit Tensor(int64_t count, size_t shift = 0) : count_(size_t(count)), shift_(shift) {
    size_t all = count_ + 2 * kBand + 16;
    memory_ = static_cast<float*>(std::aligned_alloc(64, (all * 4 + 63) / 64 * 64));
    for (size_t i = 0; i < all; ++i) memory_[i] = std::bit_cast<float>(kGuard);
  }
  explicit Tensor(const std::vector<float>& values, size_t shift = 0)
      : Tensor(int64_t(values.size()), shift) {
    std::copy(values.begin(), values.end(), data());
  }
  Tensor(const Tensor&) = delete;
  ~Tensor() {
    EXPECT_TRUE(intact()) << "a guard band was written";
    std::free(memory_);
  }
  float* data() const { return memory_ + kBand + shift_; }
  View view() const { return device::view(data(), int64_t(count_)); }
  operator View() const { return view(); }
  std::vector<float> values() const { return {data(), data() + count_}; }
  float operator[](int64_t i) const { return data()[i]; }

 private:
  bool intact() const {
    for (size_t i = 0; i < kBand + shift_; ++i)
      if (std::bit_cast<uint32_t>(memory_[i]) != kGuard) return false;
    for (size_t i = kBand + shift_ + count_; i < count_ + 2 * kBand + 16; ++i)
      if (std::bit_cast<uint32_t>(memory_[i]) != kGuard) return false;
    return true;
  }
  float* memory_;
  size_t count_, shift_;
};

// Expects |actual - expected| <= tolerance * largest |expected|, or times `least` where all values
// cancel.
inline void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                         double tolerance, const std::string& what, double least = 0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = least, worst = 0;
  size_t where = 0;
  for (double e : expected) largest = std::max(largest, std::abs(e));
  for (size_t i = 0; i < actual.size(); ++i) {
    double error = std::abs(double(actual[i]) - expected[i]);
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
    if (std::isnan(error)) break;
  }
  EXPECT_TRUE(worst <= tolerance * largest || (worst == 0 && largest == 0))
      << what << ": element " << where << " of " << actual.size() << " is " << actual[where]
      << ", not " << expected[where] << "; error " << worst << " against " << tolerance << " of "
      << largest;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Returns the thread counts that a test of an op tries, or only the first on CUDA, which does not
// use these threads.
inline std::vector<int> thread_counts(std::vector<int> counts) {
  if (on_cuda()) counts.resize(1);
  return counts;
}
// Returns the values of force_bf16_emulation() that a test tries, or only false on CUDA, which
// ignores it.
inline std::vector<bool> bf16_ways() {
  return on_cuda() ? std::vector<bool>{false} : std::vector<bool>{false, true};
}

// Runs `body` with the vector loops of each instruction set of this CPU, or once on CUDA, which has
// none.
template <class F>
void for_each_table(const F& body) {
  if (on_cuda()) return body();
  for (const auto* table : kernels::vector_tables()) {
    SCOPED_TRACE(table->name);
    kernels::seams::force_vector_table(table);
    body();
  }
  kernels::seams::force_vector_table(nullptr);
}

// `outputs(queue)` runs an op and returns its results. They must have the same bits for 1, 2 and 3
// threads, or twice on CUDA.
template <class F>
void expect_same_bits(const F& outputs, bool fixed_order) {
  std::vector<float> first;
  for (int threads : on_cuda() ? std::vector<int>{1, 1} : std::vector<int>{1, 2, 3}) {
    TestQueue queue(threads, fixed_order);
    std::vector<float> now = outputs(queue);
    if (first.empty()) first = now;
    EXPECT_TRUE(same_bits(now, first)) << threads << " threads differ from one";
  }
}
// Runs expect_same_bits with every instruction set.
template <class F>
void expect_same_bits_for_all_threads(const F& outputs) {
  for_each_table([&] { expect_same_bits(outputs, false); });
}

// Returns the text of the error that a call throws.
template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

#define EXPECT_ERROR(call, ...)                                                                   \
  do {                                                                                            \
    std::string text = rig::error_of([&] { call; });                                              \
    for (const char* part : {__VA_ARGS__}) EXPECT_NE(text.find(part), std::string::npos) << text; \
  } while (0)

// Ops that a case has run; coverage_test.cpp compares them with ops.def.
inline std::set<std::string>& covered() {
  static std::set<std::string> names;
  return names;
}
#define COVERS(name)                                 \
  [[maybe_unused]] static const bool covers_##name = \
      rig::covered().insert(kernels::name_of(kernels::Op::name)).second

}  // namespace rig
