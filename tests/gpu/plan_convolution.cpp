// SPDX-License-Identifier: Apache-2.0
// Builds cuDNN plans for convolutions of ResNets on an A100 and an H200, from descriptions of these
// devices. The program needs no GPU (plan_attention.cpp). Without the argument `all` it builds few
// plans. Exits with 77 without cuDNN or libcuda.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "devices.hpp"
#include "kernels/cuda/convolution_cudnn.hpp"

namespace {

using kernels::ConvolutionShape;
using kernels::ConvolutionSide;
using kernels::DType;
using kernels::Write;

int failures = 0;

void plan(const char* name, const ConvolutionShape& shape, ConvolutionSide side, DType operands,
          DType result, Write write, bool hopper) {
  const std::string problem =
      cudnn_plan_problem(side, shape, operands, result, write, gpu::device(hopper));
  const char* sides[] = {"outputs", "inputs", "weights"};
  std::printf("%s %-4s to %-4s %-22s %-8s%s %s\n", hopper ? "sm_90" : "sm_80",
              device::name_of(operands), device::name_of(result), name, sides[int(side)],
              write == Write::accumulate ? " added" : "",
              gpu::is_planned(problem) ? "plan" : problem.c_str());
  failures += !gpu::is_planned(problem);
}

ConvolutionShape shape_of(int64_t batch, int64_t size, int64_t in, int64_t out, int64_t kernel,
                          int64_t stride, int64_t groups = 1) {
  return {.window = {.batch = batch,
                     .height = size,
                     .width = size,
                     .kernel_height = kernel,
                     .kernel_width = kernel,
                     .stride = stride,
                     .padding = kernel / 2},
          .in = in,
          .out = out,
          .groups = groups};
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc > 1 && std::strcmp(argv[1], "all") == 0;
  for (const char* library : {"libcudnn.so.9", "libcuda.so.1"})
    if (!dlopen(library, RTLD_NOW)) {
      std::printf("skipped: no %s\n", library);
      return 77;
    }
  struct Named {
    const char* name;
    ConvolutionShape shape;
    bool usual;
  };
  const Named shapes[] = {{"stem 7x7/2", shape_of(64, 224, 3, 64, 7, 2), true},
                          {"3x3 64", shape_of(64, 56, 64, 64, 3, 1), true},
                          {"3x3/2 128", shape_of(64, 56, 128, 128, 3, 2), false},
                          {"3x3 512", shape_of(64, 7, 512, 512, 3, 1), false},
                          {"1x1/2 256 to 512", shape_of(64, 56, 256, 512, 1, 2), false},
                          {"3x3 128, 32 groups", shape_of(64, 56, 128, 128, 3, 1, 32), false}};
  for (bool hopper : {true, false})
    for (const auto& [name, shape, usual] : shapes)
      for (DType type : {DType::bf16, DType::f16, DType::f32}) {
        if (!all && !(usual && hopper && type == DType::bf16)) continue;
        plan(name, shape, ConvolutionSide::outputs, type, type, Write::overwrite, hopper);
        for (Write write : {Write::overwrite, Write::accumulate})
          plan(name, shape, ConvolutionSide::inputs, type, type, write, hopper);
        plan(name, shape, ConvolutionSide::weights, type, DType::f32, Write::overwrite, hopper);
      }
  std::printf("%d convolutions lack a plan\n", failures);
  return failures != 0;
}
