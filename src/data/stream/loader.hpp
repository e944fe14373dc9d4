// SPDX-License-Identifier: Apache-2.0
// Batches that threads read and decode ahead, delivered in order. LoaderPlan::positions and the
// sample order decide what a batch holds. The numbers of threads and prefetched batches only change
// when it is ready.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/array.hpp"
#include "data/bad_sample.hpp"
#include "data/options.hpp"
#include "data/stream/mixture.hpp"

namespace data {

// One rank's part of a batch: n examples, one row of each array.
struct Batch {
  int64_t number = 0;
  std::map<std::string, Array> arrays;  // by field: "image" f32 [n,H,W,3], "labels" i32 [n,L], ...
  Array mask;                           // u8 [n]: 0 = padding, a row of zeros
  std::vector<int64_t> positions;       // global positions, from the plan
  std::vector<int64_t> indices;         // in the data set, of the sample that is used; -1 = padding
  std::vector<int> parts;               // data set within the mixture; 0 = the only one

  int64_t size() const { return int64_t(positions.size()); }
  // Throws Error(Exit::internal) if there is no such field.
  const Array& array(const std::string& field) const;
  device::View view(const std::string& field) const { return array(field).view(); }
};

// A batch returns to the loader's pool when its last owner releases it. Hold no more batches than
// needed.
using BatchPtr = std::shared_ptr<const Batch>;

struct LoaderPlan {
  // Returns the global positions of this rank's examples in the batch, in order. A pure function;
  // the loader's threads call it, one call at a time.
  std::function<std::vector<int64_t>(int64_t batch)> positions;
  int64_t first = 0, end = 0;  // batches [first, end)
  // Positions from here on are padding. In an evaluation, where every example counts once, this is
  // the size of the set.
  int64_t examples = std::numeric_limits<int64_t>::max();
};

// Throws Error(Exit::config) with the field and a remedy unless all fields are arrays of known
// shape. Validation calls it, too.
void check_batchable(const Spec& spec);

// The class has many members because the threads that fill batches share them.
class Loader {
 public:
  Loader(Mixture mixture, const LoaderOptions& options, LoaderPlan plan);
  Loader(const Dataset& dataset, Order order, const LoaderOptions& options, LoaderPlan plan)
      : Loader(Mixture(dataset, order), options, std::move(plan)) {}
  ~Loader();  // waits only for the samples in progress
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  bool has_next() const { return next_ < plan_.end; }
  // Returns the next batch. Throws the error of its first bad row, again at every further call.
  // Adds the replaced samples to the options' log.
  BatchPtr next();

  double waited_s() const { return waited_s_; }  // total time inside next()
  int64_t ready() const;                         // complete batches that wait for next()

 private:
  struct Pool;
  struct Slot;
  void work(int64_t number);
  bool can_take() const;
  std::unique_ptr<Slot> make_slot(int64_t number) const;
  SampleOrSubstitute get(const Dataset& dataset, int64_t index, int64_t position,
                         const Places& places) const;
  std::vector<BadSample> fill(Slot& slot, int64_t row) const;  // returns the replaced samples
  void stop();

  const Mixture mixture_;
  const LoaderOptions options_;
  const LoaderPlan plan_;
  std::shared_ptr<Pool> pool_;

  mutable std::mutex mutex_;  // guards the members up to next_
  std::condition_variable takeable_, deliverable_;
  // front = next batch to deliver, back = batch whose rows are being handed out
  std::deque<std::unique_ptr<Slot>> slots_;
  int64_t opened_;        // next batch to be opened
  bool opening_ = false;  // a thread makes the next slot
  bool stopped_ = false, failed_ = false;

  int64_t next_;  // used by the caller's thread only
  double waited_s_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace data
