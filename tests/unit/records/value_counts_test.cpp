// SPDX-License-Identifier: Apache-2.0
// Tests buckets, exact sums that no order of adding changes, and the two forms of a histogram.
#include "records/value_counts.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>

#include "io/files.hpp"
#include "records/metrics.hpp"
#include "records/tensor_rows.hpp"

namespace {

using records::ValueCounts;
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> made_values(size_t count) {
  std::vector<float> values(count);
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    const int exponent = int(state >> 20) % 40 - 30;
    value = std::ldexp(float(state >> 8) * 0x1p-24f, exponent) * (state & 1 ? 1.0f : -1.0f);
  }
  return values;
}

ValueCounts counts_of(const std::vector<float>& values, int threads = 1) {
  ValueCounts counts;
  counts.add(device::view(values.data(), int64_t(values.size())), threads);
  return counts;
}

TEST(Buckets, edges_are_powers_of_two_and_halves_between) {
  EXPECT_EQ(records::bucket_of(1.0f), records::bucket_of(std::nextafter(1.5f, 0.0f)));
  EXPECT_EQ(records::bucket_of(1.5f), records::bucket_of(1.0f) + 1);
  EXPECT_EQ(records::bucket_of(2.0f), records::bucket_of(1.0f) + 2);
  EXPECT_EQ(records::bucket_of(-1.0f), -records::bucket_of(1.0f));
  EXPECT_EQ(records::bucket_edge(records::bucket_of(1.0f)), 1.0);
  EXPECT_EQ(records::bucket_edge(records::bucket_of(1.7f)), 1.5);
  EXPECT_EQ(records::bucket_of(0.0f), 0);
  EXPECT_EQ(records::bucket_of(-0.0f), 0);
  EXPECT_EQ(records::bucket_of(std::numeric_limits<float>::max()), ValueCounts::kLast);
  EXPECT_EQ(records::range_of(ValueCounts::kLast).high, 0x1p128);
  for (int bucket = -ValueCounts::kLast; bucket < ValueCounts::kLast; ++bucket)
    EXPECT_EQ(records::range_of(bucket).high, records::range_of(bucket + 1).low) << bucket;
  for (const float value : made_values(1000)) {
    const records::BucketRange range = records::range_of(records::bucket_of(value));
    EXPECT_LE(range.low, double(value));
    EXPECT_GE(range.high, double(value));
  }
}

TEST(Counts, are_those_of_the_values) {
  const std::vector<float> values = {1, -1, 3, 0, -0.0f, 1e-45f, kInf, -kInf, std::nanf("")};
  const ValueCounts counts = counts_of(values);
  EXPECT_EQ(counts.count(), 6);
  EXPECT_EQ(counts.nonfinite(), 3);
  EXPECT_EQ(counts.min(), -1);
  EXPECT_EQ(counts.max(), 3);
  EXPECT_EQ(counts.in_bucket(records::bucket_of(1)), 1);
  EXPECT_EQ(counts.in_bucket(0), 3);
  EXPECT_EQ(counts.mean(), 0.5);
  EXPECT_EQ(counts.rms(), std::sqrt(11.0 / 6));
}

TEST(Counts, zeros_have_one_sign) {
  EXPECT_FALSE(std::signbit(counts_of({-0.0f}).min()));
  EXPECT_FALSE(std::signbit(counts_of({0.0f, -0.0f}).max()));
}

TEST(Counts, read_other_types_and_a_factor) {
  const uint16_t bf16[] = {0x3f80, 0xc000}, f16[] = {0x3c00, 0xc000};  // 1, -2
  for (const auto& [data, type] :
       {std::pair(bf16, device::DType::bf16), {f16, device::DType::f16}}) {
    ValueCounts counts;
    counts.add({const_cast<uint16_t*>(data), type, 2}, 1);
    EXPECT_EQ(counts.min(), -2);
    EXPECT_EQ(counts.max(), 1);
  }
  const std::vector<float> values = {8, 16};
  ValueCounts counts;
  counts.add(device::view(values.data(), 2), 1, 0.125f);
  EXPECT_EQ(counts.mean(), 1.5);
}

TEST(Counts, do_not_depend_on_order_or_threads) {
  std::vector<float> values = made_values(100'000);
  const ValueCounts one = counts_of(values), four = counts_of(values, 4);
  std::reverse(values.begin(), values.end());
  const ValueCounts reversed = counts_of(values);
  ValueCounts parts;
  for (size_t at = 0; at < values.size(); at += 1000)
    parts.add(device::view(values.data() + at, 1000), 1);
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += double(value);
    squares += double(value) * double(value);
  }
  EXPECT_NEAR(one.mean(), sum / 1e5, 1e-12 * std::sqrt(squares / 1e5));
  EXPECT_NEAR(one.rms(), std::sqrt(squares / 1e5), 1e-12 * one.rms());
  for (const ValueCounts& other : {four, reversed, parts})
    EXPECT_EQ(records::histogram_values(other), records::histogram_values(one));
}

// A histogram is read back from either file, and goes with the rows after a restored step.
TEST(HistogramRows, survive_a_restart) {
  std::string directory = testing::TempDir() + "trainer_histograms_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string tensor = "decoder/layer_0/kernel",
                    group = records::histogram_rows("gradients", tensor),
                    roots = records::rms_rows("weights");
  auto row_of = [](int64_t step) {
    const auto value = float(step);
    return records::histogram_values(counts_of({value, -value, 0.5f, 0}));
  };
  auto open = [&](int64_t restored) {
    return std::make_unique<records::Metrics>(directory, restored, 1, true, records::LogOptions());
  };
  auto write = [&](records::Metrics& metrics, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      metrics.tensor_row(group, step, row_of(step));
      metrics.tensor_row(roots, step, {{tensor, 1.0 / double(step)}, {"t", 2}});
    }
  };
  write(*open(0), 1, 6);
  write(*open(4), 5, 8);
  for (const char* lost : {"none", "/metrics.h5", "/metrics.jsonl"}) {
    io::remove_file(directory + lost);
    open(8).reset();
    int64_t next = 1, next_root = 1;
    for (const records::MetricHistory::Entry& e : records::read_metric_history(directory).entries) {
      if (e.row.group == group) {
        EXPECT_EQ(e.row.step, next++);
        std::map<std::string, double> found(e.row.values.begin(), e.row.values.end());
        const records::MetricValues wanted = row_of(e.row.step);
        EXPECT_EQ(found, (std::map<std::string, double>(wanted.begin(), wanted.end()))) << lost;
      } else if (e.row.group == roots) {
        EXPECT_EQ(e.row.step, next_root++);
        EXPECT_EQ(e.row.values.size(), 2u);
      }
    }
    EXPECT_EQ(next, 9) << lost;
    EXPECT_EQ(next_root, 9) << lost;
  }
  const io::H5File file = io::H5File::open(directory + "/metrics.h5");
  EXPECT_EQ(file.info(group + "/counts").shape[0], 8);
  EXPECT_EQ(file.read<double>(group + "/rms")[2], std::sqrt((9 + 9 + 0.25) / 4));
  io::remove_tree(directory);
}

}  // namespace
