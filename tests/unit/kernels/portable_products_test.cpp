// SPDX-License-Identifier: Apache-2.0
// Products and convolutions of determinism.level "anywhere" have the same bits with each
// instruction set and number of threads, and must reproduce recorded digests. After a change of
// bits, record them again:
//   TRAINER_RECORD=1 build/tests/test_kernels --gtest_filter='PortableProducts.*'
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "base/hash.hpp"
#include "kernels/convolution.hpp"
#include "kernels/gemm.hpp"
#include "kernels/instruction_choice.hpp"
#include "rig.hpp"
#include "tests/unit/recorded.hpp"

namespace {

using namespace kernels;
using namespace rig;

// Numbers of f32 or bf16 in [-1, 1), the same on every machine.
class Drawn {
 public:
  Drawn(int64_t count, const std::string& name, bool narrow)
      : floats_(size_t(count)), bits_(narrow ? size_t(count) : 0), narrow_(narrow) {
    const base::Stream stream(48, name);
    for (size_t i = 0; i < floats_.size(); ++i) {
      floats_[i] = 2 * stream.uniform(i) - 1;
      if (narrow) bits_[i] = uint16_t(std::bit_cast<uint32_t>(floats_[i]) >> 16);
    }
  }
  View view() {
    const int64_t count = int64_t(floats_.size());
    return narrow_ ? View{bits_.data(), device::DType::bf16, count}
                   : device::view(floats_.data(), count);
  }
  uint64_t digest() {
    const View v = view();
    return base::xxh3(v.data, size_t(v.bytes()));
  }

 private:
  std::vector<float> floats_;
  std::vector<uint16_t> bits_;
  bool narrow_;
};

struct ProductCase {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, narrow = false, narrow_c = false, more = false,
       add = false;
};

uint64_t digest_of(const ProductCase& p, Queue& queue) {
  Drawn a(p.m * p.k, "a", p.narrow), b(p.k * p.n, "b", p.narrow), c(p.m * p.n, "c", p.narrow_c),
      bias(p.n, "bias", p.narrow_c), residual(p.m * p.n, "residual", false),
      gelu(p.m * p.n, "gelu", p.narrow_c);
  Gemm g{.c = c.view(),
         .a = a.view(),
         .b = b.view(),
         .m = p.m,
         .n = p.n,
         .k = p.k,
         .trans_a = p.trans_a,
         .trans_b = p.trans_b};
  if (p.add) g.write = Write::accumulate;
  if (p.more) {
    g.bias = bias.view();
    g.residual = residual.view();
    g.gelu = gelu.view();
  }
  run(g, queue);
  return c.digest() ^ (3 * gelu.digest());
}

uint64_t digest_of(const ConvolutionShape& s, bool narrow, Write write, Queue& queue) {
  Drawn x(s.inputs(), "x", narrow), w(s.weights(), "w", narrow), y(s.outputs(), "y", narrow),
      dy(s.outputs(), "dy", narrow), dx(s.inputs(), "dx", narrow), dw(s.weights(), "dw", false);
  run(ConvolutionForward{.y = y.view(), .x = x.view(), .weight = w.view(), .shape = s}, queue);
  run(
      ConvolutionBackwardData{
          .dx = dx.view(), .dy = dy.view(), .weight = w.view(), .shape = s, .write = write},
      queue);
  run(
      ConvolutionBackwardWeights{
          .dw = dw.view(), .x = x.view(), .dy = dy.view(), .shape = s, .write = write},
      queue);
  return y.digest() ^ (3 * dx.digest()) ^ (5 * dw.digest());
}

ConvolutionShape shape_of(int64_t batch, int64_t size, int64_t in, int64_t out, int64_t kernel,
                          int64_t stride, int64_t padding, int64_t groups = 1) {
  return {.window = {.batch = batch,
                     .height = size,
                     .width = size + 1,
                     .kernel_height = kernel,
                     .kernel_width = kernel,
                     .stride = stride,
                     .padding = padding},
          .in = in,
          .out = out,
          .groups = groups};
}

// Returns a digest for each case.
std::map<std::string, std::string> digests(Queue& queue) {
  std::map<std::string, std::string> out;
  auto note = [&](const std::string& name, uint64_t digest) {
    out[name] = fmt::format("{:016x}", digest);
  };
  // Sizes around tiles, panels, blocks and chains.
  for (auto [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {5, 7, 3}, {12, 32, 256}, {13, 33, 257}, {150, 70, 600}, {25, 600, 40}})
    for (int flags = 0; flags < 32; ++flags) {
      ProductCase p{.m = m, .n = n, .k = k};
      p.trans_a = flags & 1;
      p.trans_b = flags & 2;
      p.narrow = flags & 4;
      p.narrow_c = p.narrow && (flags & 8);
      p.add = flags & 16;
      p.more = !p.add;
      note(fmt::format("product_{}x{}x{}_{}", m, n, k, flags), digest_of(p, queue));
    }
  // Each thread packs its own columns, because there are many. One shape has two chains, two have
  // enough blocks for three threads. The last shape has few sums, whose columns come in pieces.
  for (auto [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {110, 700, 400}, {101, 2500, 110}, {97, 6000, 50}, {98, 60, 2300}})
    for (int flags : {0, 3, 16})
      note(fmt::format("product_{}x{}x{}_{}", m, n, k, flags),
           digest_of({.m = m,
                      .n = n,
                      .k = k,
                      .trans_a = bool(flags & 1),
                      .trans_b = bool(flags & 2),
                      .add = bool(flags & 16)},
                     queue));
  for (const ConvolutionShape& s :
       {shape_of(2, 9, 3, 20, 7, 2, 3), shape_of(3, 6, 16, 24, 3, 1, 1),
        shape_of(2, 7, 40, 16, 3, 2, 1), shape_of(3, 9, 16, 32, 1, 2, 0),
        shape_of(2, 6, 24, 12, 3, 1, 1, 4), shape_of(2, 7, 20, 20, 5, 1, 2, 20),
        shape_of(6, 13, 84, 84, 3, 2, 1, 84), shape_of(2, 7, 20, 20, 1, 2, 0, 20),
        shape_of(4, 5, 24, 16, 1, 1, 0), shape_of(1, 1, 5, 3, 3, 1, 1)})
    for (int flags = 0; flags < 4; ++flags)
      note(fmt::format("convolution_{}x{}_{}to{}_k{}s{}p{}g{}_{}", s.window.batch, s.window.height,
                       s.in, s.out, s.window.kernel_width, s.window.stride, s.window.padding,
                       s.groups, flags),
           digest_of(s, flags & 1, flags & 2 ? Write::accumulate : Write::overwrite, queue));
  return out;
}

TEST(PortableProducts, HaveTheRecordedBits) {
  if (on_cuda()) GTEST_SKIP() << "the level is for CPUs";
  const bool before = bits_are_portable();
  choose_instructions(Instructions::automatic, true);
  const std::string path = tests::source_file("tests/recorded/products.txt");
  std::map<std::string, std::string> recorded;
  for (const VectorTable* table : portable_vector_tables())
    for (int threads : {1, 3}) {
      seams::force_vector_table(table);
      Queue queue(device::Kind::cpu, threads, true);
      const auto found = digests(queue);
      if (recorded.empty()) {
        if (const char* record = std::getenv("TRAINER_RECORD"); record && *record) {
          std::ofstream file(path);
          for (const auto& [name, digest] : found) file << name << " " << digest << "\n";
        }
        std::ifstream file(path);
        for (std::string name, digest; file >> name >> digest;) recorded[name] = digest;
        EXPECT_EQ(recorded.size(), found.size());
      }
      for (const auto& [name, digest] : found)
        EXPECT_EQ(digest, recorded[name]) << name << ", " << table->name << ", threads " << threads;
    }
  seams::force_vector_table(nullptr);
  choose_instructions(Instructions::automatic, before);
}

}  // namespace
