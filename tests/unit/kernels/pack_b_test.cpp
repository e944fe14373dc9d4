// Products of packed weights are the products of the weights.
#include "kernels/bf16_value.hpp"
#include "kernels/cast.hpp"
#include "kernels/gemm.hpp"
#include "rig.hpp"

COVERS(pack_b);

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

TEST(PackB, ProductsAreTheSame) {
  for (DType type : {DType::f32, DType::bf16})
    for (bool trans_b : {false, true})
      for (auto [m, n, k] : {std::array<int64_t, 3>{1, 48, 20}, {33, 64, 64}, {500, 384, 96}, {130, 1000, 384}, {96, 1536, 70}}) {
        SCOPED_TRACE(fmt::format("{} {} x {} x {}, transposed {}", device::name_of(type), m, n, k, trans_b));
        const int64_t bytes = packed_bytes(type, k, n);
        if (bytes == 0) continue;
        std::vector<float> wide_a = normals(m * k, "a"), wide_b = normals(k * n, "b");
        std::vector<uint16_t> narrow_a(wide_a.size()), narrow_b(wide_b.size());
        for (size_t i = 0; i < wide_a.size(); ++i) narrow_a[i] = loops::round_to_bf16(wide_a[i]).bits;
        for (size_t i = 0; i < wide_b.size(); ++i) narrow_b[i] = loops::round_to_bf16(wide_b[i]).bits;
        auto view = [&](std::vector<float>& wide, std::vector<uint16_t>& narrow) {
          return type == DType::bf16 ? View{narrow.data(), type, int64_t(narrow.size())}
                                     : device::view(wide.data(), int64_t(wide.size()));
        };
        View a = view(wide_a, narrow_a), b = view(wide_b, narrow_b);
        for (int threads : {1, 2})
          for (bool gelu : {false, true}) {
            Queue queue(Kind::cpu, threads);
            std::vector<uint8_t> room(size_t(bytes) + 64, 0xAB);
            uint8_t* aligned = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
            View packed{aligned, DType::u8, bytes};
            run(PackB{.packed = packed, .b = b, .k = k, .n = n, .trans_b = trans_b}, queue);
            Tensor plain(m * n), fast(m * n), gelu_plain(m * n), gelu_fast(m * n), bias(normals(n, "bias"));
            Gemm g{.c = plain, .a = a, .b = b, .bias = bias, .m = m, .n = n, .k = k, .trans_b = trans_b};
            if (gelu) g.gelu = gelu_plain;
            run(g, queue);
            std::fill(wide_b.begin(), wide_b.end(), NAN);  // only the packed one is read
            std::vector<uint16_t> kept = narrow_b;
            std::vector<float> back = normals(k * n, "b");
            std::fill(narrow_b.begin(), narrow_b.end(), uint16_t{0x7FC0});
            g.c = fast, g.b_packed = packed;
            if (gelu) g.gelu = gelu_fast;
            run(g, queue);
            wide_b = back, narrow_b = kept;
            double largest = std::sqrt(double(k)) * 4;
            for (int64_t i = 0; i < m * n; ++i) {
              ASSERT_NEAR(fast[i], plain[i], 1e-6 * largest) << i;
              if (gelu) {
                ASSERT_NEAR(gelu_fast[i], gelu_plain[i], 2e-6 * largest) << i;
              }
            }
          }
      }
}

TEST(PackB, Checks) {
  Tensor b(12);
  std::vector<uint8_t> room(7);
  View packed{room.data(), DType::u8, 7};
  EXPECT_ERROR(check(PackB{.packed = packed, .b = b, .k = 3, .n = 4}), "pack_b: packed has 7 elements");
  EXPECT_ERROR(check(PackB{.packed = packed, .b = b, .k = 4, .n = 4}), "pack_b: b has 12 elements");
  EXPECT_EQ(packed_bytes(DType::f32, 0, 4), 0);
}

}  // namespace
