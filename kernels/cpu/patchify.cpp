#include "kernels/patchify.hpp"

#include <array>
#include <cstring>
#include <vector>

#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {
constexpr int64_t kChannels = 3;

// The value of each byte. A fused multiplication and addition would give other bits than value_range (TRAINER_UNFUSED in
// CMakeLists.txt).
std::array<float, 256> table_of(const PixelRange& r) {
  std::array<float, 256> table;
  for (int byte = 0; byte < 256; ++byte) table[size_t(byte)] = r.to_low + (float(byte) - r.low) / r.width * r.to_width;
  return table;
}
}  // namespace

void check(const Patchify& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "patch", a.patch, 1);
  need_size(a.op, "height", a.height, a.patch);
  need_size(a.op, "patch_width", a.patch_width);
  need_size(a.op, "width", a.width, a.columns());
  int64_t rows = a.height / a.patch, columns = a.width / a.columns();  // what is left over at the edges is not used
  need_activation(a.op, "patches", a.patches, {a.batch * rows * columns, a.patch * a.columns() * kChannels});
  need_view(a.op, "image", a.image, a.image.type == DType::u8 ? DType::u8 : DType::f32,
            {a.batch, a.height, a.width, kChannels});
  CHECK(a.range.width != 0, "{}: the range of bytes has no width", name_of(a.op));
}

Cost cost(const Patchify& a) {
  return {0, a.patches.bytes() + device::size_of(a.image.type) * a.patches.count};
}

void run_cpu(const Patchify& a, Queue& queue) {
  const bool bytes = a.image.type == DType::u8;
  const std::array<float, 256> table = table_of(a.range);
  bool narrow = a.patches.type == DType::bf16;
  auto to_bf16 = vector_table().to_bf16;
  int64_t rows = a.height / a.patch, columns = a.width / a.columns(), run = a.columns() * kChannels;
  for_ranges(queue, a.batch * rows, a.patches.count, 1, [&](int64_t i, int64_t end) {
    std::vector<float> scaled(bytes ? size_t(run) : 0);
    for (; i < end; ++i) {  // one row of patches
      const int64_t in = ((i / rows) * a.height + (i % rows) * a.patch) * a.width * kChannels;
      int64_t at = i * columns * a.patch * run;
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t y = 0; y < a.patch; ++y, at += run) {
          const int64_t first = in + y * a.width * kChannels + c * run;
          for (size_t k = 0; k < scaled.size(); ++k) scaled[k] = table[a.image.u8()[first + int64_t(k)]];
          const float* pixels = bytes ? scaled.data() : a.image.f32() + first;
          if (narrow)
            to_bf16(a.patches.bf16() + at, pixels, run);
          else
            std::memcpy(a.patches.f32() + at, pixels, size_t(run) * sizeof(float));
        }
    }
  });
}

}  // namespace kernels
