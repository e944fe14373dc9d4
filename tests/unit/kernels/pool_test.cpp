// SPDX-License-Identifier: Apache-2.0
// Tests max pooling and average pooling, and their gradients, against plain loops in double.
#include "kernels/average_pool.hpp"
#include "kernels/max_pool.hpp"
#include "narrow_type.hpp"

COVERS(max_pool_forward);
COVERS(max_pool_backward);
COVERS(average_pool_forward);
COVERS(average_pool_backward);

namespace {

using namespace kernels;
using namespace rig;

struct PoolCase {
  Window window;
  int64_t channels;
};

std::vector<PoolCase> pool_cases() {
  auto window = [](int64_t batch, int64_t height, int64_t width, int64_t kernel, int64_t stride,
                   int64_t padding) {
    return Window{.batch = batch,
                  .height = height,
                  .width = width,
                  .kernel_height = kernel,
                  .kernel_width = kernel,
                  .stride = stride,
                  .padding = padding};
  };
  Window uneven = window(2, 5, 8, 2, 3, 1);
  uneven.kernel_width = 4;
  return {{window(2, 9, 12, 3, 2, 1), 64},
          {window(1, 7, 7, 3, 2, 1), 5},
          {window(3, 4, 5, 2, 2, 0), 130},
          {window(2, 14, 11, 10, 10, 4), 12},
          {window(2, 3, 3, 3, 1, 0), 24},
          {window(2, 5, 4, 3, 1, 1), 8},
          {window(1, 1, 1, 1, 1, 0), 1},
          {window(0, 4, 4, 2, 2, 0), 3},
          {uneven, 9}};
}

// Calls f(position, pixel, place) for each pixel of each window, by rows and columns.
template <class F>
void for_pooled_pixels_of(const Window& w, const F& f) {
  for (int64_t n = 0; n < w.batch; ++n)
    for (int64_t row = 0; row < w.out_height(); ++row)
      for (int64_t column = 0; column < w.out_width(); ++column)
        for (int64_t i = 0; i < w.kernel_height; ++i)
          for (int64_t j = 0; j < w.kernel_width; ++j) {
            const int64_t h = row * w.stride - w.padding + i, v = column * w.stride - w.padding + j;
            if (h >= 0 && h < w.height && v >= 0 && v < w.width)
              f((n * w.out_height() + row) * w.out_width() + column,
                (n * w.height + h) * w.width + v, i * w.kernel_width + j);
          }
}

std::vector<float> no_numbers(int64_t count) { return std::vector<float>(size_t(count), NAN); }

void test_max(const PoolCase& c, bool narrow, TestQueue& queue) {
  const Window& w = c.window;
  const int64_t outputs = w.positions() * c.channels, inputs = w.pixels() * c.channels;
  // Few values, so that windows have equal ones, and all are negative, so padding would win.
  std::vector<float> values;
  for (int32_t i : integers(inputs, -6, -1, "x")) values.push_back(float(i));
  Numbers x(values, narrow), y(no_numbers(outputs), narrow), dy(normals(outputs, "dy"), narrow),
      dx(no_numbers(inputs), narrow);
  std::vector<uint8_t> place(size_t(outputs), 255);
  const View places{place.data(), device::DType::u8, outputs};
  run(MaxPoolForward{y.view(), places, x.view(), w, c.channels}, queue);
  run(MaxPoolBackward{dx.view(), dy.view(), places, w, c.channels}, queue);

  std::vector<double> want(size_t(outputs), -INFINITY), want_dx(size_t(inputs), 0);
  std::vector<int64_t> winner(size_t(outputs), 0), want_place(size_t(outputs), 0);
  for_pooled_pixels_of(w, [&](int64_t position, int64_t pixel, int64_t at) {
    for (int64_t k = 0; k < c.channels; ++k) {
      const size_t to = size_t(position * c.channels + k), from = size_t(pixel * c.channels + k);
      if (double(values[from]) <= want[to]) continue;
      want[to] = double(values[from]);
      winner[to] = int64_t(from);
      want_place[to] = at;
    }
  });
  const std::vector<float> gradient = dy.values();
  for (size_t i = 0; i < gradient.size(); ++i) {
    want_dx[size_t(winner[i])] += double(gradient[i]);
    EXPECT_EQ(place[i], want_place[i]) << i;
  }
  expect_close(y.values(), want, 0, "maximum");
  expect_close(dx.values(), want_dx, narrow ? 0x1p-8 * narrow_part() : 1e-6, "gradient");

  Numbers again(no_numbers(outputs), narrow);
  run(MaxPoolForward{again.view(), {}, x.view(), w, c.channels}, queue);
  EXPECT_TRUE(same_bits(again.values(), y.values())) << "without places";
}

void test_average(const PoolCase& c, bool narrow, bool narrow_y, TestQueue& queue) {
  const Window& w = c.window;
  const int64_t outputs = w.positions() * c.channels, inputs = w.pixels() * c.channels;
  Numbers x(normals(inputs, "x"), narrow), y(no_numbers(outputs), narrow_y),
      dy(normals(outputs, "dy"), narrow_y), dx(no_numbers(inputs), narrow);
  run(AveragePoolForward{y.view(), x.view(), w, c.channels}, queue);
  run(AveragePoolBackward{dx.view(), dy.view(), w, c.channels}, queue);

  const double pixels = double(w.kernel_height * w.kernel_width);
  const std::vector<float> xs = x.values(), dys = dy.values();
  std::vector<double> want(size_t(outputs), 0), want_dx(size_t(inputs), 0);
  for_pooled_pixels_of(w, [&](int64_t position, int64_t pixel, int64_t) {
    for (int64_t k = 0; k < c.channels; ++k) {
      const size_t to = size_t(position * c.channels + k), from = size_t(pixel * c.channels + k);
      want[to] += double(xs[from]) / pixels;
      want_dx[from] += double(dys[to]) / pixels;
    }
  });
  expect_close(y.values(), want, narrow_y ? 0x1p-8 * narrow_part() : 1e-6, "mean");
  expect_close(dx.values(), want_dx, narrow ? 0x1p-8 * narrow_part() : 1e-6, "gradient");
}

TEST(MaxPool, FindsTheFirstOfTheLargest) {
  for_each_table([] {
    TestQueue queue(2);
    for (const PoolCase& c : pool_cases()) {
      test_max(c, false, queue);
      for_each_narrow_type([&] { test_max(c, true, queue); });
    }
  });
}

TEST(MaxPool, KeepsNumbersThatAreNone) {
  for_each_table([] {
    TestQueue queue;
    const float inf = INFINITY;
    const int64_t channels = 20;
    std::vector<float> values;
    for (float v : {1.0f, float(NAN), 3.0f, -inf, -inf, -inf})
      values.insert(values.end(), size_t(channels), v);
    Tensor x(values), y(2 * channels);
    std::vector<uint8_t> place(size_t(2 * channels), 9);
    const Window window{.batch = 2, .height = 1, .width = 3, .kernel_width = 3};
    run(MaxPoolForward{y, {place.data(), device::DType::u8, 2 * channels}, x, window, channels},
        queue);
    for (int64_t c = 0; c < channels; ++c) {
      EXPECT_TRUE(std::isnan(y[c]));
      EXPECT_EQ(place[size_t(c)], 1);
      EXPECT_EQ(y[channels + c], -inf);
      EXPECT_EQ(place[size_t(channels + c)], 0);
    }
  });
}

TEST(AveragePool, CountsPaddingAsZeros) {
  TestQueue queue(2);
  for (const PoolCase& c : pool_cases()) {
    test_average(c, false, false, queue);
    for_each_narrow_type([&] {
      test_average(c, true, false, queue);
      test_average(c, true, true, queue);
    });
  }
}

TEST(Pools, GiveTheSameBitsForAllThreads) {
  const PoolCase c{{.batch = 3,
                    .height = 40,
                    .width = 33,
                    .kernel_height = 3,
                    .kernel_width = 3,
                    .stride = 2,
                    .padding = 1},
                   20};
  expect_same_bits(
      [&](TestQueue& queue) {
        const int64_t outputs = c.window.positions() * c.channels;
        Tensor x(normals(c.window.pixels() * c.channels, "x")), y(outputs), mean(outputs),
            dx(c.window.pixels() * c.channels), dmean(c.window.pixels() * c.channels);
        std::vector<uint8_t> place(static_cast<size_t>(outputs));
        const View places{place.data(), device::DType::u8, outputs};
        run(MaxPoolForward{y, places, x, c.window, c.channels}, queue);
        run(MaxPoolBackward{dx, y, places, c.window, c.channels}, queue);
        run(AveragePoolForward{mean, x, c.window, c.channels}, queue);
        run(AveragePoolBackward{dmean, y, c.window, c.channels}, queue);
        std::vector<float> all;
        for (const Tensor* t : {&y, &dx, &mean, &dmean}) {
          const std::vector<float> values = t->values();
          all.insert(all.end(), values.begin(), values.end());
        }
        return all;
      },
      false);
}

TEST(Pools, CostAndChecks) {
  const Window window{
      .batch = 2, .height = 4, .width = 4, .kernel_height = 2, .kernel_width = 2, .stride = 2};
  Tensor x(96), y(24);
  std::vector<uint8_t> place(24);
  const View places{place.data(), device::DType::u8, 24};
  const MaxPoolForward max{y, places, x, window, 3};
  const MaxPoolBackward max_backward{x, y, places, window, 3};
  const AveragePoolForward average{y, x, window, 3};
  const AveragePoolBackward average_backward{x, y, window, 3};
  check(max);
  check(max_backward);
  check(average);
  check(average_backward);
  EXPECT_EQ(cost(max).bytes, 4 * (96 + 24) + 24);
  EXPECT_EQ(cost(max_backward).bytes, 4 * (96 + 24) + 24);
  EXPECT_EQ(cost(average).bytes, 4 * (96 + 24));
  EXPECT_EQ(cost(average_backward).bytes, 4 * (96 + 24));

  MaxPoolForward wrong = max;
  wrong.window.padding = 2;
  EXPECT_ERROR(check(wrong), "max_pool_forward", "padding 2 is more than half of the window");
  wrong = max;
  wrong.window.kernel_width = 5;
  EXPECT_ERROR(check(wrong), "window of 2 x 5 does not fit images of 4 x 4");
  wrong = max;
  wrong.window.height = wrong.window.width = wrong.window.kernel_height =
      wrong.window.kernel_width = 17;
  EXPECT_ERROR(check(wrong), "has more than 256 pixels");
  AveragePoolForward missing = average;
  missing.y = {};
  EXPECT_ERROR(check(missing), "average_pool_forward", "y has 0 elements");
}

}  // namespace
