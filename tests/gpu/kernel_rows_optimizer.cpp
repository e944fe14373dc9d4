// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "kernels/adafactor.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/cast.hpp"
#include "kernels/ema_update.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/square_sums.hpp"
#include "row_list.hpp"

namespace gpu_check {

using namespace kernels;
namespace {

struct Matrix {
  int64_t x, y;
  int64_t count() const { return x * y; }
};

// All matrices of the model. One launch updates them, and together they are larger than any cache.
std::vector<Matrix> matrices_of(const Model& m) {
  const int64_t d = m.width;
  std::vector<Matrix> out{{m.patch * m.patch * 3, d}, {m.vocabulary + 1, d}, {d, m.vocabulary}};
  for (int64_t layer = 0; layer < m.encoder + m.decoder; ++layer) {
    for (int i = 0; i < (layer < m.encoder ? 4 : 8); ++i) out.push_back({d, d});
    out.push_back({d, m.mlp});
    out.push_back({m.mlp, d});
  }
  return out;
}

Update update_of(Memory& t, int64_t n) {
  return {.weights = t.normals(n, kWide),
          .gradient = t.normals(n, kWide),
          .sums = t.zeros(2, DType::f64),
          .rate = 1e-3f};
}

Factored shape_of(const Matrix& w) { return {1, w.x, 1, w.y, 1, false}; }

void add_adafactor(std::vector<Row>& rows, const std::string& name,
                   const std::function<void(const std::function<void(const Matrix&)>&)>& each) {
  add(rows, name, 1, [=](Memory& t) {
    std::vector<AdafactorSums> all;
    each([&](const Matrix& w) {
      const Factored shape = shape_of(w);
      all.push_back({.total = t.zeros(1, DType::f64),
                     .over_x = t.zeros(shape.over_x(), DType::f64),
                     .over_y = t.zeros(shape.over_y(), DType::f64),
                     .g = t.normals(w.count(), kWide),
                     .shape = shape});
    });
    return all;
  });
  add(rows, name, 1, [=](Memory& t) {
    std::vector<AdafactorFactors> all;
    each([&](const Matrix& w) {
      all.push_back({.v_over_x = t.filled(w.y, 1),
                     .v_over_y = t.filled(w.x, 1),
                     .factor_over_x = t.zeros(w.y, kWide),
                     .factor_over_y = t.zeros(w.x, kWide),
                     .over_x = t.zeros(w.y, DType::f64),
                     .over_y = t.zeros(w.x, DType::f64),
                     .shape = shape_of(w),
                     .beta2 = 0.5f,
                     .eps = 1e-3f});
    });
    return all;
  });
  add(rows, name + ", bf16 momentum", 1, [=](Memory& t) {
    std::vector<AdafactorUpdate> all;
    each([&](const Matrix& w) {
      AdafactorUpdate a{.update = update_of(t, w.count()),
                        .scaling = {},
                        .momentum = t.normals(w.count(), kNarrow),
                        .keep = 0.9f,
                        .add = 0.1f};
      a.scaling.factor_over_x = t.filled(w.y, 1);
      a.scaling.factor_over_y = t.filled(w.x, 1);
      a.scaling.shape = shape_of(w);
      all.push_back(a);
    });
    return all;
  });
}

}  // namespace

void add_optimizer(std::vector<Row>& rows, const Model& m) {
  const std::vector<Matrix> matrices = matrices_of(m);
  int64_t count = 0;
  for (const Matrix& w : matrices) count += w.count();
  const std::string name = fmt::format("{} matrices, {} numbers", matrices.size(), count);
  auto each = [matrices](const std::function<void(const Matrix&)>& f) {
    for (const Matrix& w : matrices) f(w);
  };
  add_adafactor(rows, name, each);
  add(rows, name, 1, [=](Memory& t) {
    std::vector<Cast> all;
    each([&](const Matrix& w) {
      all.push_back({t.zeros(w.count(), kNarrow), t.normals(w.count(), kWide)});
    });
    return all;
  });
  // The deck's optimizer is Adafactor, so the others have no calls.
  add(rows, name, 0, [=](Memory& t) {
    std::vector<EmaUpdate> all;
    each([&](const Matrix& w) {
      all.push_back({t.normals(w.count(), kWide), t.normals(w.count(), kWide), {}, 0.999f});
    });
    return all;
  });
  add(rows, name, 0, [=](Memory& t) {
    std::vector<SquareSums> all;
    each([&](const Matrix& w) {
      all.push_back({t.zeros(1, DType::f64), t.normals(w.count(), kWide)});
    });
    return all;
  });
  add(rows, name, 0, [=](Memory& t) {
    std::vector<AdamwUpdate> all;
    each([&](const Matrix& w) {
      all.push_back({.update = update_of(t, w.count()),
                     .mu = t.normals(w.count(), kWide),
                     .nu = t.filled(w.count(), 1),
                     .keep1 = 0.9f,
                     .add1 = 0.1f,
                     .keep2 = 0.99f,
                     .add2 = 0.01f,
                     .eps = 1e-8f});
    });
    return all;
  });
  add(rows, name, 0, [=](Memory& t) {
    std::vector<MomentumUpdate> all;
    each([&](const Matrix& w) {
      all.push_back({update_of(t, w.count()), t.normals(w.count(), kWide), 0.9f, 0.9f, false});
    });
    return all;
  });
}

}  // namespace gpu_check
