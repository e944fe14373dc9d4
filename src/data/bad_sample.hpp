// SPDX-License-Identifier: Apache-2.0
// Samples that cannot be used (a broken image, a text that is not UTF-8, a member that is too
// large) and the samples that replace them. A file system that fails or a shard that vanishes is
// not a bad sample (data::Unreadable): no other sample can help.
#pragma once

#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/array.hpp"

namespace data {

class Dataset;
struct Trace;

// All texts are on one line, whatever the file held.
struct BadSample {
  std::string dataset;  // NAME of [data.NAME]
  std::string key;      // "shards/train-000.tar:000123"
  std::string why;      // "decode: broken PNG: ..."
};

class BadSampleError : public base::Error {
 public:
  explicit BadSampleError(BadSample bad)
      : base::Error(base::Exit::data,
                    fmt::format("data.{}: {}: {}", bad.dataset, bad.key, bad.why)),
        bad_(std::move(bad)) {}
  const BadSample& bad() const { return bad_; }

 private:
  BadSample bad_;
};

struct SampleOrSubstitute {
  Sample sample;
  int64_t index = 0;           // index of the sample that is used
  std::vector<BadSample> bad;  // bad samples tried before it; empty = the requested one is good
};

// Returns sample `index` at stream position `position`. If it is bad, returns the first good sample
// after it in the data set at distances 1, 2, 4, ..., 2^15. These distances soon leave a run of
// broken neighbours. In a small set they repeat samples, so the nearest other samples follow. The
// choice depends only on the data set and the position, so it is the same for every number of
// ranks. If no sample is good, throws Error(Exit::data) that names the first two. `trace` describes
// the sample that is used.
constexpr int kSubstitutes = 16;
SampleOrSubstitute get_or_substitute(const Dataset& dataset, int64_t index, int64_t position,
                                     const Places* places = nullptr, Trace* trace = nullptr);

// Samples that loaders replaced in delivered batches. Batches read ahead do not count, so the log
// does not depend on timing.
struct BadSampleLog {
  int64_t replaced = 0;  // number of replaced examples
  std::vector<BadSample> found;
};

}  // namespace data
