// SPDX-License-Identifier: Apache-2.0
// The cut of the global batch into ranks, passes and slices.
#include "step/geometry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.hpp"

namespace step {
namespace {

// Positions of all examples that the ranks of a mesh take in a step, pass by pass and rank by rank.
std::vector<int64_t> positions(const Geometry& g, comm::MeshShape shape) {
  std::vector<int64_t> out;
  for (int64_t m = 0; m < g.accumulation; ++m)
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      comm::Mesh mesh;
      mesh.shape = shape;
      mesh.replica_index = rank / shape.fsdp;
      mesh.fsdp_index = rank % shape.fsdp;
      for (int64_t i = 0; i < g.micro_batch; ++i) out.push_back(g.first_example(mesh, m) + i);
    }
  return out;
}

TEST(Geometry, PassesAreAsFewAsTheMicroBatchAllows) {
  struct Case {
    int64_t micro_batch, expected, passes;
  };
  for (const Case& c :
       {Case{100, 24, 1}, {24, 24, 1}, {23, 12, 2}, {8, 8, 3}, {7, 6, 4}, {5, 4, 6}, {1, 1, 24}}) {
    const Geometry g = derive_geometry(96, c.micro_batch, {2, 2}, {});
    EXPECT_EQ(g.micro_batch, c.expected) << c.micro_batch;
    EXPECT_EQ(g.accumulation, c.passes) << c.micro_batch;
    EXPECT_EQ(g.slices, 1);
    EXPECT_EQ(g.total_slices, 4 * c.passes);
  }
}

// Level "mesh": slices of one size on every mesh, and passes in powers of two.
TEST(Geometry, SlicesDoNotDependOnTheMesh) {
  for (comm::MeshShape shape : {comm::MeshShape{1, 1}, {2, 1}, {1, 4}, {4, 2}})
    for (int64_t micro_batch : {96, 40, 6, 3}) {
      const Geometry g =
          derive_geometry(96, micro_batch, shape, {.level = Level::mesh, .slices = 32});
      EXPECT_LE(g.micro_batch, micro_batch);
      EXPECT_EQ(g.total_slices, 32);
      EXPECT_EQ(g.micro_batch, 3 * g.slices) << "a slice has 96 / 32 examples";
      EXPECT_EQ(g.slices * g.accumulation * shape.ranks(), 32);
    }
  EXPECT_EQ(derive_geometry(96, 40, {1, 1}, {.level = Level::mesh, .slices = 32}).accumulation, 4);
}

TEST(Geometry, EachExampleHasOnePlace) {
  for (const bool mesh : {false, true})
    for (comm::MeshShape shape : {comm::MeshShape{1, 1}, {2, 2}, {4, 1}, {1, 4}})
      for (int64_t micro_batch : {96, 12, 3}) {
        const Geometry g = derive_geometry(
            96, micro_batch, shape, {.level = mesh ? Level::mesh : Level::run, .slices = 32});
        std::vector<int64_t> found = positions(g, shape), all(96);
        std::sort(found.begin(), found.end());
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(found, all) << "mesh " << mesh << " "
                              << " " << shape.replica << "x" << shape.fsdp;
      }
}

// Ranks of one replica take neighbouring examples in each pass.
TEST(Geometry, ReplicasAreOutermost) {
  const Geometry g = derive_geometry(16, 2, {2, 2}, {});
  EXPECT_EQ(positions(g, {2, 2}),
            (std::vector<int64_t>{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}));
}

TEST(Geometry, RefusalsNameTheNumbers) {
  auto refused = [](int64_t batch, int64_t micro_batch, comm::MeshShape shape, int64_t slices) {
    try {
      derive_geometry(batch, micro_batch, shape,
                      {.level = slices > 0 ? Level::mesh : Level::run, .slices = slices});
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::mesh);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  auto expect = [](const std::string& text, const std::string& fragment) {
    EXPECT_NE(text.find(fragment), std::string::npos) << text;
  };
  EXPECT_EQ(refused(96, 96, {2, 2}, 32), "accepted");
  expect(refused(10, 10, {4, 1}, 0), "10 is not divisible by 4 ranks");
  expect(refused(10, 10, {4, 1}, 0), "set it to 8 or 12");
  expect(refused(3, 3, {4, 1}, 0), "set it to 4");
  expect(refused(96, 96, {3, 1}, 32), "needs powers of two, not replica 3 x fsdp 1");
  expect(refused(96, 96, {4, 2}, 4), "4 is not a multiple of 8 ranks");
  expect(refused(96, 96, {1, 1}, 64), "96 is not divisible by determinism.slices = 64");
  expect(refused(96, 2, {1, 1}, 32), "2 is smaller than one slice (3 examples");
}

}  // namespace
}  // namespace step
