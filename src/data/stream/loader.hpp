// SPDX-License-Identifier: Apache-2.0
// Batches, read and decoded ahead by threads, delivered in order. What a batch holds is decided by
// the caller's function of its number and by the sample order; threads and prefetch change only
// when it is ready.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
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
  Array mask;                           // u8 [n]: 0 = padding, all zero
  std::vector<int64_t> positions;       // as the plan gave them
  std::vector<int64_t> indices;         // of the data set, substitutes' own; -1 = padding
  std::vector<int> parts;               // data set within the mixture; 0 = the only one

  int64_t size() const { return int64_t(positions.size()); }
  // Error(Exit::internal) for a field that is not there
  const Array& array(const std::string& field) const;
  device::View view(const std::string& field) const { return array(field).view(); }
};

// Goes back to the loader's pool when the last holder lets go, so keep no more of them than needed.
using BatchPtr = std::shared_ptr<const Batch>;

struct LoaderPlan {
  // Global positions of this rank's examples in the batch, in order. Pure; called on loader
  // threads, one call at a time.
  std::function<std::vector<int64_t>(int64_t batch)> positions;
  int64_t first = 0, end = 0;  // batches [first, end)
  // Positions from here on are padding: the set's size when every example counts once (evaluation).
  int64_t examples = std::numeric_limits<int64_t>::max();
};

// All fields must be arrays of known shape; Error(Exit::config) names the field and what to do. For
// validation too.
void check_batchable(const Spec& spec);

class Loader {
 public:
  Loader(Mixture mixture, const LoaderOptions& options, LoaderPlan plan);
  Loader(const Dataset& dataset, Order order, const LoaderOptions& options, LoaderPlan plan)
      : Loader(Mixture(dataset, order), options, std::move(plan)) {}
  ~Loader();  // does not wait for batches nobody took, only for the samples under way
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  bool has_next() const { return next_ < plan_.end; }
  // The next batch. An error in it (the one of its first bad row) is thrown here, again at every
  // further call. What was replaced in it goes to the options' log.
  BatchPtr next();

  double waited_s() const { return waited_s_; }  // spent inside next() so far
  int64_t ready() const;                         // batches that wait to be taken

 private:
  struct Pool;
  struct Slot;
  void work();
  bool can_take() const;
  void open_slot();
  SampleOrSubstitute get(const Dataset& dataset, int64_t index, int64_t position,
                         const Places& places) const;
  std::vector<BadSample> fill(Slot& slot, int64_t row) const;  // what had to be replaced
  void stop();

  const Mixture mixture_;
  const LoaderOptions options_;
  const LoaderPlan plan_;
  std::shared_ptr<Pool> pool_;

  mutable std::mutex mutex_;  // guards what follows, up to next_
  std::condition_variable takeable_, deliverable_;
  // front = next to be delivered, back = being handed out
  std::deque<std::unique_ptr<Slot>> slots_;
  int64_t opened_;  // next batch to be opened
  bool stopped_ = false, failed_ = false;

  int64_t next_;  // caller's thread only
  double waited_s_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace data
