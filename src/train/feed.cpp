// SPDX-License-Identifier: Apache-2.0
#include "train/feed.hpp"

#include <algorithm>
#include <cmath>

#include "base/log_components.hpp"
#include "data/stream/host_batch.hpp"

namespace train {

void Feed::open_bad_samples() {
  const Job& job = attempt_.job;
  std::map<std::string, int64_t> sizes;
  for (const data::Mixture::Part& p : job.data().parts())
    sizes[p.dataset->name()] = p.dataset->size();
  for (const std::string& name : attempt_.recipe.evaluated_sets())
    sizes[name] = job.evaluated_size(name);
  options_ = attempt_.recipe.data.loader;
  bad_samples_ = std::make_unique<records::BadSamples>(
      attempt_.world(), attempt_.directory->logs() + "/bad_samples.txt",
      options_.max_bad_sample_fraction, std::move(sizes));
  options_.log = bad_samples_->log();
}

void Feed::read_ahead(int64_t step, int64_t stream_offset) {
  if (step >= attempt_.total) return;
  loader_.reset();
  const Job& job = attempt_.job;
  loader_ = std::make_unique<data::Loader>(
      job.data(), options_,
      training_plan(attempt_.engine().geometry(), job.mesh(), step, attempt_.total, stream_offset));
  ahead_ = {step, stream_offset};
}

void Feed::open_loader() {
  const RunState& state = attempt_.state;
  const std::pair<int64_t, int64_t> wanted{state.step, state.progress.stream_offset};
  if (ahead_ != wanted) {
    loader_.reset();
    read_ahead(wanted.first, wanted.second);
  }
  ahead_.reset();
  files_.open_sample_log();
}

models::HostBatch Feed::next(int64_t step) {
  data::BatchPtr batch = loader_->next();
  if (described_.now()) describe_batch(*batch, attempt_.engine().model().features());
  if (looked_at_.now())
    base::log::debug(base::log::Component::data,
                     "batch {}: {} more are ready, {:.3f} s of waits so far", batch->number,
                     loader_->ready(), loader_->waited_s());
  if (records::SampleLog* log = files_.sample_log()) log->write(step, *batch);
  return data::host_batch(std::move(batch));
}

void Feed::agree_on_step(int64_t step) {
  replaced_[step] = options_.substitutes ? bad_samples_->agree() : 0;
}

void Feed::agree_on_evaluation() {
  if (options_.substitutes) bad_samples_->agree();
}

void describe_batch(const data::Batch& batch,
                    const std::map<std::string, models::FeatureSpec>& features) {
  std::string text;
  for (const auto& [field, array] : batch.arrays) {
    const device::View v = array.view();
    const auto feature = features.find(field);
    const bool padded = feature != features.end() && feature->second.pad.has_value();
    const double pad = padded ? *feature->second.pad : 0;
    const bool pixels = v.type == device::DType::f32 || v.type == device::DType::u8;
    if (v.count == 0 || (!pixels && v.type != device::DType::i32)) continue;
    double least = INFINITY, most = -INFINITY, sum = 0;
    int64_t pads = 0;
    for (int64_t i = 0; i < v.count; ++i) {
      const double x = v.type == device::DType::f32  ? double(v.f32()[i])
                       : v.type == device::DType::u8 ? double(v.u8()[i])
                                                     : double(v.i32()[i]);
      least = std::min(least, x);
      most = std::max(most, x);
      sum += x;
      pads += padded && x == pad;
    }
    text += pixels ? fmt::format("  {} min {:.4g} mean {:.4g} max {:.4g}", field, least,
                                 sum / double(v.count), most)
                   : fmt::format("  {} min {:.0f} max {:.0f}", field, least, most);
    if (!pixels && padded)
      text += fmt::format(", {:.1f} % pad", 100 * double(pads) / double(v.count));
  }
  base::log::line("first batch{}", text);
}

}  // namespace train
