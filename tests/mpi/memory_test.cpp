// SPDX-License-Identifier: Apache-2.0
// Memory of the engine on real ranks (run with 1, 2 and 4): what sharding saves, that a plan counts
// exactly what a real step uses (ledger, arena peak, traffic, operations), and that from step 3 on
// our code allocates nothing in a step.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>

#include "ranks.hpp"
#include "small_model.hpp"

// ---- counting allocations

// With a sanitizer, which has its own malloc, nothing is counted.
#if !defined(__SANITIZE_ADDRESS__)
#define COUNT_ALLOCATIONS 1
#endif

namespace allocations {

std::atomic<bool> watching{false};
std::atomic<int64_t> by_us{0}, by_libraries{0};
constexpr int kFrames = 24;
struct Place {
  void* frames[kFrames];
  int count = 0;
};
Place first_by_us;

struct Module {
  uintptr_t begin, end;
  bool ours, skipped;  // skipped: run-time libraries that allocate on somebody's behalf
};
Module modules[256];
int module_count = 0;

int add_module(dl_phdr_info* info, size_t, void*) {
  std::string name = info->dlpi_name ? info->dlpi_name : "";
  bool skipped =
      name.find("libstdc++") != std::string::npos || name.find("/libc.") != std::string::npos ||
      name.find("libfmt") != std::string::npos || name.find("libgcc_s") != std::string::npos;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (const auto& p = info->dlpi_phdr[i];
        p.p_type == PT_LOAD && (p.p_flags & PF_X) && module_count < 256)
      modules[module_count++] = {info->dlpi_addr + p.p_vaddr,
                                 info->dlpi_addr + p.p_vaddr + p.p_memsz, name.empty(), skipped};
  return 0;
}

const Module* module_of(void* address) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const Module* m = std::find_if(modules, modules + module_count,
                                 [&](const Module& x) { return at >= x.begin && at < x.end; });
  return m == modules + module_count || m->skipped ? nullptr : m;
}

// Who asked: the caller, or, where that is a run-time library, the innermost frame outside of
// those.
__attribute__((noinline)) void note(void* caller) {
  static thread_local bool inside = false;
  if (inside || !watching) return;
  inside = true;
  const Module* m = module_of(caller);
  Place place;
  if (!m || m->ours) place.count = backtrace(place.frames, kFrames);
  // 0 and 1: here, and the allocator below
  for (int i = 2; i < place.count && !m; ++i) m = module_of(place.frames[i]);
  const bool ours = m && m->ours;
  if (ours && by_us++ == 0) first_by_us = place;
  if (!ours) ++by_libraries;
  inside = false;
}

void watch(bool on) {
  if (on) {
    module_count = 0;
    dl_iterate_phdr(add_module, nullptr);
    Place warm_up;  // the first call loads a library
    backtrace(warm_up.frames, kFrames);
    by_us = by_libraries = 0;
  }
  watching = on;
}

}  // namespace allocations

#ifdef COUNT_ALLOCATIONS
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

#define NOTE allocations::note(__builtin_return_address(0))
__attribute__((noinline)) void* malloc(size_t n) { return NOTE, __libc_malloc(n); }
__attribute__((noinline)) void* calloc(size_t n, size_t m) { return NOTE, __libc_calloc(n, m); }
__attribute__((noinline)) void* realloc(void* p, size_t n) { return NOTE, __libc_realloc(p, n); }
__attribute__((noinline)) void* memalign(size_t a, size_t n) { return NOTE, __libc_memalign(a, n); }
__attribute__((noinline)) void* aligned_alloc(size_t a, size_t n) {
  return NOTE, __libc_memalign(a, n);
}
__attribute__((noinline)) int posix_memalign(void** p, size_t a, size_t n) {
  NOTE;
  *p = __libc_memalign(a, n);
  return *p ? 0 : ENOMEM;
}
void free(void* p) { __libc_free(p); }
}
// Libraries reach this one too, and then name themselves as the caller; other forms of new go
// through malloc.
__attribute__((noinline)) void* operator new(size_t n) {
  NOTE;
  if (void* p = __libc_malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
#endif

namespace {

using device::Kind;

comm::Session* session = nullptr;
int checks = 0, failures = 0;

void expect(bool good, const std::string& text) {
  ++checks;
  if (good) return;
  if (++failures <= 20)
    std::printf("FAILED on rank %d: %s\n", session->world().rank(), text.c_str());
}
void say(const std::string& text) {
  if (session->world().rank() == 0) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

bool power_of_two() { return std::has_single_bit(unsigned(session->world().size())); }

// A run on paper.
struct Paper {
  std::unique_ptr<comm::Comm> world;
  comm::Mesh mesh;
  step::Engine engine;
  Paper(const step::EngineOptions& options, comm::MeshShape shape)
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
  int64_t shared = 0;  // row and column means, which every rank holds whole, lie in one buffer
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

// A unit is padded to one line of 64 bytes per cut, so that a rank holds at most one line more of
// it than its share. State is kept per tensor, from a line of its own: in each of at most two
// buffers at most two lines more for each tensor.
void compare_saving(const std::string& name, const Saving& one, const Saving& many, int fsdp,
                    bool print) {
  auto at_most = [&](const char* what, int64_t part, int64_t whole, int64_t padding) {
    expect(part <= whole / fsdp + padding,
           fmt::format(
               "{}: {} bytes of {} per rank, of {} on one rank: more than a {}th and {} bytes of "
               "padding",
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
      if (std::string(level) == "mesh" && !power_of_two()) continue;
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
      Paper one(tests::engine_options(c, 10), {1, 1});
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
  // Whole units on their way: one buffer for the block at work and one for each gathered ahead, two
  // for gradients.
  if (ranks > 1)
    for (int64_t prefetch : {0, 1}) {
      tests::Case c{.mesh = {1, ranks}, .level = "run"};
      c.micro_batch = 48 / ranks;
      step::EngineOptions o = tests::engine_options(c, 10);
      o.sharding.prefetch = prefetch;
      Paper paper(o, c.mesh);
      const shard::Layout& layout = paper.engine.layout();
      int64_t largest = 0;
      for (const auto& units : layout.units_of_block()) {
        int64_t bytes = 0;
        for (int u : units) bytes += layout.units()[size_t(u)].length * 4;
        largest = std::max(largest, bytes);
      }
      int64_t found = paper.engine.ledger().peak_of("gathered");
      expect(found == (1 + prefetch + 2) * largest,
             fmt::format("{} bytes gathered, the largest block has {}", found, largest));
    }
  // The figure of a real size, on paper: that paper and reality agree is shown below.
  auto options = [](comm::MeshShape) {
    tests::Case c{.mesh = {}, .micro_batch = 4, .level = "run"};
    step::EngineOptions o = tests::engine_options(c, 10);
    auto m = std::make_shared<models::CappaOptions>();
    m->encoder.depth = 2;
    m->decoder.depth = 2;
    o.model.options = m;
    o.global_batch = 32;
    return o;
  };
  for (int fsdp : {2, 4, 8}) {
    Paper one(options({1, 1}), {1, 1}), many(options({1, fsdp}), {1, fsdp});
    if (fsdp == 8) say("memory: CapPa of width 768, two blocks each, vocabulary 32000");
    compare_saving("width 768", saving(one.engine), saving(many.engine), fsdp, fsdp == 8);
  }
}

// ---- batches made before the clock starts

class MadeFeed {
 public:
  // Batches of steps 1..steps. `fullness`: 0 = captions of one token, 1 = as they come, 2 = no
  // padding at all.
  MadeFeed(step::Engine& engine, comm::Mesh& mesh, int64_t steps,
           const std::function<int(int64_t step)>& fullness) {
    const step::Geometry& g = engine.geometry();
    for (int64_t step = 1; step <= steps; ++step)
      for (int64_t m = 0; m < g.accumulation; ++m) {
        tests::MadeBatch batch(tests::small_cappa(),
                               (step - 1) * g.global_batch + g.first_example(mesh, m),
                               g.micro_batch);
        for (size_t i = 0; i < batch.labels.size(); ++i) {
          if (fullness(step) == 2 && batch.labels[i] == 0) batch.labels[i] = 3;
          if (fullness(step) == 0) batch.labels[i] = i % 9 == 0;
        }
        auto& bytes = batches_.emplace_back();
        models::Inputs into;
        for (const models::InputSpec& spec : engine.train_pass().inputs()) {
          std::string& memory = bytes[spec.name];
          memory.resize(size_t(spec.per_example * g.micro_batch * device::size_of(spec.type)));
          into[spec.name] =
              device::View{memory.data(), spec.type, spec.per_example * g.micro_batch};
        }
        engine.train_pass().prepare(batch.host, engine.draws(step), into);
      }
    passes_ = g.accumulation;
    feed_ = [this](int64_t m, const models::Inputs& into) {
      const auto& batch = batches_[size_t((step_ - 1) * passes_ + m)];
      for (const auto& [name, input] : into)
        std::memcpy(input.host.data, batch.find(name)->second.data(), size_t(input.host.bytes()));
    };
  }
  const step::StepReport& step(step::Engine& engine, int64_t step) {
    step_ = step;
    return engine.step_filled(step, feed_);
  }

 private:
  std::vector<std::map<std::string, std::string>> batches_;  // by step and pass
  int64_t passes_ = 1, step_ = 0;
  step::Engine::Fill feed_;
};

// ---- decks

struct Deck {
  std::string name;
  tests::Case c;
  std::function<void(step::EngineOptions&)> change = [](step::EngineOptions&) {};
  int64_t passes = 1;

  step::EngineOptions options(comm::MeshShape shape) const {
    tests::Case on = c;
    on.mesh = shape;
    on.micro_batch = 48 / shape.ranks() / passes;
    step::EngineOptions o = tests::engine_options(on, 10);
    change(o);
    return o;
  }
  comm::SumOrder order() const {
    return c.level == "mesh" ? comm::SumOrder::tree : comm::SumOrder::library;
  }
};

std::vector<Deck> decks() {
  std::vector<Deck> out;
  auto add = [&](const std::string& name, const char* parameters, const char* optimizer,
                 const char* level, int64_t passes, const char* recompute, const char* kind,
                 std::function<void(step::EngineOptions&)> change = {}) {
    Deck d{.name = name, .c = {.mesh = {}}};
    d.c.parameters = parameters;
    d.c.optimizer = optimizer;
    d.c.level = level;
    d.c.recompute = recompute;
    d.c.kind = kind;
    d.passes = passes;
    if (change) d.change = std::move(change);
    if (d.c.level == "run" || power_of_two()) out.push_back(d);
  };
  add("data parallel", "replicated", "replicated", "run", 1, "none", "adafactor");
  add("ZeRO-1, 3 passes", "replicated", "sharded", "run", 3, "none", "adamw");
  add("FSDP", "sharded", "sharded", "run", 1, "mlp", "adafactor");
  add("FSDP, 4 passes, nothing gathered ahead", "sharded", "sharded", "run", 4, "block", "momentum",
      [](step::EngineOptions& o) { o.sharding.prefetch = 0; });
  add("level mesh, FSDP", "sharded", "sharded", "mesh", 1, "none", "adafactor");
  add("level mesh, FSDP, 4 passes", "sharded", "sharded", "mesh", 4, "block", "adamw");
  add("level mesh, data parallel, 2 passes", "replicated", "replicated", "mesh", 2, "mlp",
      "adafactor");
  add("level mesh, ZeRO-1", "replicated", "sharded", "mesh", 1, "none", "sgd");
  add("mixed strategies, frozen encoder blocks, dropout", "sharded", "sharded", "run", 2, "block",
      "adafactor", [](step::EngineOptions& o) {
        o.sharding.rules = {
            {".*/bias", shard::Placement::replicated, shard::Placement::replicated},
            {"decoder/EmbedTargets/.*", shard::Placement::replicated, shard::Placement::inherited}};
        o.model.options = std::make_shared<models::CappaOptions>(tests::small_cappa(0.2));
      });
  out.back().c.frozen = "encoder/Transformer/encoderblock_.*";
  add("Cap, update clipping, logits in chunks of a MiB", "sharded", "sharded", "run", 1, "none",
      "adafactor", [](step::EngineOptions& o) {
        auto m = std::make_shared<models::CappaOptions>(tests::small_cappa());
        m->masked_pred_prob = 0;
        m->logits_mb = 1;
        o.model.options = m;
        auto method = std::make_shared<optim::AdafactorOptions>();
        method->clipping_threshold = 1;
        o.optimizer.method = method;
      });
  auto narrow = [](step::EngineOptions& o) { o.operands = device::DType::bf16; };
  add("FSDP in bf16, 2 passes", "sharded", "sharded", "run", 2, "mlp", "adafactor", narrow);
  add("ZeRO-1 in bf16", "replicated", "sharded", "run", 1, "none", "adamw", narrow);
  add("level mesh, data parallel in bf16", "replicated", "replicated", "mesh", 1, "none",
      "adafactor", narrow);
  add("mixed strategies in bf16", "sharded", "sharded", "run", 1, "none", "adafactor",
      [](step::EngineOptions& o) {
        o.operands = device::DType::bf16;
        o.sharding.rules = {
            {".*/bias", shard::Placement::replicated, shard::Placement::replicated},
            {"decoder/EmbedTargets/.*", shard::Placement::replicated, shard::Placement::inherited}};
      });
  return out;
}

std::vector<comm::MeshShape> shapes() {
  std::vector<comm::MeshShape> out;
  int ranks = session->world().size();
  for (int replica = 1; replica <= ranks; ++replica)
    if (ranks % replica == 0) out.push_back({replica, ranks / replica});
  return out;
}

// ---- a plan counts what a step uses

void compare_traffic(const comm::Comm& real, const comm::Comm& paper, const std::string& name) {
  auto same = [&](const comm::Traffic& a, const comm::Traffic& b, const char* what) {
    expect(a.calls == b.calls && a.bytes == b.bytes,
           fmt::format("{}: {} {} calls and {} bytes, planned {} and {}", name, a.calls, what,
                       a.bytes, b.calls, b.bytes));
  };
  same(real.gathered(), paper.gathered(), "all-gather");
  same(real.scattered(), paper.scattered(), "reduce-scatter");
  same(real.reduced(), paper.reduced(), "all-reduce");
}

void planning() {
  int compared = 0;
  for (const Deck& deck : decks())
    for (comm::MeshShape shape : shapes()) {
      const std::string name = fmt::format("{} on {}x{}", deck.name, shape.replica, shape.fsdp);
      comm::Mesh mesh = comm::make_mesh(*session, shape, deck.order());
      step::Engine real(deck.options(shape), mesh, Kind::cpu);
      real.initialise();
      real.publish();
      Paper paper(deck.options(shape), shape);
      // no row may be skipped where operations are counted
      MadeFeed feed(real, mesh, 2, [](int64_t) { return 2; });
      mesh.fsdp->reset_traffic();
      mesh.replica->reset_traffic();
      feed.step(real, 1);
      paper.engine.step(1, {});
      expect(real.arena_peak() == paper.engine.arena_peak(),
             fmt::format("{}: arena peak {}, planned {}", name, real.arena_peak(),
                         paper.engine.arena_peak()));
      compare_traffic(*mesh.fsdp, *paper.mesh.fsdp, name + ", fsdp");
      compare_traffic(*mesh.replica, *paper.mesh.replica, name + ", replica");
      real.queue().reset_costs();  // the first step may make more than it needs
      feed.step(real, 2);
      int64_t flops = 0;
      // Which tensors a rank updates depends on the rank: a plan speaks for the first.
      for (int op = 0; op < int(kernels::Op::count) && mesh.fsdp_index == 0; ++op) {
        const device::OpCost &a = real.queue().costs()[size_t(op)],
                             &b = paper.engine.queue().costs()[size_t(op)];
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
      const auto &a = real.ledger().entries(), &b = paper.engine.ledger().entries();
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
  // The watch itself: each way to allocate must be seen.
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
  for (const Deck& deck : decks())
    for (comm::MeshShape shape : shapes())
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
        // Short captions first and full ones later: what happens to be in the first batches may not
        // decide what exists.
        MadeFeed feed(engine, mesh, 5, [](int64_t step) {
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
          if (allocations::by_us > 0 && failures <= 1)
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
  session = &s;
  allocation();  // first, while nothing has been made yet
  sharding();
  planning();
  int64_t total = s.world().sum(int64_t{failures});
  say(fmt::format("memory: {} checks on each of {} ranks, {} failures", checks, s.world().size(),
                  total));
  return total ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
