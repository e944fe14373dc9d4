// SPDX-License-Identifier: Apache-2.0
// Tools for the tests of ops of losses: references that are differentiated numerically.
#pragma once

#include "rig.hpp"

namespace rig {

using Doubles = std::vector<double>;

inline View view_of(Doubles& v) { return {v.data(), device::DType::f64, int64_t(v.size())}; }

// Returns central differences of fourth order of f at x.
template <class F>
Doubles differences(Doubles x, const F& f) {
  Doubles out;
  constexpr double h = 1e-3;
  for (double& v : x) {
    const double before = v;
    auto with = [&](double step) {
      v = before + step;
      return f(x);
    };
    const double near = with(h) - with(-h), far = with(2 * h) - with(-2 * h);
    v = before;
    out.push_back((8 * near - far) / (12 * h));
  }
  return out;
}

inline std::vector<float> joined(std::initializer_list<std::vector<float>> all) {
  std::vector<float> out;
  for (const auto& v : all) out.insert(out.end(), v.begin(), v.end());
  return out;
}

}  // namespace rig
