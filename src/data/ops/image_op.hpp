// SPDX-License-Identifier: Apache-2.0
// Shared by the ops on images: the check of their input, and the arguments of resizing.
#pragma once

#include "data/images/resize.hpp"
#include "data/ops/op.hpp"

namespace data {

// Returns the field, which must be u8 or f32 [height, width, channels]. Throws Error(Exit::config)
// otherwise.
const FieldSpec& image_of(const Spec& spec, const std::string& key);

struct ResizeHow {
  ResizeMethod method = ResizeMethod::bilinear;
  bool antialias = false;
};
std::vector<Parameter> resize_parameters(const std::string& method);  // method, antialias
ResizeHow resize_how(const Arguments& arguments);

// Draws random numbers for one sample, one after the other.
class Draws {
 public:
  explicit Draws(const base::Stream& stream) : stream_(stream) {}
  // Returns a number in [0, 1).
  float uniform() { return stream_.uniform(next_++); }
  // Returns a number in [0, n), for n <= 2^32.
  int64_t below(int64_t n) { return int64_t(uint64_t(stream_.bits(next_++)) * uint64_t(n) >> 32); }

 private:
  base::Stream stream_;
  uint64_t next_ = 0;
};

}  // namespace data
