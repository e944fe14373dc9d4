// SPDX-License-Identifier: Apache-2.0
#include "eval/features/labelled_features.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/memory_limit.hpp"
#include "base/text.hpp"

namespace eval {
namespace {

const models::Tap& tap_of(const Context& context) {
  return context.pass_as<models::EmbedPass>().taps().at(0);
}

}  // namespace

std::unique_ptr<models::ForwardPass> make_tap_pass(const models::Model& model,
                                                   const std::string& tap) {
  auto* embedder = dynamic_cast<const models::Embedder*>(&model);
  return embedder ? embedder->make_embed_pass({tap.empty() ? embedder->feature_tap() : tap})
                  : nullptr;
}

int32_t label_of(const data::Dataset& set, const models::HostBatch& batch, int64_t i) {
  const int32_t label = batch.features.at("label").i32()[i];
  if (label < 0 || label >= kMaxClasses)
    base::fail(base::Exit::data, "[data.{}]: label {} of {} is not in [0, {})", set.name(), label,
               set.key(batch.first_position + i), kMaxClasses);
  return label;
}

int64_t feature_count(const Context& context) { return tap_of(context).count(); }

FeatureTable::FeatureTable(const Context& context, int64_t n, int64_t width, int64_t more)
    : rows(n),
      features(width),
      answers(more),
      memory_(std::make_shared<comm::NodeBuffer>(context.world.node_buffer(
          *context.ledger, kFeatureCategory, n * (width + more) * int64_t(sizeof(float))))),
      x_(static_cast<float*>(memory_->memory.data())),
      written_(size_t(n), 0) {}

void FeatureTable::put(int64_t i, const float* numbers) {
  std::copy_n(numbers, features, x_ + i * features);
  std::copy_n(numbers + features, answers, x_ + rows * features + i * answers);
}

void FeatureTable::share(comm::Comm& world) {
  if (!memory_->only) exchange(world);
  world.barrier();  // after the last write
  written_ = {};
}

// Adds up the rows of all ranks. A rank gives zeros for rows that it did not write, and x + 0 is
// exact, so this only copies. The first rank of a node writes all rows; by then the other ranks
// have given their rows.
void FeatureTable::exchange(comm::Comm& world) {
  constexpr int64_t kPart = 1 << 22;  // numbers that are exchanged at once
  const int64_t numbers = features + answers, at_once = std::max<int64_t>(1, kPart / numbers);
  std::vector<float> part(size_t(std::min(at_once, rows) * numbers));
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t n = std::min(at_once, rows - first);
    std::fill(part.begin(), part.end(), 0.0f);
    for (int64_t i = 0; i < n; ++i)
      if (written_[size_t(first + i)]) {
        std::copy_n(row(first + i), features, part.begin() + i * numbers);
        std::copy_n(answers_of(first + i), answers, part.begin() + i * numbers + features);
      }
    world.all_reduce(device::view(part.data(), n * numbers)).wait();
    for (int64_t i = 0; memory_->first && i < n; ++i) put(first + i, part.data() + i * numbers);
  }
}

LabelledRows labelled_rows(const FeatureTable& table) {
  const float* labels = table.answers_of(0);
  LabelledRows rows{table.x(), table.features, {labels, labels + table.rows}, 0};
  rows.classes = 1 + int64_t(*std::max_element(rows.labels.begin(), rows.labels.end()));
  return rows;
}

void refuse_nonfinite(const Context& context, const data::Dataset& set, const FeatureTable& table) {
  const float* end = table.row(table.rows);
  const float* bad = std::find_if(table.x(), end, [](float v) { return !std::isfinite(v); });
  if (bad == end) return;
  throw base::Error(
      base::Exit::nonfinite,
      fmt::format("[data.{}]: the features \"{}\" of {} are not finite, so nothing can be fitted "
                  "to them: this sample's values are not finite, or the weights have diverged",
                  set.name(), tap_of(context).name,
                  base::one_line(set.key((bad - table.x()) / table.features % set.size()))),
      true);
}

void need_feature_memory(const Context& context, const data::Dataset& set, const std::string& keys,
                         int64_t bytes) {
  const std::string& tap = tap_of(context).name;
  const std::string purpose =
      fmt::format("the features \"{}\" of {} images and the work on them (tap, {}data.{}.limit)",
                  tap, set.size(), keys, set.name());
  base::need_address_space(bytes, purpose);
  const int64_t memory = int64_t(::sysconf(_SC_PHYS_PAGES)) * int64_t(::sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    base::fail(base::Exit::mesh, "{} need {} MiB, and this machine has {} MiB", purpose,
               bytes >> 20, memory >> 20);
}

}  // namespace eval
