// SPDX-License-Identifier: Apache-2.0
// Runs repeated work on a GPU as a CUDA graph: one call starts all kernels, instead of one call per
// kernel. The work must have the same arguments each time.
//
// A graph repeats its kernels with the arguments of the recording, so changing values must be in
// memory at fixed addresses. Uploads, events and waits of the host are errors inside the work.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/queue.hpp"

namespace device {

class Graphs {
 public:
  // Keeps at most `max_graphs` graphs of work of `queue`, which must be of kind cuda and outlive
  // this object. `name` names the work in messages.
  Graphs(Queue& queue, int64_t max_graphs, std::string name);
  ~Graphs();
  Graphs(const Graphs&) = delete;

  // Everything that determines the arguments: equal keys must mean equal launches.
  using Key = std::vector<int64_t>;
  // Puts the work into the queue. The first call with a key runs the work directly, which creates
  // everything made at first use: plans and handles of libraries, loaded kernels, scratch. The
  // second call records it. Later calls launch the graph and do not call `work`. Queue::costs still
  // counts the ops, without seconds. An error names the op that could not be recorded.
  void run(const Key& key, const std::function<void()>& work);

  struct Counts {
    int64_t runs = 0, launches = 0;  // runs of work; runs by a graph
    int64_t graphs = 0, nodes = 0;   // existing graphs; kernels and copies in them
    // GPU memory of the graphs, measured as the change of used memory. Other programs on the GPU
    // disturb it.
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
    std::vector<std::pair<int, OpCost>> costs;  // of the ops in the graph
  };
  double record(Entry& entry, const std::function<void()>& work);  // returns the ops' seconds
  void launch(const Entry& entry);
  void forget_all();

  Queue& queue_;
  int64_t max_graphs_;
  std::string name_;
  std::map<Key, Entry> entries_;
  const void* scratch_ = nullptr;  // address of the queue's scratch during the recordings
  bool limit_logged_ = false;      // the log has the line about the limit
  Counts counts_;
};

}  // namespace device
