// SPDX-License-Identifier: Apache-2.0
// Tests convolutions and both gradients, of f32 and of narrow operands, against plain loops in
// double.
#include "kernels/convolution.hpp"

#include "kernels/gemm.hpp"
#include "kernels/testing.hpp"
#include "narrow_type.hpp"

COVERS(convolution_forward);
COVERS(convolution_backward_data);
COVERS(convolution_backward_weights);

namespace {

using namespace kernels;
using namespace rig;

ConvolutionShape convolution_shape(int64_t batch, int64_t height, int64_t width, int64_t in,
                                   int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                                   int64_t groups = 1) {
  return {.window = {.batch = batch,
                     .height = height,
                     .width = width,
                     .kernel_height = kernel,
                     .kernel_width = kernel,
                     .stride = stride,
                     .padding = padding},
          .in = in,
          .out = out,
          .groups = groups};
}

// The kinds of ResNets, with odd sizes, and sizes at which windows leave pixels over.
std::vector<ConvolutionShape> convolution_shapes() {
  std::vector<ConvolutionShape> all{
      convolution_shape(2, 13, 9, 3, 8, 7, 2, 3),       // a stem
      convolution_shape(3, 6, 5, 16, 24, 3, 1, 1),      //
      convolution_shape(2, 7, 8, 16, 16, 3, 2, 1),      //
      convolution_shape(1, 4, 6, 128, 64, 3, 1, 1),     //
      convolution_shape(4, 5, 7, 24, 40, 1, 1, 0),      // a product
      convolution_shape(3, 9, 6, 16, 32, 1, 2, 0),      // a shortcut with stride
      convolution_shape(2, 6, 6, 32, 16, 3, 1, 1, 4),   // groups
      convolution_shape(2, 7, 5, 12, 12, 3, 2, 1, 12),  // one channel in each group
      convolution_shape(1, 1, 1, 5, 3, 3, 1, 1),        // mostly padding
      convolution_shape(2, 3, 3, 7, 5, 3, 1, 0),        // one position
  };
  ConvolutionShape wide =
      convolution_shape(2, 5, 8, 6, 10, 1, 1, 0);  // a window that is not square
  wide.window.kernel_width = 4;
  wide.window.padding = 1;
  all.push_back(wide);
  if (on_cuda()) return all;
  all.push_back(convolution_shape(3, 7, 7, 16, 512, 3, 1, 1));   // weights in tiles, several chunks
  all.push_back(convolution_shape(3, 5, 3, 48, 512, 3, 2, 1));   // likewise, odd numbers of rows
  all.push_back(convolution_shape(2, 14, 15, 24, 40, 1, 1, 0));  // no product, many pixels
  all.push_back(convolution_shape(1, 28, 29, 48, 128, 1, 1, 0));  // weights in tiles
  all.push_back(convolution_shape(2, 16, 17, 128, 16, 3, 2, 1));  // likewise, f32 alone
  all.push_back(convolution_shape(3, 5, 7, 512, 16, 1, 2, 0));    // a shortcut of many channels
  all.push_back(convolution_shape(2, 13, 11, 34, 32, 5, 3, 2));   // outputs directly
  wide.in = 32;
  wide.out = 48;
  all.push_back(wide);  // likewise
  return all;
}

// Calls f(x, weight, y) with the places of every product.
template <class F>
void for_products(const ConvolutionShape& s, const F& f) {
  const Window& w = s.window;
  const int64_t in = s.in / s.groups, out = s.out / s.groups;
  for (int64_t n = 0; n < w.batch; ++n)
    for (int64_t row = 0; row < w.out_height(); ++row)
      for (int64_t column = 0; column < w.out_width(); ++column)
        for (int64_t o = 0; o < s.out; ++o)
          for (int64_t i = 0; i < w.kernel_height; ++i)
            for (int64_t j = 0; j < w.kernel_width; ++j) {
              const int64_t h = row * w.stride - w.padding + i,
                            v = column * w.stride - w.padding + j;
              if (h < 0 || h >= w.height || v < 0 || v >= w.width) continue;
              for (int64_t c = 0; c < in; ++c)
                f(size_t(((n * w.height + h) * w.width + v) * s.in + o / out * in + c),
                  size_t(((o * in + c) * w.kernel_height + i) * w.kernel_width + j),
                  size_t(((n * w.out_height() + row) * w.out_width() + column) * s.out + o));
            }
}

struct ConvolutionCase {
  ConvolutionShape shape;
  bool narrow = false, narrow_result = false, accumulate = false;
  std::string name() const {
    const Window& w = shape.window;
    return fmt::format("{}x{}x{} {}->{} k{}x{} s{} p{} g{} narrow{} result{} accumulate{}", w.batch,
                       w.height, w.width, shape.in, shape.out, w.kernel_height, w.kernel_width,
                       w.stride, w.padding, shape.groups, narrow, narrow_result, accumulate);
  }
};

// Runs the three ops; returns all results.
std::vector<float> run_convolutions(const ConvolutionCase& c, TestQueue& queue, bool compare) {
  const ConvolutionShape& s = c.shape;
  const Write write = c.accumulate ? Write::accumulate : Write::overwrite;
  const std::vector<float> nothing(size_t(s.outputs()), NAN);
  auto before = [&](int64_t count, const char* name) {
    return c.accumulate ? normals(count, name) : std::vector<float>(size_t(count), NAN);
  };
  Numbers x(normals(s.inputs(), "x"), c.narrow), weight(normals(s.weights(), "w"), c.narrow),
      dy(normals(s.outputs(), "dy"), c.narrow), y(nothing, c.narrow_result),
      dx(before(s.inputs(), "dx"), c.narrow_result), dw(before(s.weights(), "dw"), false);
  std::vector<double> want_y(size_t(s.outputs())), want_dx(size_t(s.inputs())),
      want_dw(size_t(s.weights()));
  if (c.accumulate) {
    want_dx = doubles(dx.values());
    want_dw = doubles(dw.values());
  }
  run(ConvolutionForward{.y = y.view(), .x = x.view(), .weight = weight.view(), .shape = s}, queue);
  run(
      ConvolutionBackwardData{
          .dx = dx.view(), .dy = dy.view(), .weight = weight.view(), .shape = s, .write = write},
      queue);
  run(
      ConvolutionBackwardWeights{
          .dw = dw.view(), .x = x.view(), .dy = dy.view(), .shape = s, .write = write},
      queue);
  if (compare) {
    const std::vector<float> xs = x.values(), ws = weight.values(), dys = dy.values();
    for_products(s, [&](size_t i, size_t w, size_t o) {
      want_y[o] += double(xs[i]) * double(ws[w]);
      want_dx[i] += double(dys[o]) * double(ws[w]);
      want_dw[w] += double(dys[o]) * double(xs[i]);
    });
    // cuDNN rounds sums to the operands' type if channels fill no packs of 8.
    const bool packs = s.in % 8 == 0 && s.out % 8 == 0,
               rounds = on_cuda() && c.narrow && !s.is_product() && !packs;
    const double narrow = 0x1p-8 * narrow_part(), wide = rounds ? narrow : 2e-6,
                 image = c.narrow_result ? narrow : wide;
    // The rounding of a sum grows with its terms.
    const int64_t terms = s.out / s.groups * s.window.kernel_height * s.window.kernel_width;
    const double longer = std::sqrt(std::max(1.0, double(terms) / 1024));
    expect_close(y.values(), want_y, image, c.name() + " y");
    expect_close(dx.values(), want_dx, image * longer, c.name() + " dx");
    expect_close(dw.values(), want_dw, wide, c.name() + " dw");
  }
  std::vector<float> all = y.values();
  for (const Numbers* more : {&dx, &dw}) {
    const std::vector<float> values = more->values();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(Convolution, AgreesWithReference) {
  for (int threads : thread_counts({1, 2}))
    for (bool fixed_order : {false, true}) {
      TestQueue queue(threads, fixed_order);
      for (const ConvolutionShape& shape : convolution_shapes())
        for (bool accumulate : {false, true})
          run_convolutions({.shape = shape, .accumulate = accumulate}, queue, true);
    }
}

TEST(Convolution, AgreesWithReferenceForNarrowOperands) {
  for (bool emulated : bf16_ways()) {
    seams::force_bf16_emulation(emulated);
    for_each_narrow_type([] {
      TestQueue queue(2);
      for (const ConvolutionShape& shape : convolution_shapes())
        for (int flags = 0; flags < 4; ++flags)
          run_convolutions({.shape = shape,
                            .narrow = true,
                            .narrow_result = (flags & 1) != 0,
                            .accumulate = (flags & 2) != 0},
                           queue, true);
    });
  }
  seams::force_bf16_emulation(false);
}

// CPUs without bf16 instructions widen some images at a time. The numbers are whole and small, so
// every order of a sum gives the same bits.
TEST(Convolution, WidensManyImagesInParts) {
  if (on_cuda()) GTEST_SKIP() << "CUDA devices read bf16";
  auto whole = [](int64_t count, uint64_t seed) {
    std::vector<float> numbers(static_cast<size_t>(count));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = float((i * 2654435761u + seed) / 7 % 3) - 1;
    return numbers;
  };
  TestQueue queue(2);
  auto results = [&](const ConvolutionShape& s, bool narrow, Write write) {
    Numbers x(whole(s.inputs(), 1), narrow), weight(whole(s.weights(), 2), narrow),
        dy(whole(s.outputs(), 3), narrow), y(whole(s.outputs(), 4), narrow),
        dx(whole(s.inputs(), 5), narrow), dw(whole(s.weights(), 6), false);
    run(ConvolutionForward{.y = y.view(), .x = x.view(), .weight = weight.view(), .shape = s},
        queue);
    run(
        ConvolutionBackwardData{
            .dx = dx.view(), .dy = dy.view(), .weight = weight.view(), .shape = s, .write = write},
        queue);
    run(
        ConvolutionBackwardWeights{
            .dw = dw.view(), .x = x.view(), .dy = dy.view(), .shape = s, .write = write},
        queue);
    return std::array{y.values(), dx.values(), dw.values()};
  };
  // Few large images, many channels, single pixels.
  for (const ConvolutionShape& s : {convolution_shape(9, 342, 342, 4, 4, 3, 1, 1),
                                    convolution_shape(48, 32, 32, 32, 64, 3, 1, 1),
                                    convolution_shape(48, 32, 32, 32, 64, 1, 1, 0)})
    for (Write write : {Write::overwrite, Write::accumulate}) {
      seams::force_bf16_emulation(true);
      const auto got = results(s, true, write);
      seams::force_bf16_emulation(false);
      const auto want = results(s, false, write);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i] == want[i])
            << s.in << " -> " << s.out << " channels, result " << i << ", write " << int(write);
    }
}

TEST(Convolution, FixedOrderGivesTheSameBitsForAllThreads) {
  for (const ConvolutionShape& shape :
       {convolution_shape(8, 6, 6, 16, 32, 3, 1, 1), convolution_shape(6, 5, 5, 32, 128, 3, 2, 1),
        convolution_shape(4, 6, 6, 32, 32, 3, 1, 1, 4), convolution_shape(4, 8, 8, 16, 32, 1, 2, 0),
        convolution_shape(4, 8, 8, 16, 96, 1, 1, 0), convolution_shape(4, 15, 14, 16, 96, 1, 1, 0),
        convolution_shape(4, 20, 20, 3, 64, 7, 2, 3), convolution_shape(1, 3, 3, 16, 512, 3, 1, 1)})
    for (int flags = 0; flags < 4; ++flags)
      expect_same_bits(
          [&](TestQueue& queue) {
            const bool narrow = (flags & 1) != 0;
            return run_convolutions({.shape = shape,
                                     .narrow = narrow,
                                     .narrow_result = narrow,
                                     .accumulate = (flags & 2) != 0},
                                    queue, false);
          },
          true);
}

// An evaluation's numbers may not depend on the batch that an example is in.
TEST(Convolution, AnImageDoesNotDependOnOthersIfRowsAreAlike) {
  TestQueue queue(2);
  const TestQueue::RowsAlike alike(queue);
  for (const ConvolutionShape& all :
       {convolution_shape(5, 9, 7, 16, 32, 3, 1, 1), convolution_shape(5, 9, 7, 32, 16, 3, 1, 1),
        convolution_shape(5, 9, 7, 16, 32, 1, 1, 0), convolution_shape(5, 9, 7, 16, 32, 1, 2, 0),
        convolution_shape(5, 14, 15, 16, 32, 1, 1, 0)}) {
    ConvolutionShape one = all;
    one.window.batch = 1;
    Tensor x(normals(all.inputs(), "x")), w(normals(all.weights(), "w")), y(all.outputs()),
        y_of_one(one.outputs());
    run(ConvolutionForward{.y = y, .x = x, .weight = w, .shape = all}, queue);
    for (int64_t n = 0; n < all.window.batch; ++n) {
      run(ConvolutionForward{.y = y_of_one,
                             .x = x.view().slice(n * one.inputs(), one.inputs()),
                             .weight = w,
                             .shape = one},
          queue);
      const std::vector<float> values = y.values();
      const auto begin = values.begin() + n * one.outputs();
      EXPECT_TRUE(same_bits(y_of_one.values(), {begin, begin + one.outputs()})) << "image " << n;
    }
  }
}

TEST(Convolution, NoImages) {
  TestQueue queue;
  for (int64_t kernel : {1, 3}) {
    const ConvolutionShape shape = convolution_shape(0, 5, 5, 4, 6, kernel, 1, kernel / 2);
    run_convolutions({.shape = shape}, queue, true);
    run_convolutions({.shape = shape, .accumulate = true}, queue, true);
  }
}

TEST(Convolution, CostAndChecks) {
  const ConvolutionShape shape = convolution_shape(2, 4, 4, 4, 6, 3, 2, 1, 2);
  Tensor x(shape.inputs()), w(shape.weights()), y(shape.outputs());
  EXPECT_EQ(shape.outputs(), 2 * 2 * 2 * 6);
  EXPECT_EQ(shape.weights(), 6 * 2 * 9);
  const ConvolutionForward forward{y, x, w, shape};
  check(forward);
  EXPECT_EQ(cost(forward).flops, 2 * 8 * 6 * 2 * 9);
  EXPECT_EQ(cost(forward).bytes, 4 * (128 + 108 + 48));
  const ConvolutionBackwardData data{x, y, w, shape, Write::accumulate};
  check(data);
  EXPECT_EQ(cost(data).bytes, 4 * (2 * 128 + 108 + 48));
  const ConvolutionBackwardWeights weights{w, x, y, shape, Write::accumulate};
  check(weights);
  EXPECT_EQ(cost(weights).bytes, 4 * (128 + 2 * 108 + 48));

  ConvolutionForward wrong = forward;
  wrong.shape.groups = 4;
  EXPECT_ERROR(check(wrong), "convolution_forward", "4 groups do not divide 4 input and 6 output");
  wrong = forward;
  wrong.shape.window.kernel_height = 7;
  EXPECT_ERROR(check(wrong), "window of 7 x 3 does not fit images of 4 x 4 with padding 1");
  wrong = forward;
  wrong.shape.window.stride = 1;
  EXPECT_ERROR(check(wrong), "y has 48 elements");
  wrong = forward;
  wrong.weight.type = device::DType::bf16;
  EXPECT_ERROR(check(wrong), "weight holds bf16, not f32");
  ConvolutionBackwardWeights narrow = weights;
  narrow.x.type = narrow.dy.type = narrow.dw.type = device::DType::bf16;
  EXPECT_ERROR(check(narrow), "dw holds bf16, not f32");
}

// On GPUs f32 operands keep 10 bits if the queue allows tf32, and all bits otherwise.
TEST(Convolution, RoundsToTf32OnlyIfAllowed) {
  if (!on_cuda()) return;
  const ConvolutionShape shape = convolution_shape(2, 6, 5, 16, 24, 3, 1, 1);
  TestQueue exact, fast;
  fast.set_tf32(true);
  const std::vector<float> a = run_convolutions({.shape = shape}, exact, true),
                           b = run_convolutions({.shape = shape}, fast, false);
  double most = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(double(a[i])));
    worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
  }
  EXPECT_LT(worst, 2e-3 * most);
  EXPECT_GT(worst, 1e-6 * most);
}

// An op must refuse a type that it cannot compute with.
TEST(Convolution, BinaryOf16BitsIsForGpus) {
  if (on_cuda()) return;
  for (int64_t kernel : {1, 3}) {
    const ConvolutionShape shape = convolution_shape(1, 3, 3, 2, 2, kernel, 1, kernel / 2);
    std::vector<uint16_t> x(18), w(size_t(shape.weights())), y(18);
    const device::DType f16 = device::DType::f16;
    TestQueue queue;
    EXPECT_ERROR(run(ConvolutionForward{.y = {y.data(), f16, 18},
                                        .x = {x.data(), f16, 18},
                                        .weight = {w.data(), f16, int64_t(w.size())},
                                        .shape = shape},
                     queue),
                 "f16 are for GPUs");
  }
}

}  // namespace
