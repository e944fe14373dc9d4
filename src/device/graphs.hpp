// SPDX-License-Identifier: Apache-2.0
// Work that is put into a GPU's queue again and again with the same arguments, started by one call:
// as a CUDA graph, instead of by a call for each of its kernels.
//
// What may change from one time to the next must lie in memory, at the same places: a graph repeats
// its kernels with the arguments they had when it was recorded. Uploads, events and whatever the
// host waits for stay outside; inside they are errors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/queue.hpp"

namespace device {

class Graphs {
 public:
  // At most `most` graphs of work of that queue, of kind cuda, which outlives them. `name`: what
  // the work is, for messages.
  Graphs(Queue& queue, int64_t most, std::string name);
  ~Graphs();
  Graphs(const Graphs&) = delete;

  // Whatever fixes the arguments: the same key must mean the same launches.
  using Key = std::vector<int64_t>;
  // Puts the work into the queue. The first time with a key it runs as it is, so that what is made
  // at a first use (plans and handles of libraries, loaded kernels, scratch) is there; the second
  // time it is recorded; from then on it is not called any more. Queue::costs go on counting it,
  // without seconds. An error names the op that could not be recorded.
  void run(const Key& key, const std::function<void()>& work);

  struct Counts {
    int64_t runs = 0, launches = 0;  // of all work; of graphs among it
    int64_t graphs = 0, nodes = 0;   // that exist; their kernels and copies
    // What the driver has taken for them, by what the GPU had left before and after: others who use
    // the GPU blur it.
    int64_t bytes = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Free {
    void operator()(void* graph) const;
  };
  struct Entry {
    bool seen = false;
    std::unique_ptr<void, Free> graph;
    std::vector<std::pair<int, OpCost>> costs;  // of the ops in it
  };
  double record(Entry& entry, const std::function<void()>& work);  // returns the seconds of its ops
  void launch(const Entry& entry);
  void forget_all();

  Queue& queue_;
  int64_t most_;
  std::string name_;
  std::map<Key, Entry> entries_;
  const void* scratch_ = nullptr;  // where the queue's lay when the graphs were recorded
  bool told_ = false;              // that there are no more
  Counts counts_;
};

}  // namespace device
