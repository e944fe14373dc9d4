// SPDX-License-Identifier: Apache-2.0
// The part of Metrics that writes metrics.h5.
#include <algorithm>
#include <bit>

#include "io/h5.hpp"
#include "records/long_file.hpp"
#include "records/metrics.hpp"
#include "records/tensor_rows.hpp"

namespace records {
namespace {

std::string dataset_name(std::string metric) {
  std::replace(metric.begin(), metric.end(), '/', '~');
  return metric;
}

}  // namespace

// Sets unit, doc and name of a column.
void Metrics::describe(io::H5File& file, const std::string& group, const std::string& name) const {
  const std::string dataset = group + "/" + dataset_name(name);
  const MetricInfo* info = find_declared(group, name);
  file.set_attribute(dataset, "unit", info ? info->unit : std::string("1"));
  if (info) file.set_attribute(dataset, "doc", info->doc);
  if (dataset_name(name) != name) file.set_attribute(dataset, "name", name);
}

void Metrics::write_h5() {
  std::lock_guard lock(io::h5_mutex());
  const std::string path = directory_ + "/metrics.h5";
  LongFile longs(stored_, groups_);
  io::H5File file = io::H5File::create(path, {.metadata_block = metadata_bytes(longs)});
  file.set_attribute("/", "format", int64_t{1});
  file.set_attribute("/", "attempts", attempt_);
  if (!longs.empty() && !jsonl_.waits())
    file.set_attribute("/", kJsonlCheck, jsonl_check(jsonl_.path(), jsonl_.length()));
  for (const auto& [name, text] : h5_.texts) file.set_attribute("/", name, text);
  for (const auto& [group, series] : groups_) {
    if (longs.has(group)) continue;
    if (is_histogram(group)) {
      write_histogram(file, group, series);
      continue;
    }
    int64_t rows = int64_t(series.steps.size());
    // This chunk keeps files of small runs small and gives long runs few chunks.
    int64_t chunk = std::clamp<int64_t>(int64_t(std::bit_ceil(uint64_t(rows))), 64, 16384);
    file.create_extendible(group + "/step", io::H5Type::i64, rows, chunk);
    file.write<int64_t>(group + "/step", series.steps);
    for (const auto& [name, column] : series.columns) {
      std::string dataset = group + "/" + dataset_name(name);
      file.create_extendible(dataset, io::H5Type::f64, rows, chunk);
      file.write<double>(dataset, column);
      describe(file, group, name);
    }
  }
  for (const auto& [attempt, facts] : h5_.facts) {
    const std::string group = fmt::format("/provenance/{}", attempt);
    file.make_group(group);
    for (const auto& [name, text] : facts) file.set_attribute(group, name, text);
  }
  if (longs.empty()) {
    file.close();
  } else {
    // The data of long groups lie behind all else, and never in memory.
    for (LongFile::Column& c : longs.columns()) {
      longs.place(file, c, c.group + "/" + dataset_name(c.name));
      if (c.name != LongFile::kSteps) describe(file, c.group, c.name);
    }
    longs.write(path, file.close_to_image());
    stored_ = longs.take(path, groups_);
  }
  h5_.file = io::id_of(path);
  h5_.stale = false;
}

// Returns how many bytes metadata take in front of the data of long groups; 0 without such groups.
int64_t Metrics::metadata_bytes(const LongFile& longs) const {
  if (longs.empty()) return 0;
  constexpr int64_t kRoom = int64_t{64} << 10, kOfColumn = 4096;
  size_t texts = 0, columns = longs.columns().size();
  for (const auto& [name, series] : groups_) columns += series.columns.size() + 2;
  for (const auto& [name, text] : h5_.texts) texts += text.size() + 512;
  for (const auto& [attempt, facts] : h5_.facts)
    for (const auto& [name, text] : facts) texts += text.size() + 512;
  return kRoom + kOfColumn * int64_t(columns) + 2 * int64_t(texts);
}

}  // namespace records
