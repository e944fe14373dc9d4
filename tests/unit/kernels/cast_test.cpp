// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.hpp"

#include "narrow_type.hpp"

COVERS(cast);

namespace {

using namespace kernels;
using namespace rig;

// Returns ties in both directions, subnormals, overflow to infinity, infinities, NaNs, and ordinary
// values.
std::vector<float> inputs() {
  std::vector<float> x = normals(2000, "x", 3);
  for (uint32_t bits :
       {0x00000000u, 0x80000000u, 0x3F808000u, 0x3F818000u, 0x3F807FFFu, 0x3F808001u, 0x00000001u,
        0x007FFFFFu, 0x7F7FFFFFu, 0xFF7FFFFFu, 0x7F800000u, 0xFF800000u, 0x7FC00000u, 0x7F800001u,
        0xFFFFFFFFu, 0x7FFFFFFFu,
        // ends of f16
        0x477FEFFFu, 0x477FF000u, 0xC77FE000u, 0x38800000u, 0x387FFFFFu, 0x33000000u, 0x33000001u,
        0x33C00000u})
    x.push_back(std::bit_cast<float>(bits));
  return x;
}

TEST(Cast, RoundsAsTheScalarDoesAndComesBack) {
  for_each_narrow_type([] {
    for_each_table([] {
      for (int threads : thread_counts({1, 2})) {
        TestQueue queue(threads);
        std::vector<float> all = inputs();
        for (size_t count : {size_t(0), size_t(1), size_t(7), size_t(16), size_t(17), size_t(100),
                             all.size(), size_t(40000)}) {
          std::vector<float> x;
          for (size_t i = 0; i < count; ++i) x.push_back(all[all.size() - 1 - i % all.size()]);
          std::vector<uint16_t> narrow(count + 1, 0xABCD);
          View y = narrow_view(narrow).slice(0, int64_t(count));
          run(Cast{.y = y, .x = device::view(x.data(), int64_t(count))}, queue);
          for (size_t i = 0; i < count; ++i) {
            if (std::isnan(x[i]) && narrow_type() == device::DType::f16)  // a GPU has its own NaN
              ASSERT_TRUE(std::isnan(widened(narrow[i])));
            else
              ASSERT_EQ(narrow[i], narrowed(x[i])) << x[i];
          }
          EXPECT_EQ(narrow[count], 0xABCD);  // no element more is written
          std::vector<float> back(count + 1, 5);
          run(Cast{.y = device::view(back.data(), int64_t(count)), .x = y}, queue);
          for (size_t i = 0; i < count; ++i)
            ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(widened(narrow[i])))
                << x[i];
          EXPECT_EQ(back[count], 5);
        }
      }
    });
  });
}

TEST(Cast, Checks) {
  std::vector<float> x(4), z(4);
  std::vector<uint16_t> y(4);
  EXPECT_ERROR(check(Cast{.y = device::view(z.data(), 4), .x = device::view(x.data(), 4)}), "cast",
               "x holds f32, not bf16");
  EXPECT_ERROR(check(Cast{.y = narrow_view(y), .x = device::view(x.data(), 3)}), "cast", "y has 4");
  EXPECT_EQ(cost(Cast{.y = narrow_view(y), .x = device::view(x.data(), 4)}).bytes, 24);
}

}  // namespace
