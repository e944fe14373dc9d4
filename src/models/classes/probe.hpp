// SPDX-License-Identifier: Apache-2.0
// A probe: a head over classes, and what it reads, which are the features of a trunk or the values
// of one tap (ssl.md 8).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/window.hpp"
#include "models/heads/head.hpp"
#include "models/trunks/trunk.hpp"

namespace models {

// [[model.probe]]
struct ProbeOptions {
  std::string name, tap;
  int64_t pool = 0, pool_stride = 1, pool_padding = 0;  // pool 0: the values as they are
  HeadOptions head;
  void bind(config::Table& t);
  // Returns the name in measures: `name`, or the tap's name if `name` is empty.
  const std::string& label() const { return name.empty() ? tap : name; }
};

struct Probe {
  std::string name = {}, tap = {};  // "": the head reads the features
  int64_t pool = 0, pool_stride = 1, pool_padding = 0;
  int64_t in = 0;  // values that the head reads
  std::unique_ptr<Head> head = {};

  // Copies an image's values of the tap, or their means over windows, to `into` f32 [images, in].
  void read(nn::Context& ctx, const Trunk::TapValues& values, View into) const;
};

// Declares the head's parameters below `path`. Error(Exit::config) for a tap that does not exist, a
// pool that does not fit, or a head that does not return one score per class.
Probe make_probe(const ProbeOptions& options, const std::vector<Tap>& taps, int64_t classes,
                 const std::string& path, ParameterList& list);

}  // namespace models
