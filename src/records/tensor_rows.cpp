// SPDX-License-Identifier: Apache-2.0
#include "records/tensor_rows.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>

namespace records {
namespace {

constexpr std::string_view kHistograms = "/histograms/", kRms = "/rms/";
// The datasets about buckets.
constexpr const char *kNumbers = "bucket", *kLow = "low", *kHigh = "high", *kCounts = "counts";

std::string bucket_name(int number) { return fmt::format("b{}", number); }

std::optional<int> bucket_named(const std::string& name) {
  int number = 0;
  const char* const end = name.data() + name.size();
  if (name.size() < 2 || name.front() != 'b') return {};
  const auto [stop, error] = std::from_chars(name.data() + 1, end, number);
  if (stop != end || error != std::errc() || std::abs(number) > ValueCounts::kLast) return {};
  return number;
}

}  // namespace

std::string histogram_rows(const std::string& kind, const std::string& tensor) {
  return fmt::format("{}{}/{}", kHistograms, kind, tensor);
}

std::string rms_rows(const std::string& kind) { return fmt::format("{}{}", kRms, kind); }

bool is_histogram(const std::string& group) { return group.starts_with(kHistograms); }

bool is_rms(const std::string& group) { return group.starts_with(kRms); }

std::string tensor_name(const std::string& group) {
  return group.substr(is_rms(group) ? kRms.size() : kHistograms.size());
}

MetricValues histogram_values(const ValueCounts& counts) {
  MetricValues row = {{"count", double(counts.count())}, {"nonfinite", double(counts.nonfinite())}};
  if (counts.count() > 0)
    row.insert(row.end(), {{"min", counts.min()},
                           {"max", counts.max()},
                           {"mean", counts.mean()},
                           {"rms", counts.rms()}});
  for (int bucket = -ValueCounts::kLast; bucket <= ValueCounts::kLast; ++bucket)
    if (const int64_t n = counts.in_bucket(bucket); n > 0)
      row.emplace_back(bucket_name(bucket), double(n));
  return row;
}

std::vector<Bucket> buckets_of(const MetricValues& values) {
  std::vector<Bucket> out;
  for (const auto& [name, count] : values)
    if (const std::optional<int> number = bucket_named(name)) out.push_back({*number, count});
  std::sort(out.begin(), out.end(),
            [](const Bucket& a, const Bucket& b) { return a.number < b.number; });
  return out;
}

void write_histogram(io::H5File& file, const std::string& group, const MetricSeries& series) {
  const size_t rows = series.steps.size();
  file.create<int64_t>(group + "/step", series.steps, {int64_t(rows)});
  std::map<int, const std::vector<double>*> buckets;
  for (const auto& [name, column] : series.columns)
    if (const std::optional<int> number = bucket_named(name))
      buckets[*number] = &column;
    else
      file.create<double>(group + "/" + name, column, {int64_t(rows)});
  if (buckets.empty()) return;
  std::vector<int64_t> numbers, counts(rows * buckets.size());
  std::vector<double> low, high;
  for (const auto& [number, column] : buckets) {
    for (size_t r = 0; r < rows; ++r)
      if (!std::isnan((*column)[r]))
        counts[r * buckets.size() + numbers.size()] = int64_t((*column)[r]);
    numbers.push_back(number);
    low.push_back(range_of(number).low);
    high.push_back(range_of(number).high);
  }
  const auto width = int64_t(buckets.size());
  file.create<int64_t>(group + "/" + kNumbers, numbers, {width});
  file.create<double>(group + "/" + kLow, low, {width});
  file.create<double>(group + "/" + kHigh, high, {width});
  file.create<int64_t>(group + "/" + kCounts, counts, {int64_t(rows), width});
}

bool is_of_buckets(const std::string& group, const std::string& dataset) {
  return is_histogram(group) &&
         (dataset == kNumbers || dataset == kLow || dataset == kHigh || dataset == kCounts);
}

void read_buckets(const io::H5File& file, const std::string& group, MetricSeries& series) {
  const auto numbers = file.read<int64_t>(group + "/" + kNumbers),
             counts = file.read<int64_t>(group + "/" + kCounts);
  const size_t width = numbers.size(), rows = width ? counts.size() / width : 0;
  for (size_t b = 0; b < width; ++b) {
    std::vector<double>& column = series.columns[bucket_name(int(numbers[b]))];
    column.assign(rows, std::numeric_limits<double>::quiet_NaN());
    for (size_t r = 0; r < rows; ++r)
      if (const int64_t n = counts[r * width + b]; n > 0) column[r] = double(n);
  }
}

}  // namespace records
