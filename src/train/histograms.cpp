// SPDX-License-Identifier: Apache-2.0
// Histograms and root mean squares of tensors (log.histograms, log.rms). Between the steps that a
// rule names nothing is watched, and no memory is held.
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "base/names.hpp"
#include "base/pattern.hpp"
#include "base/per_step.hpp"
#include "config/duration.hpp"
#include "records/tensor_rows.hpp"
#include "train/attempt.hpp"

namespace train {
namespace {

using records::Looked;
using records::ValueCounts;
constexpr size_t kKinds = std::size(records::kLookedNames);

// A rule, with the tensors that its expression matches.
struct Reach {
  bool histogram;  // else only the root mean square
  int64_t every_steps;
  std::array<std::vector<int>, kKinds> tensors;  // by kind: numbers of parameters or blocks
};

// The tensors of one kind that are counted in a step.
struct Look {
  std::map<int, size_t> places;  // by parameter or block: its place below
  std::vector<ValueCounts> counts;
  std::vector<bool> histogram, rms;

  // Returns null if the tensor is not counted.
  ValueCounts* find(int tensor) {
    const auto at = places.find(tensor);
    return at == places.end() ? nullptr : &counts[at->second];
  }
  void add(int tensor, bool wants_histogram) {
    const auto [at, fresh] = places.try_emplace(tensor, counts.size());
    if (fresh) {
      counts.emplace_back();
      histogram.push_back(false);
      rms.push_back(false);
    }
    (wants_histogram ? histogram : rms)[at->second] = true;
  }
};

struct Looks {
  int64_t step = 0;  // 0: none
  std::array<Look, kKinds> of;
  Look& operator[](Looked kind) { return of[size_t(kind)]; }
};

class Histograms : public Observer, private step::Probe {
 public:
  explicit Histograms(const Attempt& attempt) : attempt_(attempt), engine_(attempt.engine()) {
    for (const records::LookRule& rule : attempt.recipe.log.histograms) add(rule, true);
    for (const records::LookRule& rule : attempt.recipe.log.rms) add(rule, false);
  }

  void step_begins(int64_t step) override {
    looks_[step] = {};
    for (const Reach& rule : rules_)
      if (config::is_time(step, rule.every_steps, attempt_.total)) {
        looks_[step].step = step;
        for (size_t kind = 0; kind < kKinds; ++kind)
          for (int tensor : rule.tensors[kind]) looks_[step].of[kind].add(tensor, rule.histogram);
      }
    now_ = &looks_[step];
    engine_.set_probe(now_->step ? this : nullptr);
  }

  void settled(int64_t step, const step::StepReport&, bool) override {
    if (looks_[step].step != step) return;
    for (const auto& [name, kind] : records::kLookedNames) write(step, name, looks_[step][kind]);
    looks_[step] = {};
  }

  void went_back(int64_t) override {
    for (Looks& looks : looks_) looks = {};
  }

 private:
  void add(const records::LookRule& rule, bool histogram) {
    const base::Pattern match(rule.match);
    const auto& parameters = engine_.layout().parameters();
    const std::vector<std::string> blocks = engine_.model().blocks();
    Reach reach{histogram, rule.every_steps, {}};
    for (const std::string& name : rule.of) {
      const Looked kind = base::value_of(records::kLookedNames, name);
      std::vector<int>& tensors = reach.tensors[size_t(kind)];
      if (kind == Looked::activations) {
        for (size_t b = 0; b < blocks.size(); ++b)
          if (match.matches(blocks[b])) tensors.push_back(int(b));
        continue;
      }
      for (size_t p = 0; p < parameters.size(); ++p)
        if (match.matches(parameters[p].path) &&
            (kind == Looked::weights || parameters[p].trained()))
          tensors.push_back(int(p));
    }
    rules_.push_back(std::move(reach));
  }

  // ---------------------------------------------------------------- within a step

  void count(ValueCounts& counts, const device::View& values, float factor = 1) {
    device::read_on_host(values, engine_.queue(), [&](const device::View& on_host) {
      counts.add(on_host, attempt_.job.threads(), factor);
    });
  }

  void block_done(int block, const device::View& output) override {
    if (ValueCounts* counts = (*now_)[Looked::activations].find(block)) count(*counts, output);
  }

  // Calls `work` with the segments of this kind that this rank counts. Ranks that hold the same
  // elements leave them to the first one.
  template <class Work>
  void for_segments(std::span<const optim::OwnedUnit> units, Looked kind, const Work& work) {
    const comm::Mesh& mesh = attempt_.job.mesh();
    const shard::Layout& layout = engine_.layout();
    if (mesh.replica_index > 0 || (*now_)[kind].counts.empty()) return;
    for (const optim::OwnedUnit& u : units) {
      if (mesh.fsdp_index > 0 && !layout.units()[size_t(u.unit)].strategy.optimizer_sharded)
        continue;
      const int64_t begin = layout.owned_begin(u.unit, mesh.fsdp_index);
      for (const shard::Segment& s : layout.segments(u.unit, begin, u.weights.count))
        if (ValueCounts* counts = (*now_)[kind].find(s.parameter)) work(u, s, *counts);
    }
  }

  void before_update(std::span<const optim::OwnedUnit> units) override {
    const float factor = engine_.scales_loss() ? float(1 / engine_.scale_state().scale) : 1.0f;
    for_segments(units, Looked::gradients, [&](const auto& u, const auto& s, ValueCounts& counts) {
      count(counts, u.gradient.slice(s.offset, s.count()), factor);
    });
    for_segments(units, Looked::updates, [&](const auto& u, const auto& s, ValueCounts&) {
      device::read_on_host(u.weights.slice(s.offset, s.count()), engine_.queue(),
                           [&](const device::View& values) {
                             before_.emplace_back(values.f32(), values.f32() + values.count);
                           });
    });
  }

  void after_update(std::span<const optim::OwnedUnit> units) override {
    for_segments(units, Looked::weights, [&](const auto& u, const auto& s, ValueCounts& counts) {
      count(counts, u.weights.slice(s.offset, s.count()));
    });
    size_t next = 0;
    for_segments(units, Looked::updates, [&](const auto& u, const auto& s, ValueCounts& counts) {
      std::vector<float>& change = before_[next++];
      device::read_on_host(u.weights.slice(s.offset, s.count()), engine_.queue(),
                           [&](const device::View& values) {
                             for (size_t i = 0; i < change.size(); ++i)
                               change[i] = values.f32()[i] - change[i];
                           });
      counts.add(device::view(change.data(), s.count()), attempt_.job.threads());
    });
    before_ = {};
  }

  // ---------------------------------------------------------------- after a step

  std::string path_of(Looked kind, int tensor) const {
    if (kind == Looked::activations) return engine_.model().blocks()[size_t(tensor)];
    return engine_.layout().parameters()[size_t(tensor)].path;
  }

  // All ranks call.
  void write(int64_t step, const std::string& kind, Look& look) {
    if (look.counts.empty()) return;
    ValueCounts::add_up(attempt_.world(), look.counts);
    if (!attempt_.leads()) return;
    records::MetricValues roots;
    for (const auto& [tensor, place] : look.places) {
      const ValueCounts& counts = look.counts[place];
      const std::string path = path_of(base::value_of(records::kLookedNames, kind), tensor);
      // A block that has no output of its own, such as a loss, has no values.
      if (counts.count() + counts.nonfinite() == 0) continue;
      if (look.histogram[place])
        attempt_.metrics->tensor_row(records::histogram_rows(kind, path), step,
                                     records::histogram_values(counts));
      if (look.rms[place])
        roots.emplace_back(
            path, counts.nonfinite() > 0 ? std::numeric_limits<double>::infinity() : counts.rms());
    }
    if (!roots.empty()) attempt_.metrics->tensor_row(records::rms_rows(kind), step, roots);
  }

  const Attempt& attempt_;
  step::Engine& engine_;
  std::vector<Reach> rules_;
  base::PerStep<Looks> looks_;
  Looks* now_ = nullptr;                    // of the step that runs
  std::vector<std::vector<float>> before_;  // weights before the update, by segment
};

}  // namespace

ObserverRow histograms_row() {
  return {"histograms", [](const Attempt& attempt) -> std::unique_ptr<Observer> {
            const records::LogOptions& log = attempt.recipe.log;
            if (log.histograms.empty() && log.rms.empty()) return nullptr;
            return std::make_unique<Histograms>(attempt);
          }};
}

}  // namespace train
