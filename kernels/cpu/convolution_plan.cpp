// SPDX-License-Identifier: Apache-2.0
// Plans of oneDNN's convolutions: parts, primitives and runs.
#include "kernels/cpu/convolution_plan.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "base/narrow.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/onednn_primitive.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

// If bits may not depend on the number of threads, a convolution is cut into about this many parts.
// More parts would serve more threads, but each part of the images costs a sum of all weights.
constexpr int64_t kFixedParts = 8;
// Otherwise each thread has about this many parts of the images, because threads may differ in
// speed.
constexpr int64_t kPartsOfThread = 4;
// Kernels need about this many positions in a part, if images are small.
constexpr int64_t kEnoughPositions = 784;
// Fewer output channels in a part would leave the library's kernels too little work per image.
constexpr int64_t kLeastChannels = 64;

int64_t largest_divisor(int64_t n, int64_t most) {
  for (int64_t d = std::min(n, most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

size_t lines(size_t bytes) { return size_t(base::round_up(int64_t(bytes), 64)); }

// y = y + x, in f32, for a part of an image that is in cache.
void add_floats(void* y, bool narrow, const float* x, int64_t count) {
  if (!narrow) {
    float* to = static_cast<float*>(y);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] += x[i];
    return;
  }
  auto* to = static_cast<loops::Bf16*>(y);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = loops::round_to_bf16(loops::to_float(to[i]) + x[i]);
}

bool kind_reads_scratch(const ConvolutionKind& kind) {
  return kind.narrow && kind.shape.window.width * kind.shape.window.height <= 16;
}

}  // namespace

ConvolutionPlan::ConvolutionPlan(const ConvolutionKey& key) : key_(key) {
  const ConvolutionShape& shape = key.kind.shape;
  const Window& window = shape.window;
  ConvolutionKind part = key.kind;
  if (key.kind.result == ConvolutionSide::weights) {
    const int64_t parts = key.fixed_order ? kFixedParts : key.threads;
    if (shape.groups == 1 && shape.out % kLeastChannels == 0)
      channel_parts_ = largest_divisor(shape.out / kLeastChannels, parts);
    image_parts_ = largest_divisor(window.batch, parts / channel_parts_);
    part.shape.out /= channel_parts_;
  } else {
    const int64_t parts = key.fixed_order ? kFixedParts : kPartsOfThread * key.threads,
                  enough =
                      base::ceil_div(kEnoughPositions, window.out_height() * window.out_width());
    const int64_t images = std::min(enough, base::ceil_div(window.batch, parts));
    image_parts_ = key.alone ? window.batch : window.batch / largest_divisor(window.batch, images);
    if (key.accumulate) part.narrow_result = false;
  }
  part.shape.window.batch /= image_parts_;
  if (image_parts_ * channel_parts_ > 1) workers_ = key.threads;
  ThreadScope scope(1);
  primitive_ = std::make_unique<OnednnConvolution>(part, workers_);
  library_bytes_ = lines(primitive_->scratch_bytes());
  if (key.accumulate) copy_bytes_ = lines(size_t(part.shape.inputs()) * sizeof(float));
  if (channel_parts_ > 1) copy_bytes_ = lines(size_t(part.shape.outputs()) * (part.narrow ? 2 : 4));
}

void ConvolutionPlan::need_success(int status) const {
  const ConvolutionShape& s = key_.kind.shape;
  if (status != dnnl_success)
    base::fail(base::Exit::internal,
               "convolution: oneDNN returned {} for {} images of {} x {}, {} to {} channels",
               status, s.window.batch, s.window.height, s.window.width, s.in, s.out);
}

void ConvolutionPlan::run(const ConvolutionOperands& p, Write write, Queue& queue) {
  if (key_.kind.result == ConvolutionSide::weights)
    run_weights(p, write, queue);
  else
    run_images(p, queue);
}

void ConvolutionPlan::run_images(const ConvolutionOperands& p, Queue& queue) {
  const size_t weights_bytes = lines(primitive_->weights_bytes()),
               own_bytes = library_bytes_ + copy_bytes_;
  char* const weights =
      static_cast<char*>(queue.scratch(weights_bytes + size_t(workers_) * own_bytes + 64));
  char* const own = weights + weights_bytes;
  {
    ThreadScope scope(key_.threads);
    need_success(primitive_->pack(p.weights, weights));
  }
  ThreadScope scope(1);  // the workers inherit it
  std::atomic<int> status{dnnl_success};
#pragma omp parallel for num_threads(workers_) schedule(dynamic, 1)
  for (int64_t i = 0; i < image_parts_; ++i) {
    const int worker = omp_get_thread_num();
    const int s = run_image(p, i, worker, weights, own + size_t(worker) * own_bytes);
    if (s != dnnl_success) status = s;
  }
  need_success(status);
}

int ConvolutionPlan::run_image(const ConvolutionOperands& p, int64_t image, int worker,
                               char* weights, char* own) {
  const ConvolutionKind& kind = key_.kind;
  const bool outputs = kind.result == ConvolutionSide::outputs;
  const int64_t x_count = kind.shape.inputs() / image_parts_,
                y_count = kind.shape.outputs() / image_parts_;
  auto size = [&](bool result) { return (result ? kind.narrow_result : kind.narrow) ? 2 : 4; };
  char *x = p.x + image * x_count * size(!outputs), *y = p.y + image * y_count * size(outputs);
  if (!key_.accumulate) return primitive_->run(worker, x, y, weights, own);
  char* const copy = own + library_bytes_;
  const int status = primitive_->run(worker, copy, y, weights, own);
  add_floats(x, kind.narrow_result, reinterpret_cast<const float*>(copy), x_count);
  return status;
}

void ConvolutionPlan::run_weights(const ConvolutionOperands& p, Write write, Queue& queue) {
  const size_t weights_bytes = lines(primitive_->weights_bytes()),
               own_bytes = library_bytes_ + copy_bytes_;
  const int64_t parts = image_parts_ * channel_parts_;
  char* const weights = static_cast<char*>(
      queue.scratch(size_t(parts) * weights_bytes + size_t(workers_) * own_bytes + 64));
  char* const own = weights + size_t(parts) * weights_bytes;
  auto run_part = [&](int64_t i, int worker) {
    return run_part_of_weights(p, i, worker, weights + size_t(i) * weights_bytes,
                               own + size_t(worker) * own_bytes);
  };
  {
    ThreadScope scope(1);  // the workers inherit it
    std::atomic<int> status{dnnl_success};
#pragma omp parallel for num_threads(workers_) schedule(dynamic, 1)
    for (int64_t i = 0; i < parts; ++i)
      if (const int s = run_part(i, omp_get_thread_num()); s != dnnl_success) status = s;
    need_success(status);
  }
  ThreadScope scope(key_.threads);
  const int64_t count = int64_t(primitive_->weights_bytes() / sizeof(float)),
                plain = key_.kind.shape.weights() / channel_parts_ * int64_t(sizeof(float));
  auto sums_of = [&](int64_t c, int64_t i) {
    return reinterpret_cast<float*>(weights + size_t(c * image_parts_ + i) * weights_bytes);
  };
  for (int64_t c = 0; c < channel_parts_; ++c) {
    for_ranges(queue, count, count * image_parts_, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = 1; i < image_parts_; ++i)
        add_floats(sums_of(c, 0) + begin, false, sums_of(c, i) + begin, end - begin);
    });
    need_success(primitive_->unpack(sums_of(c, 0), p.weights + c * plain, write));
  }
}

int ConvolutionPlan::run_part_of_weights(const ConvolutionOperands& p, int64_t part, int worker,
                                         char* weights, char* own) {
  const ConvolutionShape& shape = key_.kind.shape;
  const int64_t size = key_.kind.narrow ? 2 : 4, image = part % image_parts_,
                channel = part / image_parts_;
  char *x = p.x + image * (shape.inputs() / image_parts_) * size,
       *y = p.y + image * (shape.outputs() / image_parts_) * size;
  if (channel_parts_ > 1) {  // copies some channels, because oneDNN takes images without gaps
    const int64_t row = shape.out * size, wanted = row / channel_parts_;
    const int64_t rows = shape.window.positions() / image_parts_;
    char* const copy = own + library_bytes_;
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(copy + r * wanted, y + r * row + channel * wanted, size_t(wanted));
    y = copy;
  }
  // With narrow images of a few pixels oneDNN adds products of scratch that it did not fill.
  if (kind_reads_scratch(key_.kind)) std::memset(own, 0, library_bytes_);
  return primitive_->run(worker, x, y, weights, own);
}

namespace {
// Each calling thread has its own plans, so no lock is needed.
thread_local std::map<ConvolutionKey, std::unique_ptr<ConvolutionPlan>> plans;
}  // namespace

ConvolutionPlan& plan_for(const ConvolutionKey& key) {
  auto it = plans.find(key);
  if (it == plans.end()) {
    const ConvolutionShape& s = key.kind.shape;
    try {
      it = plans.emplace(key, std::make_unique<ConvolutionPlan>(key)).first;
    } catch (const dnnl::error& e) {
      base::fail(base::Exit::internal,
                 "convolution: oneDNN cannot do {} images of {} x {}, {} to {} channels in {} "
                 "groups, windows of {} x {}: {}",
                 s.window.batch, s.window.height, s.window.width, s.in, s.out, s.groups,
                 s.window.kernel_height, s.window.kernel_width, e.what());
    }
  }
  return *it->second;
}

}  // namespace kernels
