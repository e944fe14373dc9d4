// SPDX-License-Identifier: Apache-2.0
// The plan of a convolution of fixed shape: how it is cut into parts, and oneDNN's primitives.
#pragma once

#include <memory>

#include "kernels/cpu/onednn_convolution.hpp"

namespace kernels {

// Everything that decides how oneDNN runs a convolution.
struct ConvolutionKey {
  ConvolutionKind kind;
  bool accumulate = false;  // images only: the result is added
  bool fixed_order = false, alone = false;
  int threads = 1;
  auto operator<=>(const ConvolutionKey&) const = default;
};

struct ConvolutionOperands {
  char *x, *y, *weights;
};

// Runs a convolution in parts, each computed by one thread, so that the load of the machine changes
// no bit. The library's own division among threads waits for the slowest one several times.
//
// A part of the outputs or of the inputs has some of the images. Parts of the gradient of weights
// have some of the output channels, and some of the images: their sums are added in the order of
// images.
class ConvolutionPlan {
 public:
  explicit ConvolutionPlan(const ConvolutionKey& key);
  // Throws if the library returns an error.
  void run(const ConvolutionOperands& p, Write write, Queue& queue);

 private:
  void run_images(const ConvolutionOperands& p, Queue& queue);
  void run_weights(const ConvolutionOperands& p, Write write, Queue& queue);
  // Runs one part. `own` is the worker's scratch; `weights` has the library's layout.
  int run_image(const ConvolutionOperands& p, int64_t image, int worker, char* weights, char* own);
  int run_part_of_weights(const ConvolutionOperands& p, int64_t part, int worker, char* weights,
                          char* own);
  void need_success(int status) const;

  ConvolutionKey key_;
  int64_t image_parts_ = 1, channel_parts_ = 1;
  int workers_ = 1;
  std::unique_ptr<OnednnConvolution> primitive_;  // of a part
  // Bytes of a worker's scratch: the library's part, and the copy of a part of a tensor.
  size_t library_bytes_ = 0, copy_bytes_ = 0;
};

// Returns the calling thread's plan. The first use of a key makes it, and it is kept.
ConvolutionPlan& plan_for(const ConvolutionKey& key);

}  // namespace kernels
