// SPDX-License-Identifier: Apache-2.0
// Builds cuDNN plans for the attention of the S/16, B/16 and L/14 models on an A100 and an H200,
// from descriptions of these devices. A plan takes a second to build. So without the argument `all`
// the program builds B/16 on the H200, B/16 in bf16 on the A100, and the backward passes over the
// images of S/16 and L/14 in bf16 on the H200. The program needs no GPU, but a libcuda.so.1: the
// toolkit's stub suffices (tests/cuda_tests.cmake puts it into LD_LIBRARY_PATH). Exits with 77
// without cuDNN or libcuda.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "devices.hpp"
#include "kernels/cuda/attention_cudnn.hpp"

namespace {

using kernels::AttentionShape;
using kernels::Mask;

int failures = 0;

void plan(const char* model, const char* part, AttentionShape shape, Mask mask, kernels::DType type,
          bool backward, bool hopper) {
  shape.mask = mask;
  std::string problem = kernels::cudnn_plan_problem(shape, type, backward, gpu::device(hopper));
  bool found = gpu::is_planned(problem);
  // cuDNN has no kernel for this shape, so our own kernels run.
  bool known = !hopper && backward && mask == Mask::per_example;
  const char* masks[] = {"full", "causal", "per_example"};
  std::printf("%s %-4s %-5s %-10s %3ld x %3ld heads %2ld %-11s %-8s %s\n",
              hopper ? "sm_90" : "sm_80", device::name_of(type), model, part,
              long(shape.query_length), long(shape.key_length), long(shape.heads), masks[int(mask)],
              backward ? "backward" : "forward",
              found   ? "plan"
              : known ? "none, as known"
                      : problem.c_str());
  failures += !found && !known;
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc > 1 && std::strcmp(argv[1], "all") == 0;
  for (const char* library : {"libcudnn.so.9", "libcuda.so.1"})
    if (!dlopen(library, RTLD_NOW)) {
      std::printf("skipped: no %s\n", library);
      return 77;
    }
  struct Model {
    const char* name;
    int64_t heads, image_tokens;
  };
  for (bool hopper : {true, false})
    for (const Model& m : {Model{"S/16", 6, 196}, Model{"B/16", 12, 196}, Model{"L/14", 16, 256}})
      for (bool backward : {false, true}) {
        AttentionShape image{.batch = 256,
                             .heads = m.heads,
                             .query_length = m.image_tokens,
                             .key_length = m.image_tokens,
                             .head_dim = 64};
        AttentionShape text = image, cross = image;
        text.query_length = text.key_length = cross.query_length = 64;
        // One product computes queries, keys and values of images. Rows of text are copied.
        image.query_stride = image.key_stride = 3 * image.row();
        cross.key_stride = 2 * image.row();
        for (kernels::DType type : {kernels::DType::bf16, kernels::DType::f16}) {
          const bool base_model = m.heads == 12, bf16 = type == kernels::DType::bf16;
          const bool usual = hopper ? base_model || (bf16 && backward) : base_model && bf16;
          if (!all && !usual) continue;
          plan(m.name, "encoder", image, Mask::full, type, backward, hopper);
          // The models' texts differ only in the number of heads. Other plans cover those numbers.
          if (all || base_model)
            for (Mask mask : {Mask::full, Mask::causal, Mask::per_example})
              plan(m.name, "decoder", text, mask, type, backward, hopper);
          plan(m.name, "cross", cross, Mask::full, type, backward, hopper);
        }
      }
  std::printf("%d attentions lack a plan\n", failures);
  return failures != 0;
}
