// SPDX-License-Identifier: Apache-2.0
// Samples that cannot be used - a broken image, a text that is not UTF-8, a member that is too
// large - and what stands in for them. Not meant: a file system that fails or a shard that vanishes
// (data::Unreadable), which no other sample can make good.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/array.hpp"

namespace data {

class Dataset;

// Texts of one line, whatever was in the file.
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
  int64_t index = 0;           // of the sample that is used
  std::vector<BadSample> bad;  // what was tried before it; empty = the sample asked for is fine
};

// Sample `index` as it stands at `position`, or the first good one of those that follow it in the
// data set at distances 1, 2, 4, ..., 2^15 (a run of broken neighbours is soon left behind; in a
// small set these come round, so then the nearest others). Which one depends on the data set and
// the position alone, so on every rank count it is the same. Error(Exit::data) if none of them is
// good; names them.
constexpr int kSubstitutes = 16;
SampleOrSubstitute get_or_substitute(const Dataset& dataset, int64_t index, int64_t position,
                                     const Places* places = nullptr);

// What loaders replaced in the batches that they delivered (not in those read ahead, so it depends
// on no timing).
struct BadSampleLog {
  int64_t replaced = 0;  // examples of batches
  std::vector<BadSample> found;
};

}  // namespace data
