// SPDX-License-Identifier: Apache-2.0
#include "data/bad_sample.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "data/dataset.hpp"

namespace data {

namespace {

// Returns the sample itself, then the samples at distances 1, 2, 4, ... In a small set these
// distances repeat samples, so the nearest other samples follow.
std::vector<int64_t> substitutes_of(int64_t index, int64_t size) {
  std::vector<int64_t> out{index};
  auto add = [&](int64_t distance) {
    int64_t other = (index + distance) % size;
    if (std::find(out.begin(), out.end(), other) == out.end()) out.push_back(other);
  };
  for (int power = 0; power < kSubstitutes; ++power) add(int64_t{1} << power);
  for (int64_t distance = 1; distance < size && int64_t(out.size()) <= kSubstitutes; ++distance)
    add(distance);
  return out;
}

}  // namespace

SampleOrSubstitute get_or_substitute(const Dataset& dataset, int64_t index, int64_t position,
                                     const Places* places, Trace* trace) {
  SampleOrSubstitute out;
  std::vector<int64_t> others;  // computed at the first bad sample
  for (size_t attempt = 0; attempt == 0 || attempt < others.size(); ++attempt) {
    out.index = attempt == 0 ? index : others[attempt];
    try {
      if (trace) *trace = {};  // drops what ops found in a bad sample
      out.sample = dataset.get(out.index, position, places, trace);
      return out;
    } catch (const BadSampleError& e) {
      out.bad.push_back(e.bad());
      if (attempt == 0) others = substitutes_of(index, dataset.size());
    }
  }
  base::fail(base::Exit::data,
             "data.{}: {}: {}; none of its {} substitutes can be used either{}: is the whole shard "
             "broken?",
             dataset.name(), out.bad[0].key, out.bad[0].why, out.bad.size() - 1,
             out.bad.size() > 1
                 ? fmt::format(" (the first: {}: {})", out.bad[1].key, out.bad[1].why)
                 : "");
}

}  // namespace data
