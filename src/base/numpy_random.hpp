// SPDX-License-Identifier: Apache-2.0
// The random numbers of NumPy's default_rng(seed), for results that published code draws with it.
// A seed sequence mixes the seed into a pool of four words (O'Neill, "Developing a seed_seq
// alternative", 2015). The generator is PCG-XSL-RR-128/64 (O'Neill, "PCG: a family of simple fast
// space-efficient statistically good algorithms", 2014). Bounded integers are drawn by masks and
// rejection, as in NumPy's shuffle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace base {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed);

  // Returns the next 64 bits: bit_generator.random_raw().
  uint64_t bits64();
  // Returns the next 32 bits: the lower half of 64 bits, then the upper half.
  uint32_t bits32();
  // Returns a uniform integer in [0, last]. It draws 32 bits and masks them to the bits of `last`
  // until the value is not larger.
  uint32_t bounded(uint32_t last);

  // Shuffles like Generator.permutation of a one-dimensional array, which draws nothing for arrays
  // of fewer than two elements. The array has fewer than 2^32 elements.
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[bounded(uint32_t(i))]);
  }

 private:
  __extension__ using Wide = unsigned __int128;
  void step();

  Wide state_ = 0, increment_ = 0;
  uint32_t upper_half_ = 0;
  bool has_upper_half_ = false;
};

}  // namespace base
