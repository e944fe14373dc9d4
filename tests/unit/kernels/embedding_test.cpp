// SPDX-License-Identifier: Apache-2.0
#include "kernels/embedding.hpp"

#include <array>

#include "kernels/patchify.hpp"
#include "rig.hpp"

COVERS(embedding_forward);
COVERS(embedding_backward);
COVERS(patchify);

namespace {

using namespace kernels;
using namespace rig;

// three in four are the last id
std::vector<int32_t> skewed_ids(int64_t rows, int64_t vocabulary) {
  std::vector<int32_t> ids = integers(rows, 0, vocabulary, "ids");
  for (size_t r = 0; r < ids.size(); ++r)
    if (r % 4) ids[r] = int32_t(vocabulary - 1);
  return ids;
}

struct Shape {
  int64_t rows, width, vocabulary, length;
};
const Shape kShapes[] = {{0, 3, 4, 2},   {1, 1, 1, 1},      {7, 5, 3, 7},
                         {12, 16, 9, 4}, {600, 33, 50, 24}, {500, 130, 20, 100}};

TEST(Embedding, Forward) {
  for (int threads : thread_counts({1, 2}))
    for (const Shape& s : kShapes) {
      TestQueue queue(threads);
      std::vector<int32_t> ids = skewed_ids(s.rows, s.vocabulary);
      Tensor table(normals(s.vocabulary * s.width, "table")),
          positions(normals(s.length * s.width, "positions"));
      Tensor y(s.rows * s.width, 1);
      View id_view = device::view(ids.data(), s.rows);
      run(EmbeddingForward{y, id_view, table, positions, s.rows, s.width, s.vocabulary, s.length},
          queue);
      for (int64_t r = 0; r < s.rows; ++r)
        for (int64_t j = 0; j < s.width; ++j)
          ASSERT_EQ(y[r * s.width + j],
                    table[ids[size_t(r)] * s.width + j] + positions[r % s.length * s.width + j]);
    }
}

std::vector<float> run_backward(const Shape& s, Write write, TestQueue& queue) {
  std::vector<int32_t> ids = skewed_ids(s.rows, s.vocabulary);
  Tensor dy(normals(s.rows * s.width, "dy"), 1);
  Tensor dtable(write == Write::accumulate
                    ? normals(s.vocabulary * s.width, "dtable")
                    : std::vector<float>(size_t(s.vocabulary * s.width), NAN),
                3);
  run(EmbeddingBackward{dtable, dy, device::view(ids.data(), s.rows), s.rows, s.width, s.vocabulary,
                        write},
      queue);
  return dtable.values();
}

TEST(Embedding, BackwardAddsInRowOrder) {
  for (int threads : thread_counts({1, 2}))
    for (Write write : {Write::overwrite, Write::accumulate})
      for (const Shape& s : kShapes) {
        TestQueue queue(threads);
        std::vector<int32_t> ids = skewed_ids(s.rows, s.vocabulary);
        std::vector<float> dy = normals(s.rows * s.width, "dy");
        std::vector<float> expected = write == Write::accumulate
                                          ? normals(s.vocabulary * s.width, "dtable")
                                          : std::vector<float>(size_t(s.vocabulary * s.width));
        for (int64_t r = 0; r < s.rows; ++r)
          for (int64_t j = 0; j < s.width; ++j)
            expected[size_t(ids[size_t(r)] * s.width + j)] += dy[size_t(r * s.width + j)];
        std::vector<float> sums = run_backward(s, write, queue);
        if (on_cuda())  // long segments are split
          expect_close(sums, doubles(expected), 2e-6, "dtable", 1);
        else
          EXPECT_TRUE(same_bits(sums, expected));
      }
}

TEST(Embedding, SameBitsForAllThreads) {
  Shape s{2000, 67, 11, 1};
  expect_same_bits_for_all_threads(
      [&](TestQueue& queue) { return run_backward(s, Write::accumulate, queue); });
}

TEST(Embedding, NamesTheBadId) {
  if (on_cuda()) GTEST_SKIP() << "only CPUs check ids";
  TestQueue queue;
  std::vector<int32_t> ids{0, 2, 3};
  Tensor table(6), positions(2), y(6), dtable(6);
  View id_view = device::view(ids.data(), 3);
  EXPECT_ERROR(run(EmbeddingForward{y, id_view, table, positions, 3, 2, 3, 1}, queue),
               "embedding_forward", "id 3 of row 2", "[0, 3)");
  ids[2] = 0;
  ids[1] = -1;
  EXPECT_ERROR(run(EmbeddingBackward{dtable, y, id_view, 3, 2, 3}, queue), "embedding_backward",
               "id -1 of row 1");
}

TEST(Embedding, CostAndChecks) {
  std::vector<int32_t> ids(3);
  Tensor table(8), positions(4), y(6), dtable(8);
  EmbeddingForward f{y, device::view(ids.data(), 3), table, positions, 3, 2, 4, 2};
  check(f);
  EXPECT_EQ(cost(f).bytes, 4 * (12 + 4 + 3));
  f.ids.type = device::DType::u8;
  EXPECT_ERROR(check(f), "embedding_forward", "ids holds u8, not i32");
  EmbeddingBackward b{dtable, y, device::view(ids.data(), 3), 3, 2, 4};
  check(b);
  EXPECT_EQ(cost(b).bytes, 4 * (6 + 3 + 8));
  b.vocabulary = 5;
  EXPECT_ERROR(check(b), "dtable has 8 elements", "[5, 2]");
}

TEST(Patchify, TakesPatchesInRowColumnChannelOrder) {
  for (int threads : thread_counts({1, 2}))
    for (auto [batch, height, width, patch] : {std::array<int64_t, 4>{2, 4, 6, 2},
                                               {1, 1, 1, 1},
                                               {0, 4, 4, 2},
                                               {3, 24, 16, 8},
                                               {2, 11, 9, 4},
                                               {2, 64, 64, 8}}) {
      TestQueue queue(threads);
      int64_t rows = height / patch, columns = width / patch;
      Tensor image(normals(batch * height * width * 3, "image"));
      Tensor patches(batch * rows * columns * patch * patch * 3, 1);
      run(Patchify{patches, image, batch, height, width, patch}, queue);
      // Rows may have gaps between them, whose contents stay.
      const int64_t n = patch * patch * 3, next = n + 4, all = batch * rows * columns;
      Tensor apart(std::vector<float>(size_t(all * next), 9.0f), 1);
      run(Patchify{.patches = apart,
                   .image = image,
                   .batch = batch,
                   .height = height,
                   .width = width,
                   .patch = patch,
                   .stride = next},
          queue);
      for (int64_t i = 0; i < all * next; ++i)
        ASSERT_EQ(apart[i], i % next < n ? patches[i / next * n + i % next] : 9.0f);
      int64_t at = 0;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c)
            for (int64_t y = 0; y < patch; ++y)
              for (int64_t x = 0; x < patch; ++x)
                for (int64_t ch = 0; ch < 3; ++ch)
                  ASSERT_EQ(patches[at++],
                            image[((b * height + r * patch + y) * width + c * patch + x) * 3 + ch]);
    }
}

// The result has the bits of value_range and a normalisation per channel, followed by patchify.
TEST(Patchify, ScalesBytes) {
  const PixelRange range{0.5f, 253, -1.1f, 2.3f, {0.1f, -0.2f, 0.3f}, {1.5f, 0.7f, 3}};
  for (int64_t patch : {3, 4, 14, 16}) {
    TestQueue queue(2);
    const int64_t side = 2 * patch + 1, count = 2 * side * side * 3,
                  used = 2 * 4 * patch * patch * 3;
    std::vector<int32_t> drawn = integers(count, 0, 256, "bytes");
    std::vector<uint8_t> bytes(drawn.begin(), drawn.end());
    Tensor scaled(count), expected(used), patches(used);
    for (int64_t i = 0; i < count; ++i) {
      const float part = (float(bytes[size_t(i)]) - range.low) / range.width * range.to_width;
      scaled.data()[i] = (range.to_low + part - range.mean[i % 3]) / range.deviation[i % 3];
    }
    run(Patchify{.patches = expected,
                 .image = scaled,
                 .batch = 2,
                 .height = side,
                 .width = side,
                 .patch = patch},
        queue);
    run(Patchify{.patches = patches,
                 .image = device::view(bytes.data(), count),
                 .batch = 2,
                 .height = side,
                 .width = side,
                 .patch = patch,
                 .range = range},
        queue);
    EXPECT_TRUE(same_bits(patches.values(), expected.values())) << patch;
  }
}

TEST(Patchify, CostAndChecks) {
  Tensor image(48), patches(48);
  Patchify p{patches, image, 1, 4, 4, 2};
  check(p);
  EXPECT_EQ(cost(p).bytes, 8 * 48);
  p.patch = 5;
  EXPECT_ERROR(check(p), "patchify", "height is 4, must be at least 5");
  std::vector<uint8_t> bytes(48);
  p.patch = 2;
  p.image = device::view(bytes.data(), 48);
  EXPECT_EQ(cost(p).bytes, 5 * 48);
  p.range.width = 0;
  EXPECT_ERROR(check(p), "patchify", "no width");
}

}  // namespace
