// SPDX-License-Identifier: Apache-2.0
// Memory of the engine on real ranks (run with 1, 2 and 4). Sharding saves its share. A plan counts
// exactly the ledger, arena peak, traffic and operations of a real step. From step 3 on our code
// allocates nothing.
#include <execinfo.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "count_allocations.hpp"
#include "memory_decks.hpp"

namespace {

using device::Kind;
using tests::expect, tests::say, tests::session;

// An engine of the plan back end: it counts and computes nothing.
struct Planned {
  std::unique_ptr<comm::Comm> world;
  comm::Mesh mesh;
  step::Engine engine;
  Planned(const step::EngineOptions& options, comm::MeshShape shape)
      : world(comm::make_plan_comm(shape.ranks())),
        mesh(comm::make_plan_mesh(shape, *world)),
        engine(options, mesh, Kind::plan) {}
};

// ---- what sharding saves

struct Saving {
  int64_t weights, gradients, optimizer;  // per rank; optimizer: what there is per element
  int64_t units, tensors;
};
Saving saving(step::Engine& engine) {
  int64_t shared = 0;  // one buffer has the row and column means, whole on every rank
  for (const shard::TensorSlice& slice : engine.state()) {
    int64_t n = 1;
    for (int64_t d : slice.shape) n *= d;
    if (slice.name.find("/v_row/") != std::string::npos ||
        slice.name.find("/v_col/") != std::string::npos)
      shared += n * 4;
  }
  const device::Ledger& l = engine.ledger();
  return {l.peak_of("weights"), l.peak_of("gradients"),
          l.peak_of("optimizer") - (shared + 63) / 64 * 64, int64_t(engine.layout().units().size()),
          int64_t(engine.layout().parameters().size())};
}

// A rank's part of a unit is padded to lines of 64 bytes, so it has at most one line more than its
// share. State of each tensor begins at a line: at most two lines more per tensor in each of at
// most two buffers.
void compare_saving(const std::string& name, const Saving& one, const Saving& many, int fsdp,
                    bool print) {
  auto at_most = [&](const char* what, int64_t part, int64_t whole, int64_t padding) {
    expect(part <= whole / fsdp + padding,
           fmt::format("{}: {} bytes of {} per rank, of {} on one rank: more than a {}th and {} "
                       "bytes of padding",
                       name, part, what, whole, fsdp, padding));
    if (print)
      say(fmt::format(
          "  {:<10}{:>14} bytes on one rank, {:>13} per rank on 1x{} ({:+.3f} % of a {}th)", what,
          whole, part, fsdp, 100.0 * (double(part) * fsdp / double(whole) - 1), fsdp));
    expect(part > whole / fsdp / 2, name + ": too little to be true");
  };
  at_most("weights", many.weights, one.weights, 64 * many.units);
  at_most("gradients", many.gradients, one.gradients, 64 * many.units);
  at_most("optimizer", many.optimizer, one.optimizer, 2 * 128 * many.tensors + 64 * many.units);
}

void sharding() {
  const int ranks = session->world().size();
  for (const char* kind : {"adafactor", "adamw", "momentum"})
    for (const char* level : {"run", "mesh"}) {
      if (std::string(level) == "mesh" && !tests::power_of_two()) continue;
      tests::Case c{.mesh = {1, ranks},
                    .micro_batch = 48 / ranks / 2,
                    .level = level,
                    .momentum_type = "f32"};
      c.kind = kind;
      comm::Mesh mesh = comm::make_mesh(
          *session, c.mesh,
          std::string(level) == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library);
      step::Engine engine(tests::engine_options(c, 10), mesh, Kind::cpu);
      c.micro_batch = 48 / 2;  // as many passes as on several ranks
      Planned one(tests::engine_options(c, 10), {1, 1});
      expect(engine.geometry().accumulation == one.engine.geometry().accumulation,
             "the same number of passes");
      compare_saving(fmt::format("small model, {}, level {}", kind, level), saving(one.engine),
                     saving(engine), ranks, false);
      int64_t weights = 0;
      for (size_t u = 0; u < engine.layout().units().size(); ++u)
        weights += engine.owned_weights(int(u)).bytes();
      expect(engine.ledger().peak_of("weights") == weights,
             "a rank holds what it owns and no more");
    }
  // Buffers for whole units: one for the block at work, one for each block gathered ahead, and two
  // for gradients.
  if (ranks > 1)
    for (int64_t prefetch : {0, 1}) {
      tests::Case c{.mesh = {1, ranks}, .level = "run"};
      c.micro_batch = 48 / ranks;
      step::EngineOptions o = tests::engine_options(c, 10);
      o.sharding.prefetch = prefetch;
      Planned planned(o, c.mesh);
      const shard::Layout& layout = planned.engine.layout();
      int64_t largest = 0;
      for (const auto& units : layout.units_of_block()) {
        int64_t bytes = 0;
        for (int u : units) bytes += layout.units()[size_t(u)].length * 4;
        largest = std::max(largest, bytes);
      }
      int64_t found = planned.engine.ledger().peak_of("gathered");
      expect(found == (1 + prefetch + 2) * largest,
             fmt::format("{} bytes gathered, the largest block has {}", found, largest));
    }
  // The figures of a real size, from the plan back end. planning() proves that they hold in a run.
  auto options = [](comm::MeshShape) {
    tests::Case c{.mesh = {}, .micro_batch = 4, .level = "run"};
    step::EngineOptions o = tests::engine_options(c, 10);
    models::CappaOptions m;
    m.encoder.depth = 2;
    m.decoder.depth = 2;
    o.model = tests::made_cappa(c, m);
    o.global_batch = 32;
    return o;
  };
  for (int fsdp : {2, 4, 8}) {
    Planned one(options({1, 1}), {1, 1}), many(options({1, fsdp}), {1, fsdp});
    if (fsdp == 8) say("memory: CapPa of width 768, two blocks each, vocabulary 32000");
    compare_saving("width 768", saving(one.engine), saving(many.engine), fsdp, fsdp == 8);
  }
}

// ---- a plan counts what a step uses

void compare_traffic(const comm::Comm& real, const comm::Comm& planned, const std::string& name) {
  auto same = [&](const comm::Traffic& a, const comm::Traffic& b, const char* what) {
    expect(a.calls == b.calls && a.bytes == b.bytes,
           fmt::format("{}: {} {} calls and {} bytes, planned {} and {}", name, a.calls, what,
                       a.bytes, b.calls, b.bytes));
  };
  same(real.gathered(), planned.gathered(), "all-gather");
  same(real.scattered(), planned.scattered(), "reduce-scatter");
  same(real.reduced(), planned.reduced(), "all-reduce");
}

void planning() {
  int compared = 0;
  for (const tests::Deck& deck : tests::decks())
    for (comm::MeshShape shape : tests::shapes()) {
      const std::string name = fmt::format("{} on {}x{}", deck.name, shape.replica, shape.fsdp);
      comm::Mesh mesh = comm::make_mesh(*session, shape, deck.order());
      step::Engine real(deck.options(shape), mesh, Kind::cpu);
      real.initialise();
      real.publish();
      Planned planned(deck.options(shape), shape);
      // no row may be skipped where operations are counted
      tests::MadeFeed feed(real, mesh, 2, [](int64_t) { return 2; });
      mesh.fsdp->reset_traffic();
      mesh.replica->reset_traffic();
      feed.step(real, 1);
      planned.engine.step(1, {});
      expect(real.arena_peak() == planned.engine.arena_peak(),
             fmt::format("{}: arena peak {}, planned {}", name, real.arena_peak(),
                         planned.engine.arena_peak()));
      compare_traffic(*mesh.fsdp, *planned.mesh.fsdp, name + ", fsdp");
      compare_traffic(*mesh.replica, *planned.mesh.replica, name + ", replica");
      real.queue().reset_costs();  // the first step may make more than it needs
      feed.step(real, 2);
      int64_t flops = 0;
      // Each rank updates other tensors, and a plan counts those of the first rank.
      for (int op = 0; op < int(kernels::Op::count) && mesh.fsdp_index == 0; ++op) {
        const device::OpCost &a = real.queue().costs()[size_t(op)],
                             &b = planned.engine.queue().costs()[size_t(op)];
        flops += b.flops;
        expect(a.calls == b.calls && a.flops == b.flops && a.bytes == b.bytes,
               fmt::format("{}: {} was called {} times for {} flops, planned {} for {}", name,
                           kernels::name_of(kernels::Op(op)), a.calls, a.flops, b.calls, b.flops));
      }
      expect(flops > 0 || mesh.fsdp_index > 0, name + ": no operations");

      std::vector<double> nll(size_t(real.geometry().micro_batch)), weight(nll.size());
      tests::MadeBatch batch(tests::small_cappa(), 0, real.geometry().micro_batch);
      tests::score(real, batch.host, nll.data(), weight.data());
      expect(real.arena_peak() == real.ledger().peak_of("activations"),
             name + ": the arena is as large as what is used of it");
      const auto &a = real.ledger().entries(), &b = planned.engine.ledger().entries();
      std::set<std::string> names;
      for (const auto* entries : {&a, &b})
        for (const auto& entry : *entries) names.insert(entry.first);
      for (const std::string& category : names) {
        bool both = a.count(category) && b.count(category);
        expect(both && a.at(category).now == b.at(category).now &&
                   a.at(category).peak == b.at(category).peak,
               fmt::format("{}: {} bytes of {}, planned {}", name,
                           a.count(category) ? a.at(category).peak : -1, category,
                           b.count(category) ? b.at(category).peak : -1));
      }
      for (const char* category : {"weights", "gradients", "activations", "batch"})
        expect(real.ledger().peak_of(category) > 0, name + ": no " + category);
      ++compared;
    }
  say(fmt::format("plan: {} runs use exactly the planned bytes, traffic and operations", compared));
}

// ---- allocations

void allocation() {
#ifdef COUNT_ALLOCATIONS
  // The watch itself must see each way to allocate.
  allocations::watch(true);
  for (int way = 0; way < 5; ++way) {
    int64_t before = allocations::by_us;
    void* volatile memory = nullptr;
    if (way == 0) {
      memory = std::malloc(100);
      std::free(memory);
    }
    if (way == 1) {
      memory = std::aligned_alloc(64, 128);
      std::free(memory);
    }
    if (way == 2) delete std::make_unique<std::vector<int>>(1000).release();
    if (way == 3) {
      memory = std::calloc(3, 5);
      std::free(memory);
    }
    if (way == 4) memory = reinterpret_cast<void*>(std::string(100 + size_t(before), 'x').size());
    expect(allocations::by_us > before, fmt::format("the watch does not see allocation {}", way));
  }
  allocations::watch(false);

  int watched = 0;
  int64_t by_us = 0, by_libraries = 0;
  for (const tests::Deck& deck : tests::decks())
    for (comm::MeshShape shape : tests::shapes())
      for (int threads : {1, 2}) {
        if (threads == 2 && (shape.ranks() > 1 || deck.passes > 1 || deck.c.level == "mesh"))
          continue;
        // The scratch of a bf16 product may grow with the rows of captions.
        if (deck.options(shape).operands != device::DType::f32) continue;
        const std::string name = fmt::format("{} on {}x{} with {} threads", deck.name,
                                             shape.replica, shape.fsdp, threads);
        comm::Mesh mesh = comm::make_mesh(*session, shape, deck.order());
        step::EngineOptions options = deck.options(shape);
        options.threads = threads;
        step::Engine engine(options, mesh, Kind::cpu);
        engine.initialise();
        // Captions are short at first and full later, because the first batches may not decide
        // which buffers exist.
        tests::MadeFeed feed(engine, mesh, 5, [](int64_t step) {
          return step <= 2 ? 0 : step == 3 ? 2 : 1;
        });
        for (int64_t step = 1; step <= 5; ++step) {
          allocations::watch(step >= 3);
          feed.step(engine, step);
          allocations::watching = false;
          if (step < 3) continue;
          by_us += allocations::by_us;
          by_libraries += allocations::by_libraries;
          expect(allocations::by_us == 0, fmt::format("{}: {} allocations by our code in step {}",
                                                      name, int64_t(allocations::by_us), step));
          if (allocations::by_us > 0 && tests::failures <= 1)
            backtrace_symbols_fd(allocations::first_by_us.frames, allocations::first_by_us.count,
                                 1);
        }
        ++watched;
      }
  say(fmt::format("allocations: {} by our code from step 3 on in {} runs ({} by libraries)", by_us,
                  watched, by_libraries));
#else
  say("allocations: not counted with a sanitizer");
#endif
}

int run(comm::Session& s, int, char**) {
  tests::session = &s;
  allocation();  // first, while nothing has been made yet
  sharding();
  planning();
  return tests::conclude("memory");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
