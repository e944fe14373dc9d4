// SPDX-License-Identifier: Apache-2.0
// Runs the CUDA forms at the widths and alignments of models. They must be close to the CPU forms,
// and have the same bits twice. (The other cases prefer odd sizes and shifted tensors, which use
// other code.)
#include "kernels/adafactor.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cast.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/patchify.hpp"
#include "kernels/softmax_xent.hpp"
#include "rig.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

// An activation of either type, with an arena's alignment.
struct Activation {
  DType type;
  int64_t count;
  Tensor memory;
  Activation(const std::vector<float>& values, DType t)
      : type(t), count(int64_t(values.size())), memory(values) {
    if (type == DType::f32) return;
    auto* narrow = static_cast<uint16_t*>(view().data);
    for (size_t i = 0; i < values.size(); ++i) narrow[i] = loops::round_to_bf16(values[i]).bits;
  }
  View view() const { return {memory.data(), type, count}; }
  std::vector<float> values() const {
    if (type == DType::f32) return memory.values();
    std::vector<float> out;
    for (int64_t i = 0; i < count; ++i)
      out.push_back(loops::to_float(loops::Bf16{view().bf16()[i]}));
    return out;
  }
};

// `outputs(run)` calls run(op) and returns the op's results. They must be equal in two runs on
// CUDA, and close to the CPU's.
template <class F>
void compare(const char* what, double tolerance, const F& outputs) {
  if (!on_cuda()) GTEST_SKIP() << "compares CUDA with the CPU";
  Queue cpu(Kind::cpu, 2);
  std::vector<float> expected = outputs([&](const auto& op) { kernels::run(op, cpu); });
  TestQueue queue;
  auto on_gpu = [&] { return outputs([&](const auto& op) { rig::run(op, queue); }); };
  std::vector<float> actual = on_gpu();
  expect_close(actual, doubles(expected), tolerance, what);
  EXPECT_TRUE(same_bits(actual, on_gpu())) << what << ": two runs gave different bits";
}

std::vector<float> joined(std::initializer_list<std::vector<float>> parts) {
  std::vector<float> out;
  for (const auto& p : parts) out.insert(out.end(), p.begin(), p.end());
  return out;
}

constexpr double kNarrow = 0x1p-7;  // the two may round to neighbouring bf16 values

TEST(CudaShapes, LayerNorm) {
  for (int64_t columns : {192, 384, 640, 768, 1024, 1408})
    for (DType type : {DType::f32, DType::bf16})
      for (Write write : {Write::overwrite, Write::accumulate}) {
        SCOPED_TRACE(columns);
        const int64_t rows = 70;
        Tensor x(normals(rows * columns, "x", 1.5, 4)), dy(normals(rows * columns, "dy"));
        Tensor scale(normals(columns, "scale", 0.3, 1)), bias(normals(columns, "bias"));
        compare("forward", type == DType::f32 ? 2e-6 : kNarrow, [&](const auto& run) {
          Activation y(std::vector<float>(size_t(rows * columns)), type);
          Tensor mean(rows), rstd(rows);
          run(LayerNormForward{.y = y.view(),
                               .mean = mean,
                               .rstd = rstd,
                               .x = x,
                               .scale = scale,
                               .bias = bias,
                               .rows = rows,
                               .columns = columns});
          return y.values();
        });
        compare("backward", 3e-6, [&](const auto& run) {
          Tensor y(rows * columns), mean(rows), rstd(rows), dx(normals(rows * columns, "dx"));
          Tensor dscale(normals(columns, "ds")), dbias(normals(columns, "db"));
          run(LayerNormForward{.y = y,
                               .mean = mean,
                               .rstd = rstd,
                               .x = x,
                               .scale = scale,
                               .rows = rows,
                               .columns = columns});
          run(LayerNormBackward{.dx = dx,
                                .dscale = dscale,
                                .dbias = dbias,
                                .dy = dy,
                                .x = x,
                                .mean = mean,
                                .rstd = rstd,
                                .scale = scale,
                                .rows = rows,
                                .columns = columns,
                                .dx_write = write,
                                .param_write = write});
          return joined({dx.values(), dscale.values(), dbias.values()});
        });
      }
}

TEST(CudaShapes, SoftmaxXent) {
  for (auto shape :
       {std::pair<int64_t, int64_t>{3, 32000}, {5, 8000}, {2, 32768}, {2, 40000}, {9, 256}})
    for (float smoothing : {0.0f, 0.1f}) {
      const int64_t rows = shape.first, columns = shape.second;
      SCOPED_TRACE(columns);
      std::vector<int32_t> labels = integers(rows, 0, columns, "labels");
      labels[0] = -1;
      Tensor scale(normals(rows, "scale"));
      compare("gradient and loss", 2e-6, [&](const auto& run) {
        Tensor logits(normals(rows * columns, "logits", 3)), loss(rows);
        run(SoftmaxXent{.logits = logits,
                        .labels = device::view(labels.data(), rows),
                        .row_scale = scale,
                        .loss = loss,
                        .rows = rows,
                        .columns = columns,
                        .smoothing = smoothing});
        return joined({logits.values(), loss.values()});
      });
    }
}

TEST(CudaShapes, GeluDropoutColumnSumCast) {
  for (DType type : {DType::f32, DType::bf16}) {
    const int64_t rows = 130, columns = 768, n = rows * columns;
    const double tolerance = type == DType::f32 ? 1e-6 : kNarrow;
    Activation x(normals(n, "x", 2), type), dy(normals(n, "dy"), type);
    auto empty = [&] { return Activation(std::vector<float>(size_t(n)), type); };
    compare("gelu", tolerance, [&](const auto& run) {
      Activation y = empty(), dx = empty();
      run(GeluForward{y.view(), x.view()});
      run(GeluBackward{dx.view(), dy.view(), x.view()});
      return joined({y.values(), dx.values()});
    });
    for (int64_t first : {0, 6})
      compare("dropout", 0, [&](const auto& run) {
        Activation y = empty();
        run(Dropout{y.view(), x.view(), 0.3f, base::Stream(3, "d"), first});
        return y.values();
      });
    compare("column sum", 2e-6, [&](const auto& run) {
      Tensor out(normals(columns, "out"));
      run(ColumnSum{out, x.view(), rows, columns, Write::accumulate});
      return out.values();
    });
    compare("cast", 0, [&](const auto& run) {
      Activation y(std::vector<float>(size_t(n)), type == DType::f32 ? DType::bf16 : DType::f32);
      run(Cast{y.view(), x.view()});
      return y.values();
    });
    compare("gather", 0, [&](const auto& run) {
      std::vector<int32_t> index = integers(40, -5, rows, "index");
      Activation y(std::vector<float>(size_t(40 * columns)), type);
      run(GatherRows{y.view(), x.view(), device::view(index.data(), 40), 40, columns, rows});
      return y.values();
    });
  }
}

TEST(CudaShapes, RowsOfF32) {
  const int64_t rows = 60, width = 768, length = 12;
  Tensor x(normals(rows * width, "x")), table(normals(length * width, "table"));
  compare("add, add_table, scatter", 1e-7, [&](const auto& run) {
    Tensor sum(rows * width), tabled(rows * width), target(normals(100 * width, "target"));
    std::vector<int32_t> index(static_cast<size_t>(rows));
    for (size_t i = 0; i < index.size(); ++i) index[i] = i % 7 == 3 ? -1 : int32_t(99 - i);
    run(Add{sum, x, x});
    run(AddTable{tabled, x, table, rows, width, length});
    run(ScatterRows{target, x, device::view(index.data(), rows), rows, width, 100,
                    Write::accumulate});
    return joined({sum.values(), tabled.values(), target.values()});
  });
}

// Most tokens are the mask, as in training, and there are more rows than a tile has.
TEST(CudaShapes, Embedding) {
  const int64_t rows = 2500, width = 128, vocabulary = 3000, length = 50;
  std::vector<int32_t> ids = integers(rows, 0, vocabulary, "ids"),
                       masked = integers(rows, 0, 4, "masked");
  for (size_t i = 0; i < ids.size(); ++i)
    if (masked[i] != 0) ids[i] = int32_t(vocabulary - 1);
  View id_view = device::view(ids.data(), rows);
  Tensor table(normals(vocabulary * width, "table")),
      positions(normals(length * width, "positions")), dy(normals(rows * width, "dy"));
  compare("forward", 0, [&](const auto& run) {
    Tensor y(rows * width);
    run(EmbeddingForward{y, id_view, table, positions, rows, width, vocabulary, length});
    return y.values();
  });
  for (Write write : {Write::overwrite, Write::accumulate})
    compare("backward", 2e-6, [&](const auto& run) {
      Tensor dtable(normals(vocabulary * width, "dtable"));
      run(EmbeddingBackward{dtable, dy, id_view, rows, width, vocabulary, write});
      return dtable.values();
    });
}

TEST(CudaShapes, Patchify) {
  for (int64_t patch : {14, 16})
    for (DType type : {DType::f32, DType::bf16}) {
      const int64_t batch = 2, side = patch * 3, n = batch * side * side * 3;
      Tensor image(normals(n, "image"));
      compare("patches", 0, [&](const auto& run) {
        Activation patches(std::vector<float>(size_t(n)), type);
        run(Patchify{patches.view(), image, batch, side, side, patch});
        return patches.values();
      });
      // The rows of a stem on GPUs start at multiples of 16 bytes.
      const int64_t row = patch * patch * 3, next = (row + 7) / 8 * 8;
      compare("patches apart", 0, [&](const auto& run) {
        Activation patches(std::vector<float>(size_t(batch * 9 * next)), type);
        run(Patchify{.patches = patches.view(),
                     .image = image,
                     .batch = batch,
                     .height = side,
                     .width = side,
                     .patch = patch,
                     .stride = next});
        return patches.values();
      });
    }
}

}  // namespace
