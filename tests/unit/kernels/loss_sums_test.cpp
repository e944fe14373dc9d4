// SPDX-License-Identifier: Apache-2.0
// Tests sums over the examples of a pass, against the plainest loops.
#include "kernels/loss_sums.hpp"

#include "rig.hpp"

COVERS(loss_sums);

namespace {

using namespace kernels;
using namespace rig;
using C = LossColumns;

struct Pass {
  int64_t batch, length, slices;
  std::vector<float> weights, loss;
  std::vector<int32_t> first;
  std::vector<uint8_t> flags;
  std::vector<double> sums;

  Pass(int64_t b, int64_t l, int64_t s)
      : batch(b), length(l), slices(s), sums(size_t(s * C::count), -1.0) {
    const std::vector<float> draws = normals(b * l, "weights");
    for (float x : draws) weights.push_back(x < 0 ? 0 : x < 1 ? 1 : 0.5f);
    // an example without labels
    for (int64_t i = 0; i < l && b > 2; ++i) weights[size_t(2 * l + i)] = 0;
    for (int64_t e = 0; e < b; ++e) {
      first.push_back(int32_t(loss.size()));
      flags.push_back(e % 3 != 1);
      for (int64_t i = 0; i < l; ++i)
        if (weights[size_t(e * l + i)] > 0) loss.push_back(float(1 + loss.size() % 7) / 3);
      if (e % 4 == 3) loss.insert(loss.end(), 3, NAN);  // padding of chunks
    }
  }
  void run_op(bool grouped, TestQueue& queue) {
    run(LossSums{{sums.data(), DType::f64, int64_t(sums.size())},
                 device::view(loss.data(), int64_t(loss.size())),
                 device::view(first.data(), batch),
                 device::view(weights.data(), batch * length),
                 grouped ? device::view(flags.data(), batch) : View{},
                 batch,
                 length,
                 slices},
        queue);
  }
};

TEST(LossSums, AreThoseOfPlainLoops) {
  for (auto [batch, length, slices] :
       {std::array<int64_t, 3>{1, 1, 1}, {12, 9, 3}, {300, 17, 1}, {520, 5, 2}})
    for (bool grouped : {true, false}) {
      Pass p(batch, length, slices);
      TestQueue queue(2);
      p.run_op(grouped, queue);
      std::vector<double> want(p.sums.size());
      for (int64_t b = 0; b < batch; ++b) {
        double n = 0, nll = 0, rows = 0;
        const float* loss = p.loss.data() + p.first[size_t(b)];
        for (int64_t l = 0; l < length; ++l) {
          const double w = double(p.weights[size_t(b * length + l)]);
          if (w > 0) {
            n += w;
            nll += w * double(*loss++);
            ++rows;
          }
        }
        double* s = &want[size_t(b / (batch / slices) * C::count)];
        const bool second = grouped && !p.flags[size_t(b)];
        s[C::loss] += n > 0 ? nll / n : 0;
        s[second ? C::loss_second : C::loss_first] += n > 0 ? nll / n : 0;
        s[second ? C::examples_second : C::examples_first] += 1;
        s[C::rows] += rows;
        s[C::row_loss] += nll;
      }
      EXPECT_EQ(p.sums, want) << batch << " x " << length << " in " << slices << ", grouped "
                              << grouped;
    }
}

TEST(LossSums, ALossThatIsNotFiniteShows) {
  Pass p(300, 17, 2);
  p.loss[size_t(p.first[200])] = INFINITY;
  TestQueue queue;
  p.run_op(true, queue);
  EXPECT_TRUE(std::isfinite(p.sums[C::loss]));
  EXPECT_EQ(p.sums[size_t(C::count) + C::loss], INFINITY);
}

TEST(LossSums, RefusesWrongShapes) {
  Queue queue(device::Kind::plan);
  Pass p(12, 9, 3);
  auto of = [&](auto change) {
    LossSums a{{p.sums.data(), DType::f64, int64_t(p.sums.size())},
               device::view(p.loss.data(), int64_t(p.loss.size())),
               device::view(p.first.data(), 12),
               device::view(p.weights.data(), 12 * 9),
               {},
               12,
               9,
               3};
    change(a);
    kernels::run(a, queue);
  };
  of([](LossSums&) {});
  EXPECT_ERROR(of([](LossSums& a) { a.slices = 5; }), "loss_sums",
               "12 examples cannot be divided into 5 slices");
  EXPECT_ERROR(of([](LossSums& a) { a.sums.count -= 1; }), "loss_sums", "sums");
  EXPECT_ERROR(of([](LossSums& a) { a.first.count = 11; }), "loss_sums", "first");
}

}  // namespace
