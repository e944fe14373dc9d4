// SPDX-License-Identifier: Apache-2.0
// Maps each position of a data set's stream to a sample. The map is a pure function: resuming
// anywhere costs nothing, and ranks, threads and restarts cannot change it. A position is the
// number of examples since the start of training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/occurrences.hpp"
#include "base/permutation.hpp"
#include "base/random.hpp"
#include "data/sources/classes.hpp"

namespace data {

enum class Shuffle {
  none,   // the source's order
  exact,  // every epoch permutes all samples anew
  // Every epoch permutes runs of neighbours anew and mixes the samples within windows of runs.
  blocks,
  // Draws each sample anew, a class of n samples with a probability proportional to n^(1 - power).
  classes,
  // Each global batch has equally many samples of each of several classes, and no sample twice.
  stratified,
};
inline constexpr std::pair<const char*, Shuffle> kShuffleNames[] = {
    {"none", Shuffle::none},
    {"exact", Shuffle::exact},
    {"blocks", Shuffle::blocks},
    {"classes", Shuffle::classes},
    {"stratified", Shuffle::stratified}};

// Shuffle::blocks cuts the set into blocks of `block` neighbours (the last one may be shorter). An
// epoch reads the blocks in random order, `window` of them at a time (the last window may have
// fewer). It reads the samples of a window in random order. Reading then stays within one window of
// neighbours at a time, which suits file systems and their caches.
struct BlockShape {
  int64_t block = 512;   // samples
  int64_t window = 128;  // blocks
};

// Shuffle::stratified: positions [b batch, (b + 1) batch) are batch b. It holds batch / classes
// samples of each of `classes` classes, which are interleaved, so each rank has all of them.
struct Strata {
  int64_t classes = 0, batch = 0;
};

class Order {
 public:
  Order() = default;
  // `name` makes streams independent of each other: each data set of a mixture has its own.
  Order(Shuffle shuffle, int64_t size, uint64_t seed, BlockShape shape = {},
        std::string_view name = "");
  // Shuffle::classes: every position draws a sample of weight 1 / (samples of its class)^power,
  // with replacement. power 0: all samples are equally likely; 1: all classes are.
  Order(std::shared_ptr<const Classes> classes, double power, uint64_t seed,
        std::string_view name = "");
  // Shuffle::stratified. A round permutes all classes anew and cuts them into groups of
  // strata.classes, one for each batch. Classes left over at the end are not in this round. Each
  // class gives its samples in the same way, in rounds of its own. Throws Error(Exit::config) if
  // there are too few classes, Error(Exit::data) with the name of a class with too few samples.
  Order(std::shared_ptr<const Classes> classes, Strata strata, uint64_t seed);

  int64_t size() const { return size_; }
  int64_t epoch(int64_t position) const { return position / size_; }
  // Returns the sample at this position; every sample appears exactly once in an epoch,
  // except with Shuffle::classes and stratified. Constant time, or logarithmic in the number of
  // classes.
  int64_t index(int64_t position) const;
  // The classes that samples are drawn by; null if they are drawn without.
  const Classes* classes() const { return by_class_ ? by_class_->classes.get() : nullptr; }

 private:
  struct ByClass {
    std::shared_ptr<const Classes> classes;
    std::vector<double> up_to;  // of Shuffle::classes: cumulative probability of the classes
    Strata strata{};            // of Shuffle::stratified
  };

  int64_t index_in_blocks(int64_t within, const base::Stream& epoch) const;
  int64_t index_by_class(const base::Stream& draws) const;
  int64_t index_in_strata(int64_t position) const;

  Shuffle shuffle_ = Shuffle::none;
  int64_t size_ = 1;
  base::Stream stream_;
  base::Permutation all_;  // exact: the samples; blocks: the blocks
  BlockShape shape_;
  std::shared_ptr<const ByClass> by_class_;
};

}  // namespace data
