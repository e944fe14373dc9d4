// SPDX-License-Identifier: Apache-2.0
// Methods that fit probes: functions from features to a class, each with its own regularisation.
#pragma once

#include <limits>

#include "eval/features/feature_evaluator.hpp"

namespace eval {

// Probe has the members mean, deviation [features], weights [(features + 1) * classes], and
// predict(x, workspace).
template <class Probe>
struct ProbeMethod : FeatureMethod {
  std::vector<double> l2;

 protected:
  struct Fitted {
    Probe probe;
    double l2 = 0;
  };
  virtual int64_t probes() const = 0;
  virtual Fitted fit_probe(int64_t probe) const = 0;
  // Returns an upper bound of the memory that fitting a probe takes.
  virtual int64_t bytes_of_fit() const = 0;
  // Further keys that reduce this memory: "shots, ".
  virtual std::string memory_keys() const { return ""; }

  bool sweeps() const { return l2.size() > 1; }

  Size begin() override {
    rows = labelled_rows(train);
    const Size size{probes(), 1 + 2 * rows.features + (rows.features + 1) * rows.classes};
    need_feature_memory(*context, train_set(), memory_keys(),
                        bytes_of_fit() + 2 * 8 * size.things * size.numbers);
    return size;
  }
  void fit(int64_t thing, std::span<double> to) const override {
    const Fitted one = fit_probe(thing);
    double* at = to.data();
    *at++ = one.l2;
    for (const auto* values : {&one.probe.mean, &one.probe.deviation, &one.probe.weights})
      for (double v : *values) *at++ = v + 0.0;
  }
  void take(const std::vector<double>& all) override {
    const auto numbers = int64_t(all.size()) / probes();
    for (auto at = all.begin(); at != all.end(); at += numbers) {
      const auto mean = at + 1, deviation = mean + rows.features,
                 weights = deviation + rows.features;
      fitted.push_back({{{mean, deviation}, {deviation, weights}, {weights, at + numbers}}, *at});
    }
  }
  // The place of an image's class is 0 if a probe predicts it, infinite if the probe predicts
  // another class, and NaN if it predicts none.
  int64_t asked() const override { return probes(); }
  void predict(const Embedded& images, std::span<double> places) const override {
    constexpr double kMissing = std::numeric_limits<double>::quiet_NaN(),
                     kWrong = std::numeric_limits<double>::infinity();
    std::vector<double> workspace;
    auto place = places.begin();
    for (int64_t i = 0; i < images.count; ++i) {
      const int64_t label = label_of(context->dataset, images.batch, i);
      for (const Fitted& one : fitted) {
        const int64_t c = one.probe.predict(images.features + i * rows.features, workspace);
        *place++ = c < 0 ? kMissing : c == label ? 0 : kWrong;
      }
    }
  }

  LabelledRows rows;
  std::vector<Fitted> fitted;
};

}  // namespace eval
