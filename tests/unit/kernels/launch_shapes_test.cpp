// SPDX-License-Identifier: Apache-2.0
// Tests arithmetic on the host for CUDA's launches: covers, alignment, tables of segments and
// tiles.
#include "kernels/cuda/launch_shapes.hpp"

#include "kernels/cuda/adafactor_tiles.hpp"
#include "kernels/cuda/embedding_plan.hpp"
#include "rig.hpp"

namespace {

using namespace kernels;
using namespace rig;
using device::DType;

TEST(LaunchShapes, PacksNeedAlignmentOfEveryViewAndWholeRows) {
  alignas(16) float f[16];
  alignas(16) uint16_t h[16];
  auto wide = [&](int shift) { return View{f + shift, DType::f32, 8}; };
  auto narrow = [&](int shift) { return View{h + shift, DType::bf16, 8}; };
  EXPECT_TRUE(packs_fit(4, 8, {wide(0), wide(4), View{}}));
  EXPECT_FALSE(packs_fit(4, 8, {wide(0), wide(2)}));
  EXPECT_FALSE(packs_fit(4, 6, {wide(0)}));
  EXPECT_TRUE(packs_fit(4, 8, {narrow(4)}));   // four bf16 are eight bytes
  EXPECT_FALSE(packs_fit(8, 8, {narrow(4)}));  // eight are sixteen
  EXPECT_TRUE(packs_fit(8, 8, {wide(4)}));     // two accesses of sixteen
  EXPECT_TRUE(packs_fit(1, 7, {wide(3), narrow(5)}));
}

TEST(LaunchShapes, PatchesArePackedByTheirRows) {
  alignas(16) float f[16];
  auto view = [&](int shift, DType type = DType::f32) { return View{f + shift, type, 8}; };
  EXPECT_EQ(patchify_pack(16 * 3, 224 * 3, 768, view(0), view(0)), 4);
  EXPECT_EQ(patchify_pack(14 * 3, 224 * 3, 768, view(0), view(0)), 2);
  // The next row of the image is not aligned.
  EXPECT_EQ(patchify_pack(16 * 3, 226 * 3, 768, view(0), view(0)), 2);
  EXPECT_EQ(patchify_pack(16 * 3, 224 * 3, 768, view(1), view(0)), 1);
  EXPECT_EQ(patchify_pack(16 * 3, 224 * 3, 768, view(1, DType::bf16), view(0)), 2);
  EXPECT_EQ(patchify_pack(5 * 3, 25 * 3, 768, view(0), view(0)), 1);
}

TEST(LaunchShapes, RowCutsCoverTheRows) {
  for (int64_t rows : {0, 1, 15, 16, 17, 1000, 12288, 12289, 50176, 1 << 20}) {
    RowCuts cuts(rows, 16, 768);
    EXPECT_LE(cuts.count(), 768) << rows;
    EXPECT_GE(cuts.block, 16);
    EXPECT_GE(cuts.count() * cuts.block, rows);
    EXPECT_TRUE(rows == 0 ? cuts.count() == 0 : (cuts.count() - 1) * cuts.block < rows) << rows;
  }
}

// The tables of embedding_backward have room for the worst ids.
TEST(LaunchShapes, EmbeddingPlanHasRoomForAnyIds) {
  for (int64_t rows : {0, 1, 63, 64, 65, 129, 130, 1000, 16384})
    for (int64_t vocabulary : {1, 2, 7, 300, 32001}) {
      EmbeddingPlan plan(rows, vocabulary, 8);
      for (int64_t ids_used : {int64_t{1}, vocabulary / 2, vocabulary, rows / 65, rows / 64 + 1}) {
        if (ids_used < 1 || ids_used > vocabulary || rows == 0) continue;
        // rows are shared evenly, or the first id gets all others
        for (bool even : {true, false}) {
          int64_t pieces = 0, longs = 0, long_pieces = 0, left = rows;
          for (int64_t id = 0; id < ids_used; ++id) {
            int64_t n = even      ? rows * (id + 1) / ids_used - rows * id / ids_used
                        : id == 0 ? std::max<int64_t>(rows - ids_used + 1, 0)
                                  : std::min<int64_t>(left, 1);
            left -= n;
            int64_t p = base::ceil_div(n, EmbeddingPlan::kPieceRows);
            pieces += p;
            longs += p > 1;
            long_pieces += p > 1 ? p : 0;
          }
          EXPECT_LE(pieces, plan.most_pieces()) << rows << " rows, " << ids_used << " ids";
          EXPECT_LE(longs, plan.most_long());
          EXPECT_LE(long_pieces, plan.most_long_pieces());
        }
      }
      const int64_t tables[] = {plan.counts(),      plan.segment_rows(), plan.segment_begin(),
                                plan.piece_begin(), plan.part_begin(),   plan.ranks(),
                                plan.order(),       plan.piece_ids(),    plan.piece_numbers(),
                                plan.long_ids(),    plan.totals(),       plan.sums()};
      EXPECT_TRUE(std::is_sorted(std::begin(tables), std::end(tables)));
      EXPECT_EQ(plan.sums() % 4, 0);  // sixteen bytes
    }
}

// Every element of a view is in exactly one tile, in the row and column that the tile's numbers
// give.
TEST(LaunchShapes, AdafactorTilesCoverAView) {
  for (const Factored& s : {Factored{1, 70, 3, 64, 1, true},
                            {2, 130, 1, 256, 1, false},
                            {3, 5, 5, 8, 1, true},
                            {1, 65, 1, 384, 1}}) {
    ASSERT_TRUE(AdafactorTiles::fit(s));
    const int64_t n = s.count();
    for (auto [begin, end] :
         {std::pair<int64_t, int64_t>{0, n}, {n / 3 + 1, n / 2}, {n - 1, n}, {0, 1}}) {
      AdafactorTiles t(s, begin, end - begin);
      int64_t held = 0;
      for (int64_t b = t.first_block; b < t.first_block + t.blocks; ++b) {
        EXPECT_EQ(t.block_of(t.first_row_of(b)), b);
        EXPECT_LE(t.end_row_of(b) - t.first_row_of(b), AdafactorTiles::kRows);
        // all rows have one outer index
        EXPECT_EQ(t.first_row_of(b) / s.x, (t.end_row_of(b) - 1) / s.x);
        for (int64_t row = t.first_row_of(b); row < t.end_row_of(b); ++row)
          held += std::max<int64_t>(
              0, std::min(end, (row + 1) * t.width) - std::max(begin, row * t.width));
      }
      EXPECT_EQ(held, end - begin);
      EXPECT_EQ(t.width % t.span, 0);
      EXPECT_EQ(AdafactorTiles::kColumns % t.span, 0);
      EXPECT_GE(t.strips * AdafactorTiles::kColumns, t.width);
    }
  }
  EXPECT_FALSE(AdafactorTiles::fit({1, 10, 1, 100, 1}));
  EXPECT_FALSE(AdafactorTiles::fit({1, 10, 1, 128, 2}));
}

}  // namespace
