// SPDX-License-Identifier: Apache-2.0
// One launch for many tensors. The kernel's argument describes all tensors, and each block finds
// its tensor there. The argument has at most 4 KiB, which every GPU and driver accepts. The launch
// needs no copy and no wait.
#pragma once

#include "base/narrow.hpp"
#include "kernels/cuda/launch.cuh"

namespace kernels {

// The argument of a kernel for many tensors, `const ManyItems<Item> __grid_constant__ all`. Blocks
// read it in the memory of the launch.
template <class Item>
struct ManyItems {
  static constexpr size_t kBytes = 4096;
  static constexpr int kMost = int((kBytes - 8) / (sizeof(Item) + sizeof(int32_t)));
  Item items[kMost];
  int32_t first[kMost];  // an item's first block in the launch
  int32_t count;
};

// The item that a block works for, and the block's number among the item's blocks.
struct Share {
  int item;
  uint32_t block;
};
template <class Item>
__device__ Share share_of_block(const ManyItems<Item>& all) {
  int item = 0;
  for (int end = all.count; end - item > 1;) {
    const int middle = (item + end) / 2;
    if (all.first[middle] <= int(blockIdx.x))
      item = middle;
    else
      end = middle;
  }
  return {item, blockIdx.x - uint32_t(all.first[item])};
}

// Collects items, each with a number of blocks. The kernel starts when `start` is called or its
// argument is full.
template <class Item, class Kernel>
class ManyLaunch {
 public:
  ManyLaunch(Kernel* kernel, int threads, Queue& queue)
      : kernel_(kernel), threads_(threads), queue_(queue) {
    static_assert(sizeof(ManyItems<Item>) <= ManyItems<Item>::kBytes);
  }
  void add(const Item& item, int64_t blocks) {
    if (blocks == 0) return;
    if (all_.count == ManyItems<Item>::kMost) start();
    all_.items[all_.count] = item;
    all_.first[all_.count++] = base::narrow<int32_t>(blocks_);
    blocks_ += blocks;
  }
  void start() {
    launch(kernel_, blocks_for(blocks_, 1), dim3(unsigned(threads_)), 0, queue_, all_);
    all_.count = 0;
    blocks_ = 0;
  }

 private:
  Kernel* kernel_;
  int threads_;
  Queue& queue_;
  ManyItems<Item> all_{};
  int64_t blocks_ = 0;
};
template <class Item>
ManyLaunch(void (*)(ManyItems<Item>), int, Queue&) -> ManyLaunch<Item, void(ManyItems<Item>)>;
template <class Item>  // for the emulator, whose __grid_constant__ makes a reference
ManyLaunch(void (*)(const ManyItems<Item>&), int, Queue&)
    ->ManyLaunch<Item, void(const ManyItems<Item>&)>;

}  // namespace kernels
