// SPDX-License-Identifier: Apache-2.0
// Measures the convolutions of a step of ResNet-50 (16 images of 224 pixels) and of ResNet-18 (128
// of 96 pixels), and the speed that matrix products reach. It is not part of the build. Compile it
// by hand like kernel_bench.cpp.
// Usage: convolution_bench [threads] [f32|bf16] [resnet50|resnet18] [fixed]. Prints the best of
// short repeats, and the sums over the network.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "kernels/cast.hpp"
#include "kernels/convolution.hpp"
#include "kernels/gemm.hpp"

namespace {

using namespace kernels;

View tensor(int64_t count, DType type) {
  auto* p = static_cast<float*>(std::aligned_alloc(64, size_t((count * 4 + 63) / 64 * 64)));
  for (int64_t i = 0; i < count; ++i) p[i] = float(i % 4099) / 4099 - 0.5f;
  const View wide = device::view(p, count);
  if (type == DType::f32) return wide;
  View out{std::aligned_alloc(64, size_t((count * 2 + 63) / 64 * 64)), type, count};
  Queue queue(device::Kind::cpu);
  run(Cast{out, wide}, queue);
  std::free(p);
  return out;
}

// Returns processor time for one thread, because other programs on the machine do not change it.
double clock_s(const Queue& queue) {
  if (queue.threads() > 1) return base::now_s();
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Returns the best time of a call, in seconds.
template <class Args>
double best_s(const Args& args, Queue& queue) {
  run(args, queue);
  double best = 1e9;
  const double begin = base::now_s();
  for (int repeats = 0; (base::now_s() - begin < 0.2 || repeats < 3) && repeats < 1000; ++repeats) {
    const double t = clock_s(queue);
    run(args, queue);
    best = std::min(best, clock_s(queue) - t);
  }
  return best;
}

struct Layer {
  int64_t count;  // in the network
  int64_t size, in, out, kernel, stride;
};

std::vector<Layer> resnet50() {
  std::vector<Layer> all{{1, 224, 3, 64, 7, 2}};
  int64_t size = 56, in = 64;
  const int64_t blocks[] = {3, 4, 6, 3};
  for (int64_t s = 0; s < 4; ++s) {
    const int64_t width = 64 << s, stride = s ? 2 : 1, small = size / stride;
    all.push_back({1, size, in, width, 1, 1});
    all.push_back({1, size, width, width, 3, stride});
    all.push_back({1, size, in, 4 * width, 1, stride});
    all.push_back({blocks[s], small, width, 4 * width, 1, 1});
    all.push_back({blocks[s] - 1, small, 4 * width, width, 1, 1});
    all.push_back({blocks[s] - 1, small, width, width, 3, 1});
    in = 4 * width;
    size = small;
  }
  return all;
}

std::vector<Layer> resnet18() {
  std::vector<Layer> all{{1, 96, 3, 64, 7, 2}, {4, 24, 64, 64, 3, 1}};
  int64_t size = 24, in = 64;
  for (int64_t width : {128, 256, 512}) {
    all.push_back({1, size, in, width, 3, 2});
    all.push_back({1, size, in, width, 1, 2});
    size /= 2;
    all.push_back({3, size, width, width, 3, 1});
    in = width;
  }
  return all;
}

void measure(const char* name, const std::vector<Layer>& layers, int64_t batch, DType type,
             Queue& queue) {
  double seconds[3] = {}, flops = 0;
  for (const Layer& l : layers) {
    const ConvolutionShape shape{.window = {.batch = batch,
                                            .height = l.size,
                                            .width = l.size,
                                            .kernel_height = l.kernel,
                                            .kernel_width = l.kernel,
                                            .stride = l.stride,
                                            .padding = l.kernel / 2},
                                 .in = l.in,
                                 .out = l.out};
    View x = tensor(shape.inputs(), type), y = tensor(shape.outputs(), type),
         w = tensor(shape.weights(), type), dw = tensor(shape.weights(), DType::f32);
    const bool first = l.in == 3;  // nothing needs the gradient of images
    const double t[3] = {best_s(ConvolutionForward{y, x, w, shape}, queue),
                         first ? 0 : best_s(ConvolutionBackwardData{x, y, w, shape}, queue),
                         best_s(ConvolutionBackwardWeights{dw, x, y, shape}, queue)};
    const double f = double(shape.flops());
    std::printf("%s %lldx %4lld px %4lld -> %4lld, %lldx%lld/%lld:", name, (long long)l.count,
                (long long)l.size, (long long)l.in, (long long)l.out, (long long)l.kernel,
                (long long)l.kernel, (long long)l.stride);
    for (int i = 0; i < 3; ++i) {
      std::printf(" %8.2f ms %6.1f", t[i] * 1e3, t[i] > 0 ? f / t[i] * 1e-9 : 0);
      seconds[i] += double(l.count) * t[i];
    }
    std::printf("\n");
    std::fflush(stdout);
    flops += double(l.count) * f * (first ? 2 : 3);
    for (View* v : {&x, &y, &w, &dw}) std::free(v->data);
  }
  const double sum = seconds[0] + seconds[1] + seconds[2];
  std::printf("%s: outputs %.1f, inputs %.1f, weights %.1f, together %.1f ms, %.1f GFLOP/s\n", name,
              seconds[0] * 1e3, seconds[1] * 1e3, seconds[2] * 1e3, sum * 1e3, flops / sum * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  auto option = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  const DType type = option(2, "f32") == "bf16" ? DType::bf16 : DType::f32;
  Queue queue(device::Kind::cpu, std::atoi(option(1, "1").c_str()), option(4, "") == "fixed");
  View a = tensor(2048 * 2048, type), b = tensor(2048 * 2048, type), c = tensor(2048 * 2048, type);
  const double s = best_s(Gemm{.c = c, .a = a, .b = b, .m = 2048, .n = 2048, .k = 2048}, queue);
  std::printf("products: %.1f GFLOP/s\n", 2 * 2048.0 * 2048 * 2048 / s * 1e-9);
  if (option(3, "resnet50") == "resnet50") measure("resnet50", resnet50(), 16, type, queue);
  if (option(3, "resnet18") == "resnet18") measure("resnet18", resnet18(), 128, type, queue);
}
