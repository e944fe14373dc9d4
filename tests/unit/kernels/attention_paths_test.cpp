// SPDX-License-Identifier: Apache-2.0
// Tests attention on GPUs at the lengths, masks and packings of models: which library runs it, and
// that its results are the CPU's.
#include "kernels/attention.hpp"
#include "kernels/paths.hpp"
#include "narrow_type.hpp"

namespace attention_paths {
namespace {

using namespace kernels;
using namespace rig;
using device::DType;

constexpr int64_t kBatch = 3, kHeads = 2, kDim = 64;

struct Lengths {
  const char* name;
  int64_t queries, keys;
  Mask mask;
  // Rows of each example; none: whole sequences.
  std::vector<int32_t> query_rows{}, key_rows{};
};
const Lengths kLengths[] = {
    {"encoder of B/16", 196, 196, Mask::full},
    {"encoder of L/14", 256, 256, Mask::full},
    {"decoder", 64, 64, Mask::full},
    {"decoder, causal", 64, 64, Mask::causal},
    {"decoder, per example", 64, 64, Mask::per_example},
    {"cross, B/16", 64, 196, Mask::full},
    {"cross, L/14", 64, 256, Mask::full},
    // Example 1 is predicted in parallel, so it has all rows.
    {"decoder, packed", 64, 64, Mask::per_example, {9, 64, 20}, {9, 64, 20}},
    {"last layer", 64, 64, Mask::per_example, {9, 17, 1}, {9, 64, 20}},
    {"evaluation, packed", 64, 64, Mask::causal, {9, 64, 1}, {9, 64, 1}},
    {"cross, packed", 64, 196, Mask::full, {9, 64, 20}},
    {"keys that some lack", 24, 40, Mask::full, {24, 3, 0}, {40, 1, 17}},
    {"keys that parallel ones lack", 24, 24, Mask::per_example, {24, 3, 9}, {24, 5, 11}},
};

// Random orders search for races and for work that relies on an order. They leave out 256 rows,
// which would take half of the time: 196 rows have all forms of their tiles.
std::vector<Lengths> lengths() {
  const char* order = std::getenv("CUDA_ON_CPU_ORDER");
  std::vector<Lengths> out;
  for (const Lengths& c : kLengths)
    if (c.keys <= 196 || !order || std::strcmp(order, "random") != 0) out.push_back(c);
  return out;
}

std::vector<int32_t> offsets_of(const std::vector<int32_t>& rows) {
  std::vector<int32_t> out;
  if (!rows.empty()) out.push_back(0);
  for (int32_t n : rows) out.push_back(out.back() + n);
  return out;
}

struct Problem {
  std::vector<uint8_t> flags{1, 0, 7};
  std::vector<int32_t> query_offsets, key_offsets;
  AttentionShape shape;
  int64_t queries, keys;  // elements
  explicit Problem(const Lengths& c, int64_t dim = kDim)
      : query_offsets(offsets_of(c.query_rows)),
        key_offsets(offsets_of(c.key_rows)),
        shape{.batch = kBatch,
              .heads = kHeads,
              .query_length = c.queries,
              .key_length = c.keys,
              .head_dim = dim,
              .mask = c.mask},
        queries(kHeads * dim * (query_offsets.empty() ? kBatch * c.queries : query_offsets.back())),
        keys(kHeads * dim * (key_offsets.empty() ? kBatch * c.keys : key_offsets.back())) {
    if (c.mask == Mask::per_example) shape.flags = device::view(flags.data(), kBatch);
    if (!query_offsets.empty())
      shape.query_offsets = device::view(query_offsets.data(), kBatch + 1);
    if (!key_offsets.empty()) shape.key_offsets = device::view(key_offsets.data(), kBatch + 1);
  }
};

// Returns numbers that the narrow type holds.
std::vector<float> rounded_normals(int64_t count, const char* name) {
  std::vector<float> out;
  for (float v : normals(count, name)) out.push_back(widened(narrowed(v)));
  return out;
}

// The results of both directions.
struct Results {
  std::vector<float> o, dq, dk, dv;
};
template <class QueueKind, class Run>
Results results_of(const Problem& p, bool narrow, QueueKind& queue, const Run& run_op) {
  auto numbers = [&](int64_t count, const char* name) {
    return Numbers(rounded_normals(count, name), narrow);
  };
  auto nothing = [&](int64_t count) {
    return Numbers(std::vector<float>(size_t(count), NAN), narrow);
  };
  Numbers q = numbers(p.queries, "q"), k = numbers(p.keys, "k"), v = numbers(p.keys, "v"),
          d_o = numbers(p.queries, "d_o");
  Numbers o = nothing(p.queries), dq = nothing(p.queries), dk = nothing(p.keys),
          dv = nothing(p.keys);
  std::vector<float> lse(size_t(p.shape.batch * kHeads * p.shape.query_length), NAN);
  const View l = device::view(lse.data(), int64_t(lse.size()));
  run_op(
      AttentionForward{
          .o = o.view(), .lse = l, .q = q.view(), .k = k.view(), .v = v.view(), .shape = p.shape},
      queue);
  run_op(AttentionBackward{.dq = dq.view(),
                           .dk = dk.view(),
                           .dv = dv.view(),
                           .d_o = d_o.view(),
                           .q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .o = o.view(),
                           .lse = l,
                           .shape = p.shape},
         queue);
  return {o.values(), dq.values(), dk.values(), dv.values()};
}

// What a GPU computes, by a library or by our own kernels, and the ways it took.
struct Ran {
  Results results;
  PathCounts ways;
};
// Runs a problem on the GPU. Level "mesh" keeps f32 from the libraries. Several tests compare the
// same results with others, so each is computed once: the emulated GPU takes half a second for one.
const Ran& ran_on_gpu(const Lengths& c, int64_t dim, bool narrow, bool own) {
  static std::map<std::string, Ran> all;
  const std::string key =
      fmt::format("{} {} {} {} {}", c.name, dim, narrow, own, device::name_of(narrow_type()));
  if (auto known = all.find(key); known != all.end()) return known->second;
  TestQueue queue(1, own);
  Results results = results_of(Problem(c, dim), narrow, queue,
                               [](const auto& op, TestQueue& on) { run(op, on); });
  return all[key] = {std::move(results), path_counts(queue)};
}

// Expects the norm of all errors to be at most `part` of the norm of all wanted values.
void expect_near(const std::vector<float>& got, const std::vector<float>& wanted, double part,
                 const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  double square = 0, error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = double(got[i]) - double(wanted[i]);
    error += e * e;
    square += double(wanted[i]) * double(wanted[i]);
  }
  EXPECT_LE(std::sqrt(error), part * std::sqrt(square)) << what;
}

void expect_results_of_cpu(const Results& got, const Problem& p, bool narrow) {
  Queue cpu(device::Kind::cpu);
  const Results wanted =
      results_of(p, false, cpu, [](const auto& op, Queue& on) { kernels::run(op, on); });
  const double part = narrow ? 8e-3 * narrow_part() : 2e-6;
  expect_near(got.o, wanted.o, part, "o");
  expect_near(got.dq, wanted.dq, part, "dq");
  expect_near(got.dk, wanted.dk, part, "dk");
  expect_near(got.dv, wanted.dv, part, "dv");
}

void compare(const Lengths& c, bool narrow) {
  SCOPED_TRACE(c.name);
  const auto& [got, ran] = ran_on_gpu(c, kDim, narrow, false);
  EXPECT_EQ(ran[size_t(Path::attention_cudnn)], narrow ? 2 : 0);
  EXPECT_EQ(ran[size_t(Path::attention_products)], narrow ? 0 : 2);
  EXPECT_EQ(ran[size_t(Path::attention_own)], 0);
  EXPECT_EQ(ran[size_t(Path::fallback)], 0);
  expect_results_of_cpu(got, Problem(c), narrow);
}

TEST(AttentionPaths, LibrariesGiveTheResultsOfTheCpu) {
  if (!on_cuda()) GTEST_SKIP() << "only GPUs choose between these paths";
  for (const Lengths& c : lengths()) {
    for_each_narrow_type([&] { compare(c, true); });
    compare(c, false);
  }
}

// Our own kernels run what the libraries do not: dropout, heads of other sizes, and level "mesh" in
// f32, where bits may not depend on the number of examples.
TEST(AttentionPaths, OwnKernelsRunTheRest) {
  if (!on_cuda()) GTEST_SKIP() << "only GPUs choose between these paths";
  auto own = [](AttentionShape shape, bool narrow, bool fixed_order) {
    const int64_t count = shape.heads * shape.head_dim;
    Numbers q(normals(count, "q"), narrow), o(normals(count, "o"), narrow);
    TestQueue queue(1, fixed_order);
    run(
        AttentionForward{
            .o = o.view(), .q = q.view(), .k = q.view(), .v = q.view(), .shape = shape},
        queue);
    const PathCounts ran = path_counts(queue);
    EXPECT_EQ(ran[size_t(Path::fallback)], 0);
    return ran[size_t(Path::attention_own)] == 1;
  };
  AttentionShape s{.batch = 1, .heads = 1, .query_length = 1, .key_length = 1, .head_dim = 8};
  EXPECT_FALSE(own(s, true, false));
  EXPECT_FALSE(own(s, false, false));
  EXPECT_FALSE(own(s, true, true));
  EXPECT_TRUE(own(s, false, true));
  s.head_dim = 12;
  EXPECT_TRUE(own(s, true, false));
  EXPECT_FALSE(own(s, false, false));
  s.head_dim = 8;
  s.dropout = 0.5f;
  s.stream = base::Stream(1, "weights");
  EXPECT_TRUE(own(s, true, false));
  EXPECT_TRUE(own(s, false, false));
}

Results own_results(const Problem& p, bool narrow) {
  TestQueue queue(1, true);
  const Results got =
      results_of(p, narrow, queue, [](const auto& op, TestQueue& on) { run(op, on); });
  EXPECT_EQ(path_counts(queue)[size_t(Path::attention_own)], 2);
  return got;
}

// head_dim 20, 64, 100 and 160 take kernels of their own, and rows of 20 16-bit numbers have no
// packs.
TEST(AttentionPaths, OwnKernelsGiveTheResultsOfTheCpu) {
  if (!on_cuda()) GTEST_SKIP() << "the kernels of GPUs";
  auto compare_own = [](const Lengths& c, int64_t dim, bool narrow) {
    SCOPED_TRACE(fmt::format("{}, {} numbers in a head", c.name, dim));
    const auto& [got, ran] = ran_on_gpu(c, dim, narrow, true);
    EXPECT_EQ(ran[size_t(Path::attention_own)], 2);
    expect_results_of_cpu(got, Problem(c, dim), narrow);
  };
  for (const Lengths& c : lengths()) {
    compare_own(c, 20, false);
    compare_own(c, 64, false);
  }
  for (size_t i : {3, 7, 8, 11, 12}) {
    compare_own(kLengths[i], 100, false);
    compare_own(kLengths[i], 160, false);
    for_each_narrow_type([&] {
      compare_own(kLengths[i], 20, true);
      compare_own(kLengths[i], 136, true);
    });
  }
}

// Level "mesh": an example has the same bits in passes of any size.
TEST(AttentionPaths, OwnKernelsGiveAnExampleItsBitsInAnyBatch) {
  if (!on_cuda()) GTEST_SKIP() << "the kernels of GPUs";
  const Lengths all{"three examples", 70, 70, Mask::full};
  Problem p(all);
  const Results together = own_results(p, false);
  const size_t row = size_t(kHeads * kDim), example = 70 * row;
  // The first 70 rows of the same numbers: example 0 alone.
  Problem one(all);
  one.shape.batch = 1;
  one.queries = one.keys = int64_t(example);
  const Results alone = own_results(one, false);
  for (auto part : {&Results::o, &Results::dq, &Results::dk, &Results::dv}) {
    const std::vector<float>& x = together.*part;
    EXPECT_TRUE(same_bits({x.begin(), x.begin() + ptrdiff_t(example)}, alone.*part));
  }
}

// A tensor as columns of a wider matrix, for the strides of attention.
struct Columns {
  int64_t rows, row, stride;
  int64_t extent() const { return rows ? (rows - 1) * stride + row : 0; }
  std::vector<float> spread(const std::vector<std::vector<float>>& parts) const {
    std::vector<float> out(size_t(rows * stride), NAN);
    for (size_t p = 0; p < parts.size(); ++p)
      for (size_t i = 0; i < parts[p].size(); ++i)
        out[(i / size_t(row)) * size_t(stride) + p * size_t(row) + i % size_t(row)] = parts[p][i];
    return out;
  }
  View part(Numbers& all, int64_t p) const { return all.view().slice(p * row, extent()); }
  std::vector<float> gathered(const Numbers& all, int64_t p) const {
    std::vector<float> out;
    const std::vector<float> x = all.values();
    for (int64_t r = 0; r < rows; ++r) {
      const auto begin = x.begin() + r * stride + p * row;
      out.insert(out.end(), begin, begin + row);
    }
    return out;
  }
};

// The results with keys and values as columns of one matrix, and queries in rows with a gap.
Results results_in_columns(const Problem& p, bool narrow, TestQueue& queue) {
  const int64_t row = p.shape.row();
  const Columns of_q{p.queries / row, row, row + 32}, of_k{p.keys / row, row, 2 * row};
  Numbers q(of_q.spread({rounded_normals(p.queries, "q")}), narrow),
      k(of_k.spread({rounded_normals(p.keys, "k"), rounded_normals(p.keys, "v")}), narrow),
      d_o(rounded_normals(p.queries, "d_o"), narrow),
      o(std::vector<float>(size_t(p.queries)), narrow), dq(of_q.spread({}), narrow),
      dk(of_k.spread({}), narrow);
  std::vector<float> lse(size_t(p.shape.batch * kHeads * p.shape.query_length), NAN);
  const View l = device::view(lse.data(), int64_t(lse.size()));
  AttentionShape shape = p.shape;
  shape.query_stride = of_q.stride;
  shape.key_stride = of_k.stride;
  run(AttentionForward{.o = o.view(),
                       .lse = l,
                       .q = of_q.part(q, 0),
                       .k = of_k.part(k, 0),
                       .v = of_k.part(k, 1),
                       .shape = shape},
      queue);
  run(AttentionBackward{.dq = of_q.part(dq, 0),
                        .dk = of_k.part(dk, 0),
                        .dv = of_k.part(dk, 1),
                        .d_o = d_o.view(),
                        .q = of_q.part(q, 0),
                        .k = of_k.part(k, 0),
                        .v = of_k.part(k, 1),
                        .o = o.view(),
                        .lse = l,
                        .shape = shape},
      queue);
  return {o.values(), of_q.gathered(dq, 0), of_k.gathered(dk, 0), of_k.gathered(dk, 1)};
}

// One product computes keys and values, or queries too; the ops then see rows with gaps.
TEST(AttentionPaths, TensorsMayBeColumnsOfOneMatrix) {
  if (!on_cuda()) GTEST_SKIP() << "CPUs take rows without gaps";
  for (const Lengths& c : lengths())
    for (bool narrow : {false, true})
      for (bool own : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", c.name, narrow ? "bf16" : "f32",
                                 own ? "own kernels" : "a library"));
        const Problem p(c, own && narrow ? 20 : kDim);
        TestQueue columns(1, own);
        const auto& [wanted, ways] = ran_on_gpu(c, p.shape.head_dim, narrow, own);
        const Results got = results_in_columns(p, narrow, columns);
        EXPECT_EQ(path_counts(columns), ways);
        EXPECT_EQ(path_counts(columns)[size_t(Path::attention_own)], own ? 2 : 0);
        const double part = narrow ? 4e-3 : 1e-6;  // a library may choose another kernel
        expect_near(got.o, wanted.o, part, "o");
        expect_near(got.dq, wanted.dq, part, "dq");
        expect_near(got.dk, wanted.dk, part, "dk");
        expect_near(got.dv, wanted.dv, part, "dv");
      }
}

}  // namespace
}  // namespace attention_paths
