#include "kernels/patchify.hpp"

#include <cstring>

#include "kernels/check_views.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector_table.hpp"

namespace kernels {
namespace {
constexpr int64_t kChannels = 3;
}

void check(const Patchify& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "patch", a.patch, 1);
  need_size(a.op, "height", a.height, a.patch);
  need_size(a.op, "patch_width", a.patch_width);
  need_size(a.op, "width", a.width, a.columns());
  int64_t rows = a.height / a.patch, columns = a.width / a.columns();  // what is left over at the edges is not used
  need_activation(a.op, "patches", a.patches, {a.batch * rows * columns, a.patch * a.columns() * kChannels});
  need_view(a.op, "image", a.image, DType::f32, {a.batch, a.height, a.width, kChannels});
}

Cost cost(const Patchify& a) { return {0, a.patches.bytes() + 4 * a.patches.count}; }

void run_cpu(const Patchify& a, Queue& queue) {
  const float* image = a.image.f32();
  bool narrow = a.patches.type == DType::bf16;
  auto to_bf16 = vector_table().to_bf16;
  int64_t rows = a.height / a.patch, columns = a.width / a.columns(), run = a.columns() * kChannels;
  for_ranges(queue, a.batch * rows, a.patches.count, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {  // one row of patches
      const float* in = image + ((i / rows) * a.height + (i % rows) * a.patch) * a.width * kChannels;
      int64_t at = i * columns * a.patch * run;
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t y = 0; y < a.patch; ++y, at += run) {
          const float* pixels = in + y * a.width * kChannels + c * run;
          if (narrow)
            to_bf16(a.patches.bf16() + at, pixels, run);
          else
            std::memcpy(a.patches.f32() + at, pixels, size_t(run) * sizeof(float));
        }
    }
  });
}

}  // namespace kernels
