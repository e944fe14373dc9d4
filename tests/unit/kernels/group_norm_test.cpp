// SPDX-License-Identifier: Apache-2.0
// Tests group normalisation against plain loops in double: statistics, forward with ReLU and a
// shortcut, backward with both ways to find the ReLU's zeros, odd numbers of channels, groups of
// one channel and of all, narrow types, instruction sets and threads. An image's bits depend on
// that image alone.
#include "kernels/group_norm.hpp"

#include "narrow_type.hpp"

COVERS(group_norm_statistics);
COVERS(group_norm_backward);

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

struct GroupSizes {
  int64_t images, rows, columns, groups;
  int64_t count() const { return images * rows * columns; }
  int64_t values() const { return rows * columns / groups; }  // that share statistics
  // The group of an element, counted over the groups of all images.
  int64_t group_of(int64_t i) const {
    return i / (rows * columns) * groups + i % columns / (columns / groups);
  }
};
const std::vector<GroupSizes> kGroupSizes = {{1, 2, 8, 2},   {3, 5, 6, 3},     {2, 9, 21, 7},
                                             {2, 70, 21, 1}, {1, 130, 64, 32}, {2, 3, 260, 4},
                                             {3, 49, 16, 16}};

View group_sums(std::vector<double>& v) { return {v.data(), DType::f64, int64_t(v.size())}; }

// What the three ops of a pass in each direction compute.
struct GroupNormRun {
  GroupSizes s;
  Tensor scale, bias, mean, rstd;
  std::vector<double> sums;

  GroupNormRun(const GroupSizes& sizes, const std::vector<float>& scales,
               const std::vector<float>& biases)
      : s(sizes),
        scale(scales),
        bias(biases),
        mean(s.images * s.columns),
        rstd(s.images * s.columns),
        sums(size_t(2 * s.images * s.columns), NAN) {}
  explicit GroupNormRun(const GroupSizes& sizes)
      : GroupNormRun(sizes, normals(sizes.columns, "scale", 0.3, 1),
                     normals(sizes.columns, "bias", 0.5)) {}

  BatchNormValues values() const { return {mean, rstd, scale, bias}; }
  void measure(View x, TestQueue& queue) {
    run(BatchNormSums{group_sums(sums), x, s.images, s.rows, s.columns}, queue);
    run(GroupNormStatistics{.mean = mean,
                            .rstd = rstd,
                            .sums = group_sums(sums),
                            .images = s.images,
                            .rows = s.rows,
                            .columns = s.columns,
                            .groups = s.groups},
        queue);
  }
  void forward(View x, View y, bool relu, View shortcut, TestQueue& queue) {
    run(BatchNormForward{.y = y,
                         .x = x,
                         .norm = values(),
                         .shortcut = shortcut,
                         .groups = s.images,
                         .rows = s.rows,
                         .columns = s.columns,
                         .relu = relu},
        queue);
  }
  // y, if given, is the output with a ReLU, from which its zeros are found; dy becomes g then.
  void backward(View x, View dy, View y, View dx, bool relu, TestQueue& queue) {
    run(BatchNormBackwardSums{.sums = group_sums(sums),
                              .g = y.none() ? View{} : dy,
                              .dy = dy,
                              .y = y,
                              .x = x,
                              .norm = values(),
                              .parts = s.images,
                              .groups = s.images,
                              .rows = s.rows,
                              .columns = s.columns,
                              .relu = relu},
        queue);
    run(GroupNormBackward{.dx = dx,
                          .dy = dy,
                          .x = x,
                          .norm = values(),
                          .sums = group_sums(sums),
                          .images = s.images,
                          .rows = s.rows,
                          .columns = s.columns,
                          .groups = s.groups,
                          .relu = relu && y.none()},
        queue);
  }
};

// Mean and rstd of all groups, and what follows from them, in double.
struct GroupDoubles {
  const GroupNormRun& of;
  std::vector<double> mean, rstd;

  GroupDoubles(const GroupNormRun& run, const std::vector<float>& x)
      : of(run), mean(size_t(run.s.images * run.s.groups)), rstd(mean) {
    const double values = double(of.s.values());
    for (int64_t i = 0; i < of.s.count(); ++i) mean[group(i)] += double(x[size_t(i)]) / values;
    for (int64_t i = 0; i < of.s.count(); ++i) {
      const double d = double(x[size_t(i)]) - mean[group(i)];
      rstd[group(i)] += d * d / values;
    }
    for (double& v : rstd) v = 1 / std::sqrt(v + 1e-5);
  }
  size_t group(int64_t i) const { return size_t(of.s.group_of(i)); }
  double scale(int64_t i) const { return double(of.scale[i % of.s.columns]); }
  double z(int64_t i, float x) const { return (double(x) - mean[group(i)]) * rstd[group(i)]; }
  double y(int64_t i, float x) const {
    return z(i, x) * scale(i) + double(of.bias[i % of.s.columns]);
  }
  // The gradient of x, for the gradient g of y.
  std::vector<double> dx(const std::vector<float>& x, const std::vector<double>& g) const {
    std::vector<double> first(mean.size()), second(mean.size()), out;
    for (int64_t i = 0; i < of.s.count(); ++i) {
      const double h = g[size_t(i)] * scale(i) / double(of.s.values());
      first[group(i)] += h;
      second[group(i)] += h * z(i, x[size_t(i)]);
    }
    for (int64_t i = 0; i < of.s.count(); ++i)
      out.push_back(rstd[group(i)] * (g[size_t(i)] * scale(i) - first[group(i)] -
                                      z(i, x[size_t(i)]) * second[group(i)]));
    return out;
  }
};

double group_tolerance(DType type) { return type == DType::f32 ? 4e-6 : 0.005 * narrow_part(); }

// Runs body(queue, narrow, type) for all types, instruction sets and some numbers of threads.
void for_group_types(const std::function<void(TestQueue&, bool, DType)>& body) {
  for_each_table([&] {
    for (int threads : thread_counts({1, 3})) {
      TestQueue queue(threads);
      body(queue, false, DType::f32);
      for_each_narrow_type([&] { body(queue, true, narrow_type()); });
    }
  });
}

TEST(GroupNorm, ForwardAgainstDoubles) {
  for_group_types([](TestQueue& queue, bool narrow, DType type) {
    for (const GroupSizes& s : kGroupSizes)
      for (bool relu : {false, true}) {
        SCOPED_TRACE(fmt::format("{} x {} x {}, {} groups", s.images, s.rows, s.columns, s.groups));
        // A mean far from 0 shows sums that lose digits.
        Numbers x(normals(s.count(), "x", 0.7, 5), narrow),
            y(std::vector<float>(size_t(s.count()), NAN), narrow),
            other(normals(s.count(), "other"), narrow);
        GroupNormRun norm(s);
        norm.measure(x.view(), queue);
        norm.forward(x.view(), y.view(), relu, relu ? other.view() : View{}, queue);
        const std::vector<float> xs = x.values(), others = other.values();
        const GroupDoubles want(norm, xs);
        std::vector<double> ys, means, rstds;
        for (int64_t i = 0; i < s.count(); ++i) {
          const double v = want.y(i, xs[size_t(i)]);
          ys.push_back(relu ? std::max(0.0, v + double(others[size_t(i)])) : v);
        }
        for (int64_t image = 0; image < s.images; ++image)
          for (int64_t j = 0; j < s.columns; ++j) {
            means.push_back(want.mean[want.group(image * s.rows * s.columns + j)]);
            rstds.push_back(want.rstd[want.group(image * s.rows * s.columns + j)]);
          }
        expect_close(norm.mean.values(), means, 1e-6, "mean");
        expect_close(norm.rstd.values(), rstds, 2e-6, "rstd");
        expect_close(y.values(), ys, group_tolerance(type), "y", 1);
      }
  });
}

TEST(GroupNorm, BackwardIsTheGradientOfForward) {
  for_group_types([](TestQueue& queue, bool narrow, DType type) {
    for (const GroupSizes& s : kGroupSizes)
      for (int way : {0, 1, 2}) {  // no ReLU; its zeros found from x; from y
        SCOPED_TRACE(fmt::format("{} x {} x {}, {} groups, way {}", s.images, s.rows, s.columns,
                                 s.groups, way));
        Numbers x(normals(s.count(), "x", 1, 2), narrow),
            y(std::vector<float>(size_t(s.count()), NAN), narrow),
            dy(normals(s.count(), "dy"), narrow),
            dx(std::vector<float>(size_t(s.count()), NAN), narrow);
        GroupNormRun norm(s);
        norm.measure(x.view(), queue);
        norm.forward(x.view(), y.view(), way != 0, {}, queue);
        const std::vector<float> xs = x.values(), ys = y.values(), dys = dy.values();
        std::vector<double> g;
        for (size_t i = 0; i < ys.size(); ++i)
          g.push_back(way != 0 && ys[i] <= 0 ? 0 : double(dys[i]));
        norm.backward(x.view(), dy.view(), way == 2 ? y.view() : View{}, dx.view(), way != 0,
                      queue);
        const GroupDoubles want(norm, xs);
        expect_close(dx.values(), want.dx(xs, g), 3 * group_tolerance(type), "dx", 1);
      }
  });
}

// Recorded with the GroupNorm of tinygrad 0.14.0, which has torch.nn.GroupNorm's formula, eps 1e-5:
//   x = ((arange(36) * 7 % 11 - 4) / 4).reshape(2, 6, 1, 3), dy = ((arange(36) * 5 % 13 - 6) / 8),
//   GroupNorm(3, 6) with this weight and bias, (GroupNorm(x) * dy).sum().backward()
// Images there have channels first; these values are transposed.
TEST(GroupNorm, HasPublishedValues) {
  const GroupSizes s{2, 3, 6, 3};
  const std::vector<float> scale = {1, -0.5f, 2, 0.25f, 0, 1.5f},
                           bias = {0, 1, -1, 0.5f, 2, -0.25f};
  const std::vector<double> want_y = {
      -1.3930421, 0.2039759, 1.7239199,  0.7648255, 2, -0.335889,   //
      0.696521,   0.800994,  -0.6973423, 0.4621678, 2, -2.3972237,  //
      -0.4975151, 1.398012,  -3.1186042, 0.15951,   2, 1.2101119,   //
      0.2862965,  1.0286297, -2.946816,  0.1707591, 2, -2.2254455,  //
      -1.0879265, 1.7157412, 1.8629644,  0.7719816, 2, 1.3818898,   //
      1.3169637,  0.513296,  -0.8854815, 0.4284259, 2, -0.6794447};
  const std::vector<double> want_dx = {
      -0.4008498, -0.0269631, -0.6526746, 0.005201,  -0.1224959, 1.003633,    //
      -0.2286818, -0.0720396, 1.0708543,  0.4046022, 0.2593507,  -0.6758549,  //
      0.8456506,  -0.1171162, -1.1401676, 0.3121846, -0.4088808, -0.0557524,  //
      0.7870814,  0.2376728,  -0.2720352, 0.8394498, -0.3066583, 0.327796,    //
      -0.3798856, 0.0154841,  0.5794081,  0.1878367, 0.6631643,  -0.7637158,  //
      0.1163058,  -0.7766585, -1.6739892, 0.3393298, 0.10898,    -0.0295661};
  std::vector<float> x, dy;
  for (int64_t image = 0; image < 2; ++image)
    for (int64_t p = 0; p < 3; ++p)
      for (int64_t c = 0; c < 6; ++c) {
        const int64_t i = (image * 6 + c) * 3 + p;
        x.push_back(float(i * 7 % 11 - 4) / 4);
        dy.push_back(float(i * 5 % 13 - 6) / 8);
      }
  TestQueue queue;
  Tensor in(x), out(s.count()), d(dy), dx(s.count()), dscale(6), dbias(6);
  GroupNormRun norm(s, scale, bias);
  norm.measure(in, queue);
  norm.forward(in, out, false, {}, queue);
  norm.backward(in, d, {}, dx, false, queue);
  run(BatchNormGradients{.dscale = dscale,
                         .dbias = dbias,
                         .sums = group_sums(norm.sums),
                         .parts = s.images,
                         .columns = s.columns},
      queue);
  expect_close(out.values(), want_y, 5e-7, "y");
  expect_close(dx.values(), want_dx, 1e-6, "dx");
  expect_close(dscale.values(),
               {1.6895242, -0.6991235, 1.0582763, 1.2678864, 1.6605195, -0.3650279}, 1e-6,
               "dscale");
  expect_close(dbias.values(), {0.5, 0.375, -1.375, 0.125, 0, -0.125}, 1e-7, "dbias");
}

TEST(GroupNorm, BitsDependOnTheImageAlone) {
  const GroupSizes s{5, 70, 36, 4}, one{1, 70, 36, 4};
  const std::vector<float> x = normals(s.count(), "x", 1, 2), dy = normals(s.count(), "dy");
  auto results = [&](TestQueue& queue, const GroupSizes& sizes, int64_t first) {
    const auto begin = first * s.rows * s.columns, end = begin + sizes.count();
    Tensor in(std::vector<float>(x.begin() + begin, x.begin() + end)),
        d(std::vector<float>(dy.begin() + begin, dy.begin() + end)), y(sizes.count()),
        dx(sizes.count());
    GroupNormRun norm(sizes);
    norm.measure(in, queue);
    norm.forward(in, y, true, {}, queue);
    norm.backward(in, d, {}, dx, true, queue);
    std::vector<float> all = y.values(), more = dx.values();
    all.insert(all.end(), more.begin(), more.end());
    for (double v : norm.sums) all.push_back(float(v));
    return all;
  };
  expect_same_bits_for_all_threads([&](TestQueue& queue) { return results(queue, s, 0); });
  TestQueue queue;
  const std::vector<float> all = results(queue, s, 0);
  const int64_t of_image = one.count(), sums_of_image = 2 * s.columns;
  for (int64_t image = 0; image < s.images; ++image) {
    const std::vector<float> alone = results(queue, one, image);
    auto part = [&](int64_t begin, int64_t count) {
      return std::vector<float>(all.begin() + begin, all.begin() + begin + count);
    };
    std::vector<float> want = part(image * of_image, of_image);
    for (const auto& more : {part(s.count() + image * of_image, of_image),
                             part(2 * s.count() + image * sums_of_image, sums_of_image)})
      want.insert(want.end(), more.begin(), more.end());
    EXPECT_TRUE(same_bits(alone, want)) << image;
  }
}

// Channels whose values are all equal have no NaN, and a scale of 0 takes no gradient.
TEST(GroupNorm, AConstantGroupHasNoNan) {
  const GroupSizes s{1, 4, 2, 1};
  TestQueue queue;
  Tensor x(std::vector<float>(8, 3)), dy(normals(8, "dy")), y(8), dx(8);
  GroupNormRun norm(s, {0, 0}, {1, 2});
  norm.measure(x, queue);
  norm.forward(x, y, false, {}, queue);
  norm.backward(x, dy, {}, dx, false, queue);
  EXPECT_EQ(y.values(), (std::vector<float>{1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(dx.values(), std::vector<float>(8, 0));
}

TEST(GroupNorm, ChecksAndCosts) {
  Tensor x(24), v(8);
  std::vector<double> sums(16);
  GroupNormStatistics form{.mean = v,
                           .rstd = v,
                           .sums = group_sums(sums),
                           .images = 2,
                           .rows = 3,
                           .columns = 4,
                           .groups = 2};
  check(form);
  EXPECT_EQ(cost(form).bytes, 2 * 32 + 128);
  form.groups = 3;
  EXPECT_ERROR(check(form), "group_norm_statistics", "4 columns in 3 groups");
  GroupNormBackward back{.dx = x,
                         .dy = x,
                         .x = x,
                         .norm = {v, v, {}, {}},
                         .sums = group_sums(sums),
                         .images = 2,
                         .rows = 3,
                         .columns = 4,
                         .groups = 4};
  check(back);
  EXPECT_EQ(cost(back).bytes, 3 * 96 + 128);
  back.rows = 2;
  EXPECT_ERROR(check(back), "group_norm_backward", "dx has 24 elements");
}

}  // namespace
