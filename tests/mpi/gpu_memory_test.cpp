// SPDX-License-Identifier: Apache-2.0
// Compares plans for GPUs with emulated ones (run with 1 and 2 ranks). Every category of memory
// must be as planned, and their sum must be the memory allocated there, to the byte. Traffic must
// be as planned, too. The memory that NCCL and CUDA keep for themselves is not emulated.
#include <cstdio>
#include <cstdlib>
#include <set>

#include "comm/gpu_exchange.hpp"
#include "device/gpu.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

using device::Kind;

int failures = 0, rank = 0;
void expect(bool good, const std::string& text) {
  if (good) return;
  ++failures;
  std::printf("FAILED on rank %d: %s\n", rank, text.c_str());
}

void same(const comm::Traffic& a, const comm::Traffic& b, const std::string& what) {
  expect(a.calls == b.calls && a.bytes == b.bytes,
         fmt::format("{}: {} calls and {} bytes, planned {} and {}", what, a.calls, a.bytes,
                     b.calls, b.bytes));
}

void compare(comm::Session& session, const tests::Case& c) {
  const std::string name = c.text();
  const comm::SumOrder order = c.level == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library;
  comm::Mesh mesh = comm::make_mesh(session, c.mesh, order);
  comm::connect_gpus(mesh, {}, order, "here");
  const size_t before = device::gpu_memory_used_bytes();
  step::Engine real(tests::engine_options(c, 10), mesh, Kind::cuda);
  real.initialise();
  real.publish();
  mesh.fsdp->reset_traffic();
  mesh.replica->reset_traffic();
  tests::run_step(real, mesh, 1);
  std::vector<double> nll(size_t(real.geometry().micro_batch)), weight(nll.size());
  const comm::Traffic gathered = mesh.fsdp->gathered(), scattered = mesh.fsdp->scattered(),
                      reduced = mesh.fsdp->reduced();
  tests::MadeBatch batch(tests::small_cappa(), 0, real.geometry().micro_batch);
  tests::score(real, batch.host, nll.data(), weight.data());

  auto world = comm::make_plan_comm(c.mesh.ranks());
  comm::Mesh on_paper = comm::make_plan_mesh(c.mesh, *world);
  step::EngineOptions options = tests::engine_options(c, 10);
  options.paper_of = Kind::cuda;
  step::Engine paper(options, on_paper, Kind::plan);
  paper.step(1, {});
  same(gathered, on_paper.fsdp->gathered(), name + ": all-gather");
  same(scattered, on_paper.fsdp->scattered(), name + ": reduce-scatter");
  same(reduced, on_paper.fsdp->reduced(), name + ": all-reduce");

  const auto &a = real.ledger().entries(), &b = paper.ledger().entries();
  std::set<std::string> names;
  for (const auto* entries : {&a, &b})
    for (const auto& entry : *entries) names.insert(entry.first);
  int64_t sum = 0;
  for (const std::string& category : names) {
    const int64_t took = real.ledger().peak_of(category),
                  planned = paper.ledger().peak_of(category);
    expect(took == planned,
           fmt::format("{}: {} bytes of {}, planned {}", name, took, category, planned));
    sum += took;
  }
  expect(names.count("scratch") && paper.ledger().peak_of("scratch") >= 32 << 20,
         name + ": no workspace is planned for");
  const int64_t allocated = int64_t(device::gpu_memory_used_bytes() - before);
  expect(allocated == sum, fmt::format("{}: {} bytes are allocated on the GPU, {} were counted",
                                       name, allocated, sum));
}

int run(comm::Session& session, int, char**) {
  const int ranks = session.world().size();
  rank = session.world().rank();
  setenv("CUDA_ON_CPU_GPUS", std::to_string(ranks).c_str(), 1);
  device::use_gpu(session.local_rank());
  int cases = 0;
  for (auto [parameters, optimizer] :
       {std::pair{"sharded", "sharded"}, {"replicated", "sharded"}, {"replicated", "replicated"}})
    for (bool bf16 : {false, true})
      for (const char* level : {"run", "mesh"}) {
        const bool sharded = parameters[0] == 's';
        if (!sharded && level[0] == 'm') continue;
        tests::Case c{.mesh = {1, ranks},
                      .micro_batch = 48 / ranks / 2,
                      .parameters = parameters,
                      .optimizer = optimizer,
                      .level = level};
        c.bf16 = bf16;
        c.kind = bf16 ? "adamw" : "adafactor";
        compare(session, c);
        ++cases;
      }
  const int64_t total = session.world().sum(int64_t{failures});
  if (rank == 0) std::printf("%d cases on %d ranks, %ld failures\n", cases, ranks, long(total));
  return total ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
