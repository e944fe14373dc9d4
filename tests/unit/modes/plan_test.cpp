// SPDX-License-Identifier: Apache-2.0
// --mode plan runs a few passes of a step and multiplies their counts. The result must equal the
// counts of all passes exactly.
#include "modes/plan.hpp"

#include <gtest/gtest.h>

#include "kernels/gemm.hpp"

namespace modes {
using namespace train;
namespace {

const char* kDeck = R"(
run   = { dir = "unused" }
train = { data = "made", total_steps = 10, global_batch = 96 }
mesh  = { replica = 2, fsdp = 2 }
[model]
image_size = 16
vocab_size = 50
seq_len = 8
kind = "cappa"
encoder = { patch = 8, depth = 2, width = 32, mlp = 48, heads = 2 }
decoder = { depth = 1 }
[optimizer]
kind = "adafactor"
learning_rate = 1e-3
[data.made]
kind = "synthetic"
image_size = 16
seq_len = 8
vocab_size = 50
)";

struct Counted {
  int64_t flops = 0;
  comm::Traffic gather, scatter, reduce, replica;
};

Counted walk_all(const Recipe& recipe) {
  auto world = comm::make_plan_comm(4);
  comm::Mesh mesh = comm::make_plan_mesh({2, 2}, *world);
  step::Engine engine(recipe.engine(4096, 1, device::Kind::cpu), mesh, device::Kind::plan);
  engine.step(1, {});
  Counted out{0, mesh.fsdp->gathered(), mesh.fsdp->scattered(), mesh.fsdp->reduced(),
              mesh.replica->reduced()};
  for (const device::OpCost& cost : engine.queue().costs()) out.flops += cost.flops;
  return out;
}

void expect_equal(const comm::Traffic& a, const comm::Traffic& b) {
  EXPECT_EQ(a.calls, b.calls);
  EXPECT_EQ(a.bytes, b.bytes);
}

TEST(Plan, CountsManyPassesWithoutWalkingThroughThem) {
  for (const char* strategy : {"sharded", "replicated"})
    for (const char* optimizer : {"sharded", "replicated"})
      for (const char* level : {"run", "mesh"})
        for (int micro : {24, 6, 3}) {
          if (strategy[0] == 's' && optimizer[0] == 'r') continue;
          SCOPED_TRACE(fmt::format("parameters {}, optimizer {}, level {}, micro-batch {}",
                                   strategy, optimizer, level, micro));
          Recipe recipe;
          config::Deck deck({"deck.toml",
                             kDeck,
                             {fmt::format("sharding.parameters={}", strategy),
                              fmt::format("sharding.optimizer={}", optimizer),
                              fmt::format("determinism.level={}", level), "determinism.slices=32",
                              fmt::format("train.micro_batch={}", micro)}},
                            recipe);
          recipe.cross_check(deck);
          deck.throw_if_any();
          Plan plan = make_plan(recipe, deck, 4, "");
          EXPECT_EQ(plan.geometry.accumulation, 24 / micro);
          Counted all = walk_all(recipe);
          EXPECT_EQ(plan.step_flops, all.flops);
          int64_t of_ops = 0;
          for (const auto& [call, count] : plan.calls) of_ops += count * call.flops;
          EXPECT_EQ(of_ops, all.flops);
          expect_equal(plan.traffic.fsdp_gather, all.gather);
          expect_equal(plan.traffic.fsdp_scatter, all.scatter);
          expect_equal(plan.traffic.fsdp_reduce, all.reduce);
          expect_equal(plan.traffic.replica_reduce, all.replica);
        }
}

struct OnPaper {
  int64_t products = 0, scratch = 0;
};
OnPaper on_paper(const std::string& device, const std::string& logits_mb) {
  Recipe recipe;
  config::Deck deck(
      {"deck.toml",
       kDeck,
       {"train.global_batch=6144", "run.device=" + device, "model.logits_mb=" + logits_mb}},
      recipe);
  deck.throw_if_any();
  Plan plan = make_plan(recipe, deck, 4, "");
  const step::EngineOptions options =
      recipe.engine(4096, 1, device == "cuda" ? device::Kind::cuda : device::Kind::cpu);
  auto world = comm::make_plan_comm(4);
  comm::Mesh mesh = comm::make_plan_mesh({2, 2}, *world);
  step::Engine engine(options, mesh, device::Kind::plan);
  engine.step(1, {});
  EXPECT_EQ(plan.memory.count("scratch"), device == "cuda");
  EXPECT_EQ(plan.memory["scratch"], engine.ledger().peak_of("scratch"));
  return {engine.queue().costs()[size_t(kernels::Op::gemm)].calls, plan.memory["scratch"]};
}

// Every rank has 1536 examples with 8 positions each: 48 chunks of 256 rows on CPUs, 3 of 4096 on
// GPUs. With 1 MiB there are 3 of 4096 as well, because 50 logits are few. Each chunk adds three
// products: forward and two gradients. GPUs join three products to one in the two layers of the
// encoder, and two to one in both attentions of the decoder, whose only layer is the last one.
TEST(Plan, OnGpusLogitsGoInLargerChunksAndScratchIsCounted) {
  const OnPaper cpu = on_paper("cpu", "1024"), gpu = on_paper("cuda", "1024");
  EXPECT_EQ(cpu.products - gpu.products, 3 * (48 - 3) + 3 * (2 * 2 + 2 * 1));
  EXPECT_EQ(on_paper("cuda", "1").products, gpu.products);
  EXPECT_GE(gpu.scratch, int64_t(kernels::kGemmWorkspace));
}

// Returns the calls of the op in a step of one pass in bf16, with `depth` encoder blocks.
int64_t calls_of(kernels::Op op, const std::string& device, int depth) {
  Recipe recipe;
  config::Deck deck({"deck.toml",
                     kDeck,
                     {"precision.compute=bf16", "run.device=" + device, "mesh.replica=1",
                      "mesh.fsdp=1", fmt::format("model.encoder.depth={}", depth)}},
                    recipe);
  deck.throw_if_any();
  int64_t calls = 0;
  for (const auto& [call, count] : make_plan(recipe, deck, 1, "").calls)
    if (call.op == int(op)) calls += count;
  return calls;
}

int64_t of_a_block(kernels::Op op, const std::string& device) {
  return calls_of(op, device, 3) - calls_of(op, device, 2);
}

// What a block of the encoder adds: casts of its operands (6 kernels and 4 biases), and sums for
// the biases of queries, keys, values and the hidden layer. GPUs join three of these sums. CPUs add
// two casts and two sums of the residual gradient.
TEST(Plan, OnGpusNormsMakeTheRoundedGradientAndItsSums) {
  EXPECT_EQ(of_a_block(kernels::Op::cast, "cpu"), 10 + 2);
  EXPECT_EQ(of_a_block(kernels::Op::cast, "cuda"), 10);
  EXPECT_EQ(of_a_block(kernels::Op::column_sum, "cpu"), 4 + 2);
  EXPECT_EQ(of_a_block(kernels::Op::column_sum, "cuda"), 2);
}

// A block has 6 layers with three products each; queries, keys and values are one layer on GPUs.
// Three kernels and three biases are copied forward, three kernels backward, and six gradients.
TEST(Plan, OnGpusOneProductComputesQueriesKeysAndValues) {
  EXPECT_EQ(of_a_block(kernels::Op::gemm, "cpu"), 3 * 6);
  EXPECT_EQ(of_a_block(kernels::Op::gemm, "cuda"), 3 * 4);
  EXPECT_EQ(of_a_block(kernels::Op::copy_columns, "cpu"), 0);
  EXPECT_EQ(of_a_block(kernels::Op::copy_columns, "cuda"), 6 + 3 + 6);
}

}  // namespace
}  // namespace modes
