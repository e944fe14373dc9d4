// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax_xent.hpp"

#include <hdf5.h>

#include "../recorded.hpp"
#include "narrow_type.hpp"

COVERS(softmax_xent);

namespace {

using namespace kernels;
using namespace rig;

struct XentReference {
  std::vector<double> loss, gradient;  // gradient of loss[r] by logits, not scaled
};

XentReference reference(const std::vector<double>& logits, const std::vector<int32_t>& labels,
                        int64_t columns, double smoothing) {
  XentReference f;
  double on = 1 - smoothing, off = columns > 1 ? smoothing / double(columns - 1) : 0;
  for (size_t r = 0; r < labels.size(); ++r) {
    const double* z = &logits[r * size_t(columns)];
    double largest = *std::max_element(z, z + columns), sum = 0, loss = 0, q_sum = 0;
    for (int64_t j = 0; j < columns; ++j) sum += std::exp(z[j] - largest);
    auto q = [&](int64_t j) { return j == labels[r] ? on : off; };
    for (int64_t j = 0; j < columns; ++j) {
      loss -= q(j) * (z[j] - largest - std::log(sum));
      q_sum += q(j);
    }
    f.loss.push_back(loss);
    for (int64_t j = 0; j < columns; ++j)
      f.gradient.push_back(std::exp(z[j] - largest) / sum * q_sum - q(j));
  }
  return f;
}

std::vector<int32_t> labels_for(int64_t rows, int64_t columns) {
  std::vector<int32_t> labels = integers(rows, 0, columns, "labels");
  if (rows > 3) {
    labels[1] = -1;
    labels[2] = int32_t(columns);
    labels[3] = int32_t(columns - 1);
  }
  return labels;
}

TEST(SoftmaxXent, ReferenceGradientIsTheDerivative) {
  std::vector<double> z = doubles(normals(20, "z"));
  std::vector<int32_t> labels{2, -1, 4, 5};
  for (double smoothing : {0.0, 0.1}) {
    XentReference f = reference(z, labels, 5, smoothing);
    for (size_t i = 0; i < z.size(); ++i) {
      std::vector<double> up = z, down = z;
      up[i] += 1e-5;
      down[i] -= 1e-5;
      double d = reference(up, labels, 5, smoothing).loss[i / 5] -
                 reference(down, labels, 5, smoothing).loss[i / 5];
      EXPECT_NEAR(f.gradient[i], d / 2e-5, 1e-9);
    }
  }
}

TEST(SoftmaxXent, AgreesWithReference) {
  for_each_table([] {
    for (int threads : thread_counts({1, 2}))
      for (auto [rows, columns] : {std::pair<int64_t, int64_t>{0, 5},
                                   {1, 1},
                                   {4, 2},
                                   {5, 7},
                                   {6, 16},
                                   {5, 33},
                                   {9, 1025},
                                   {4, 2048},
                                   {5, 32000},
                                   {4, 65521}})
        for (float smoothing : {0.0f, 0.1f})
          for (bool gradient : {true, false}) {
            if (columns == 1 && smoothing > 0) continue;
            SCOPED_TRACE(fmt::format("{} x {}, smoothing {}", rows, columns, smoothing));
            TestQueue queue(threads);
            std::vector<int32_t> labels = labels_for(rows, columns);
            Tensor logits(normals(rows * columns, "z", 3, 20), 1), scale(normals(rows, "scale")),
                loss(rows, 3);
            XentReference f =
                reference(doubles(logits.values()), labels, columns, double(smoothing));
            std::vector<float> before = logits.values();
            SoftmaxXent s{
                logits,  device::view(labels.data(), rows), {}, loss, rows, columns, smoothing,
                gradient};
            if (gradient) s.row_scale = scale;
            run(s, queue);
            expect_close(loss.values(), f.loss, 1e-6, "loss");
            if (!gradient) {
              EXPECT_TRUE(same_bits(logits.values(), before));
              continue;
            }
            for (int64_t i = 0; i < rows * columns; ++i)
              f.gradient[size_t(i)] *= double(scale[i / columns]);
            expect_close(logits.values(), f.gradient, 1e-6, "gradient");
          }
  });
}

// The rounded gradient is the f32 one, rounded; the loss is the same.
TEST(SoftmaxXent, WritesARoundedGradient) {
  for_each_narrow_type([] {
    for_each_table([] {
      for (auto [rows, columns] :
           {std::pair<int64_t, int64_t>{5, 33}, {4, 2048}, {3, 32001}, {2, 40000}}) {
        SCOPED_TRACE(columns);
        TestQueue queue(2);
        std::vector<int32_t> labels = labels_for(rows, columns);
        Tensor scale(normals(rows, "scale")), loss[2] = {Tensor(rows), Tensor(rows)},
                                              logits[2] = {Tensor(normals(rows * columns, "z")),
                                                           Tensor(normals(rows * columns, "z"))};
        std::vector<uint16_t> rounded(size_t(rows * columns) + 1, 0xABCD);
        for (int narrow : {0, 1}) {
          SoftmaxXent s{logits[narrow],
                        device::view(labels.data(), rows),
                        scale,
                        loss[narrow],
                        rows,
                        columns,
                        0.1f};
          if (narrow) s.rounded = narrow_view(rounded).slice(0, rows * columns);
          run(s, queue);
        }
        EXPECT_TRUE(same_bits(loss[0].values(), loss[1].values()));
        for (int64_t i = 0; i < rows * columns; ++i)
          ASSERT_EQ(rounded[size_t(i)], narrowed(logits[0][i])) << i;
        EXPECT_EQ(rounded.back(), 0xABCD);
      }
    });
  });
}

TEST(SoftmaxXent, AllOffTargetWithoutSmoothingIsZero) {
  TestQueue queue;
  Tensor logits(normals(10, "z")), scale(std::vector<float>(2, 3.0f)), loss(2);
  std::vector<int32_t> labels{5, -7};
  run(SoftmaxXent{logits, device::view(labels.data(), 2), scale, loss, 2, 5, 0, true}, queue);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(logits[i], 0);
  EXPECT_EQ(loss[0], 0);
}

TEST(SoftmaxXent, HugeLogitsAndNan) {
  for_each_table([] {
    TestQueue queue;
    std::vector<float> z = normals(3 * 40, "z");
    z[3] = 1e30f;
    z[45] = -1e30f;
    z[100] = NAN;
    Tensor logits(z), scale(std::vector<float>(3, 1.0f)), loss(3);
    std::vector<int32_t> labels{3, 6, 0};
    run(SoftmaxXent{logits, device::view(labels.data(), 3), scale, loss, 3, 40, 0, true}, queue);
    EXPECT_EQ(loss[0], 0);
    EXPECT_EQ(logits[3], 0);
    EXPECT_TRUE(std::isfinite(loss[1]));
    EXPECT_EQ(logits[45], 0);
    EXPECT_TRUE(std::isnan(loss[2]));
    EXPECT_TRUE(std::isnan(logits[80]));
  });
}

TEST(SoftmaxXent, SameBitsForAllThreads) {
  expect_same_bits_for_all_threads([](TestQueue& queue) {
    int64_t rows = 37, columns = 1501;
    std::vector<int32_t> labels = labels_for(rows, columns);
    Tensor logits(normals(rows * columns, "z")), scale(normals(rows, "scale")), loss(rows);
    run(SoftmaxXent{logits, device::view(labels.data(), rows), scale, loss, rows, columns, 0.1f,
                    true},
        queue);
    std::vector<float> out = logits.values(), more = loss.values();
    out.insert(out.end(), more.begin(), more.end());
    return out;
  });
}

TEST(SoftmaxXent, CostAndChecks) {
  std::vector<int32_t> labels(3);
  Tensor logits(12), loss(3), scale(3);
  SoftmaxXent s{logits, device::view(labels.data(), 3), scale, loss, 3, 4};
  check(s);
  EXPECT_EQ(cost(s).bytes, 4 * (24 + 9));
  std::vector<uint16_t> rounded(12);
  s.rounded = narrow_view(rounded);
  EXPECT_EQ(cost(s).bytes, 4 * (12 + 9) + 2 * 12);
  s.gradient = false;
  EXPECT_ERROR(check(s), "rounded goes with gradient only");
  s.gradient = true;
  s.rounded = {};
  s.row_scale = {};
  EXPECT_ERROR(check(s), "softmax_xent", "row_scale");
  s.gradient = false;
  check(s);
  s.smoothing = 1;
  EXPECT_ERROR(check(s), "smoothing is 1");
  s.smoothing = 0;
  s.columns = 5;
  EXPECT_ERROR(check(s), "logits has 12 elements", "[3, 5]");
}

// ---- against the published code's results
struct Golden {
  hid_t file =
      H5Fopen(tests::source_file("tests/golden/loss.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ~Golden() { H5Fclose(file); }

  template <class T>
  std::vector<T> read(const std::string& name, hid_t type) const {
    hid_t set = H5Dopen2(file, name.c_str(), H5P_DEFAULT), space = H5Dget_space(set);
    std::vector<T> out(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
    EXPECT_GE(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()), 0) << name;
    H5Sclose(space);
    H5Dclose(set);
    return out;
  }
  std::vector<double> values(const std::string& name) const {
    return read<double>(name, H5T_NATIVE_DOUBLE);
  }
  double tolerance(const std::string& name) const {
    hid_t set = H5Dopen2(file, name.c_str(), H5P_DEFAULT),
          attribute = H5Aopen(set, "tol", H5P_DEFAULT);
    double out = -1;
    EXPECT_GE(H5Aread(attribute, H5T_NATIVE_DOUBLE, &out), 0) << name;
    H5Aclose(attribute);
    H5Dclose(set);
    return out;
  }
};

// The gradient is scaled by a power of two, to the bit, and the loss is unchanged.
TEST(SoftmaxXent, LossScaleIsOfTheGradientAlone) {
  for_each_table([] {
    TestQueue queue;
    std::vector<int32_t> labels = integers(5, 0, 77, "labels");
    Tensor one(normals(5 * 77, "logits")), other(normals(5 * 77, "logits")),
        row_scale(normals(5, "scale"));
    Tensor loss(5), same_loss(5), by(std::vector<float>{1024});
    run(SoftmaxXent{one, device::view(labels.data(), 5), row_scale, loss, 5, 77, 0.1f}, queue);
    run(SoftmaxXent{other, device::view(labels.data(), 5), row_scale, same_loss, 5, 77, 0.1f, true,
                    by},
        queue);
    EXPECT_TRUE(same_bits(loss.values(), same_loss.values()));
    for (int64_t i = 0; i < 5 * 77; ++i) ASSERT_EQ(other[i], 1024 * one[i]) << i;
  });
}

TEST(SoftmaxXent, Golden) {
  Golden golden;
  ASSERT_GE(golden.file, 0);
  constexpr int64_t kBatch = 5, kLength = 6, kColumns = 11, kRows = kBatch * kLength;
  std::vector<float> logits = golden.read<float>("/inputs/logits", H5T_NATIVE_FLOAT);
  std::vector<float> given = golden.read<float>("/inputs/weights", H5T_NATIVE_FLOAT);
  ASSERT_EQ(int64_t(logits.size()), kRows * kColumns);
  for (const char* set : {"labels", "labels_outside"})
    for (bool weighted : {false, true})
      for (float smoothing : {0.0f, 0.1f})
        for (bool normalize : {false, true}) {
          std::string name = fmt::format("/{}/weights{}_smoothing{:.1f}_normalize{}", set,
                                         int(weighted), smoothing, int(normalize));
          SCOPED_TRACE(name);
          std::vector<int32_t> labels =
              golden.read<int32_t>(fmt::format("/inputs/{}", set), H5T_NATIVE_INT32);
          std::vector<float> weights = weighted ? given : std::vector<float>(size_t(kRows), 1.0f);
          std::vector<float> scale(static_cast<size_t>(kRows)),
              factor(static_cast<size_t>(kBatch), 1.0f);
          for (int64_t b = 0; b < kBatch; ++b) {
            float sum = 0;
            for (int64_t l = 0; l < kLength; ++l) sum += weights[size_t(b * kLength + l)];
            if (normalize) factor[size_t(b)] = 1 / std::max(sum, 2e-38f);
            for (int64_t l = 0; l < kLength; ++l) {
              float w = weights[size_t(b * kLength + l)];
              scale[size_t(b * kLength + l)] = w == 0 ? 0 : w * factor[size_t(b)] / float(kBatch);
            }
          }
          for_each_table([&] {
            TestQueue queue;
            Tensor z(logits), scales(scale), loss(kRows);
            View label_view = device::view(labels.data(), kRows);
            run(SoftmaxXent{z, label_view, scales, loss, kRows, kColumns, smoothing, true}, queue);
            std::vector<double> expected = golden.values(name + "/per_example");
            double tolerance = golden.tolerance(name + "/per_example");
            for (int64_t b = 0; b < kBatch; ++b) {
              double sum = 0;
              for (int64_t l = 0; l < kLength; ++l) {
                float w = weights[size_t(b * kLength + l)];
                if (w != 0)
                  sum += double(loss[b * kLength + l]) * double(w) * double(factor[size_t(b)]);
              }
              EXPECT_NEAR(sum, expected[size_t(b)], tolerance);
            }
            expected = golden.values(name + "/grad_of_mean");
            tolerance = golden.tolerance(name + "/grad_of_mean");
            for (int64_t i = 0; i < kRows * kColumns; ++i)
              EXPECT_NEAR(double(z[i]), expected[size_t(i)], tolerance) << i;
          });
        }
}

}  // namespace
