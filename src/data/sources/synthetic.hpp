// SPDX-License-Identifier: Apache-2.0
// Made-up images, captions of the usual lengths and classes, a pure function of (seed, index): for
// benchmarks and tests.
#pragma once

#include <memory>

#include "data/sources/source.hpp"

namespace data {

enum class Pattern {
  noise,      // nothing can be learned
  constant,   // all pixels are 0
  separable,  // image and caption show the class; a linear classifier can learn it
};

struct SyntheticOptions : SourceOptions {
  int64_t examples = 4096;
  int64_t image_size = 224;
  int64_t seq_len = 64;
  int64_t vocab_size = 32'000;
  int64_t seed = 0;
  int64_t classes = 0;  // 0: no field `label`
  Pattern pattern = Pattern::noise;
  void bind(config::Table& t) override;
  Spec spec() const override;
  std::unique_ptr<Source> open(const OpenContext& context) const override;
};

}  // namespace data
