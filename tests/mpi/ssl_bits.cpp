// SPDX-License-Identifier: Apache-2.0
// Trains small self-supervised models on every mesh of this number of ranks (run with 1, 2 and 4),
// level "mesh". Every mesh, accumulation (one pass or several), sharding strategy and thread count
// must give identical bits: of losses, and of every tensor of the state, with queue, centre,
// memory, teacher and running statistics. A run that continues from the state of one rank, halfway,
// must end with the same bits, too. An engine takes the memory that a plan counts. One rank writes
// the reference to a file.
//   ssl_bits REFERENCE_FILE
#include <cstdio>
#include <fstream>

#include "models/embeddings/embedding_model.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

constexpr int kSteps = 4, kHalf = 2;
constexpr int64_t kBatch = 32, kSlices = 16;

struct Kind {
  const char* name;
  std::vector<int64_t> groups, sizes;  // of views
  const char* model;                   // further keys of [model]; of kinds without views: all
  bool everywhere;                     // on all meshes, not only on some
  bool splits = true;                  // passes may split the batch
  int64_t samples = 96;
};
const std::vector<Kind> kKinds = {
    {"simclr",
     {2},
     {16},
     "[[model.head]]\nkind = 'mlp'\nlayers = [24, 16]\nrelu = true\nbatch_norm = { on = true, "
     "group_examples = 4 }\n",
     true},
    {"swav",
     {2, 2},
     {16, 8},
     "loss = { queue_length = 64, queue_start_steps = 1 }\n"
     "[[model.head]]\nkind = 'swav'\nlayers = [16, 8]\nprototypes = [9]\nbatch_norm = { on = true, "
     "group_examples = 4 }\n",
     true},
    {"swav",
     {2},
     {16},  // SwAV momentum: the teacher reads the network's running statistics
     "teacher = { momentum = 0.9, batch_statistics_steps = 2 }\n"
     "[[model.head]]\nkind = 'swav'\nlayers = [16, 8]\nprototypes = [9]\n"
     "batch_norm = { on = true, group_examples = 4 }\n",
     false},
    {"moco",
     {2},
     {16},
     "momentum = 0.9\nloss = { queue_size = 64 }\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [8]\n",
     false},
    {"moco",
     {2},
     {16},  // several passes are refused, because the whole batch is shuffled
     "momentum = 0.9\nshuffle = true\nloss = { queue_size = 64 }\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [8]\n",
     false,
     false},
    {"dino",
     {2, 2},
     {16, 8},
     "momentum = 0.9\nloss = { teacher_temperature_warmup_steps = 3 }\n"
     "[[model.head]]\nkind = 'dino'\nprototypes = 11\nhidden = 12\nbottleneck = 8\n",
     false},
    {"barlow_twins",
     {2},
     {16},
     "[[model.head]]\nkind = 'mlp'\nlayers = [16, 12]\nbatch_norm = { on = true, group_examples = "
     "4 }\n",
     false},
    {"combined",
     {2},
     {16},
     "[[model.loss]]\nkind = 'simclr'\nweight = 0.7\n"
     "[[model.loss]]\nkind = 'barlow_twins'\nweight = 0.3\nname = 'decorrelation'\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [16, 12]\n",
     false},
    {"npid",
     {2},
     {16},  // views are joined
     "loss = { samples = 96, negatives = 20 }\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [12]\n"
     "[[model.head]]\nkind = 'siamese_concat_view'\ntowers = 2\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [8]\n",
     false},
    {"pirl",
     {1, 2},
     {16, 8},
     "loss = { samples = 96, negatives = 20 }\n"
     "[[model.head]]\nkind = 'image_and_patches'\npatches = 2\npatch = { layers = [6] }\n"
     "joined = { layers = [8] }\nimage = { layers = [8] }\n",
     false},
    {"deepcluster_v2",
     {2},
     {16},  // batches of 32 and 40 samples: clusters at steps 3 and 4
     "loss = { samples = 40, clusters = [7, 5, 3], kmeans_iterations = 2 }\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [12, 8]\nrelu = true\n",
     false,
     true,
     40},
    {"mae",
     {1},
     {16},
     "image_size = 16\nmask_ratio = 0.6\ndecoder = { depth = 1, width = 12, heads = 2 }\n"
     "trunk = { kind = 'vit', patch = 4, depth = 2, width = 16, mlp = 24, heads = 2, pool = 'tok' "
     "}\n",
     true},
    {"rotnet", {1}, {16}, "[[model.head]]\nkind = 'mlp'\nlayers = [4]\n", false},
    {"jigsaw",
     {4},
     {8},
     "permutations = 24\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [6]\nrelu = true\nbare_last = false\n"
     "batch_norm = { on = true, group_examples = 4 }\n"
     "[[model.head]]\nkind = 'siamese_concat_view'\ntowers = 4\n"
     "[[model.head]]\nkind = 'mlp'\nlayers = [24]\n",
     false},
};

struct Deck {
  models::ModelOptions model;
  optim::OptimizerOptions optimizer;
  void bind(config::Table& t) {
    t.table("model", model, "");
    t.table("optimizer", optimizer, "");
  }
};

// Groups of batch norms have four examples, two slices, so that passes may split the batch.
step::EngineOptions options_of(const Kind& kind, const tests::Case& c) {
  step::EngineOptions o = tests::engine_options(c, kSteps);
  Deck deck;
  const bool views = !std::string(kind.model).starts_with("image_size");
  const std::string of_views = fmt::format(
      "views = [{}]\nimage_size = [{}]\n"
      "trunk = {{ kind = 'resnet', depth = 18, width = 4, group_examples = 4 }}\n",
      fmt::join(kind.groups, ", "), fmt::join(kind.sizes, ", "));
  const std::string text = fmt::format(
      "[optimizer]\nkind = 'sgd'\nlearning_rate = 0.05\nmomentum = 0.9\nweight_decay = 1e-3\n"
      "[model]\nkind = '{}'\n{}{}",
      kind.name, views ? of_views : "", kind.model);
  config::Deck({"ssl_bits.toml", text, {}}, deck).throw_if_any();
  o.model = tests::made_model(c, deck.model.kind, deck.model.options);
  o.optimizer = deck.optimizer;
  o.passes.clear();
  o.groups = {views ? "trunk/.*" : "encoder/.*"};
  o.total_steps = kSteps;
  o.resolve = [optimizer = deck.optimizer](const std::vector<shard::Parameter>& parameters,
                                           std::vector<optim::ParameterPolicy>& policies,
                                           std::vector<optim::Schedule>& schedules) {
    policies = optim::resolve_policies(optimizer, {}, parameters).parameters;
    schedules = optim::make_schedules({"default"}, {}, {kSteps, kBatch, 96});
  };
  return o;
}

// Images of the examples at [first, first + n), a pure function of the position.
struct MadeViews {
  std::vector<std::vector<float>> images;
  std::vector<int32_t> index, label;
  models::HostBatch host;
  MadeViews(const Kind& kind, int64_t first, int64_t n) : images(kind.groups.size()) {
    for (size_t g = 0; g < kind.groups.size(); ++g) {
      const int64_t count = kind.groups[g] * kind.sizes[g] * kind.sizes[g] * 3;
      for (int64_t i = 0; i < n; ++i) {
        const base::Stream s = base::Stream(7, "made").sub(uint64_t(first + i)).sub(g);
        for (int64_t p = 0; p < count; ++p) images[g].push_back(2 * s.uniform(uint64_t(p)) - 1);
      }
      host.features[models::ViewOptions::field(g)] =
          device::view(images[g].data(), int64_t(images[g].size()));
    }
    host.examples = n;
    host.first_position = first;
    for (int64_t i = 0; i < n; ++i) index.push_back(int32_t((first + i) * 7 % kind.samples));
    host.features["index"] = device::view(index.data(), n);
    for (int64_t i = 0; i < n; ++i) label.push_back(int32_t((first + i) * 5 % 4));
    host.features["rotation"] = host.features["permutation"] = device::view(label.data(), n);
  }
};

using State = std::map<std::string, std::string>;

void restore(step::Engine& engine, const State& state) {
  for (const shard::TensorSlice& slice : engine.state())
    for (const auto& part : slice.parts) {
      const int64_t size = device::size_of(slice.type);
      std::memcpy(part.data, state.at(slice.name).data() + part.begin * size,
                  size_t((part.end - part.begin) * size));
    }
}

struct Outcome {
  State half;
  double first = 0, last = 0;
  uint64_t digest = 0;  // of the losses of the second half, and the state at the end
};

// Returns the planned memory of inputs.
int64_t input_bytes(const Kind& kind, const tests::Case& c) {
  auto world = comm::make_plan_comm(c.mesh.ranks());
  comm::Mesh mesh = comm::make_plan_mesh(c.mesh, *world);
  return step::Engine(options_of(kind, c), mesh, device::Kind::plan).ledger().peak_of("batch");
}

// Checks that an engine has taken the memory that a plan counts.
void check_plan(const Kind& kind, const tests::Case& c, const step::Engine& real) {
  auto world = comm::make_plan_comm(c.mesh.ranks());
  comm::Mesh mesh = comm::make_plan_mesh(c.mesh, *world);
  const step::Engine planned(options_of(kind, c), mesh, device::Kind::plan);
  for (const auto& [category, entry] : planned.ledger().entries())
    CHECK(real.ledger().peak_of(category) == entry.peak, "{}: {} bytes of {}, planned {}",
          kind.name, real.ledger().peak_of(category), category, entry.peak);
}

// Trains from the beginning, or from `half`.
Outcome run(comm::Session& session, const Kind& kind, const tests::Case& c,
            const State* half = nullptr) {
  comm::Mesh mesh = comm::make_mesh(session, c.mesh, comm::SumOrder::tree);
  step::Engine engine(options_of(kind, c), mesh, device::Kind::cpu);
  if (half)
    restore(engine, *half);
  else
    engine.initialise();
  engine.publish();
  Outcome out;
  const step::Geometry& g = engine.geometry();
  // A step of one phase keeps the batch of its pass, one of two phases the batches of all passes.
  const auto* coupled = dynamic_cast<const models::CoupledPass*>(&engine.train_pass());
  std::vector<std::weak_ptr<const void>> kept(
      coupled && coupled->two_phases() ? size_t(g.accumulation) : 1);
  const void* views = nullptr;  // of the last batch
  for (int step = half ? kHalf + 1 : 1; step <= kSteps; ++step) {
    int64_t asked = 0;
    const step::StepReport& r = engine.step(step, [&](int64_t m) {
      std::weak_ptr<const void>& before = kept[size_t(m) % kept.size()];
      CHECK(before.expired() && m == asked++, "{}: the batch of pass {} is kept or asked for twice",
            kind.name, m);
      auto made = std::make_shared<MadeViews>(
          kind, (step - 1) * g.global_batch + g.first_example(mesh, m), g.micro_batch);
      models::HostBatch host = made->host;
      host.owner = made;
      before = made;
      views = made->images[0].data();
      return host;
    });
    CHECK(r.finite, "{}: step {} is not finite", kind.name, step);
    const models::InputSpec image = engine.train_pass().inputs().front();
    CHECK(image.field.empty() || engine.inputs().at(image.name).device.data == views,
          "{}: ops read a copy of the images", kind.name);
    if (step == 1) out.first = r.loss();
    out.last = r.loss();
    if (step == kHalf && session.world().size() == 1)
      out.half = tests::whole_state(engine, session.world());
    if (step > kHalf)
      for (const double v : {r.loss(), r.gradients.gradients.global, r.update.parameters.global})
        out.digest = base::xxh3(&v, sizeof v, out.digest);
  }
  if (!half) check_plan(kind, c, engine);
  for (const auto& [name, bytes] : tests::whole_state(engine, session.world()))
    out.digest = base::xxh3(bytes.data(), bytes.size(), out.digest);
  return out;
}

tests::Case case_of(comm::MeshShape mesh, int accumulation, int threads, const char* parameters,
                    const char* optimizer) {
  return {.mesh = mesh,
          .micro_batch = kBatch / mesh.ranks() / accumulation,
          .parameters = parameters,
          .optimizer = optimizer,
          .threads = threads,
          .slices = kSlices,
          .global_batch = kBatch};
}

// ---- the reference of one rank, in a file: digests, and the states halfway

void write_text(std::ostream& out, const std::string& text) {
  const uint64_t size = text.size();
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out.write(text.data(), std::streamsize(size));
}

std::string read_text(std::istream& in) {
  uint64_t size = 0;
  in.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string text(in ? size : 0, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  return text;
}

void write_reference(const std::string& file, const std::vector<Outcome>& all) {
  std::ofstream out(file, std::ios::binary);
  for (const Outcome& one : all) {
    write_text(out, std::to_string(one.digest));
    write_text(out, std::to_string(one.half.size()));
    for (const auto& [name, bytes] : one.half) {
      write_text(out, name);
      write_text(out, bytes);
    }
  }
}

std::vector<Outcome> read_reference(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<Outcome> all(kKinds.size());
  for (Outcome& one : all) {
    const std::string digest = read_text(in), count = read_text(in);
    if (!in) return {};
    one.digest = std::stoull(digest);
    for (int64_t i = 0; i < std::stoll(count); ++i) {
      std::string name = read_text(in);
      one.half[name] = read_text(in);
    }
  }
  return all;
}

int compare(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  const int ranks = world.size();
  const std::string file = argc > 1 ? argv[1] : "ssl_bits.bin";
  std::vector<Outcome> reference;
  if (ranks == 1) {
    for (const Kind& kind : kKinds)
      reference.push_back(run(session, kind, case_of({1, 1}, 1, 1, "replicated", "replicated")));
    write_reference(file, reference);
    for (size_t k = 0; k < kKinds.size(); ++k)
      std::printf("%s %016llx loss %.4f -> %.4f  ", kKinds[k].name,
                  static_cast<unsigned long long>(reference[k].digest), reference[k].first,
                  reference[k].last);
    std::printf("\n");
  } else {
    reference = read_reference(file);
    if (reference.empty()) {
      std::fprintf(stderr, "no reference in %s: run with one rank first\n", file.c_str());
      return 2;
    }
  }
  // A loss over the whole batch needs the inputs of all passes twice: the engine keeps them.
  const tests::Case one_pass = case_of({1, ranks}, 1, 1, "sharded", "sharded"),
                    two_passes = case_of({1, ranks}, 2, 1, "sharded", "sharded");
  CHECK(input_bytes(kKinds[0], two_passes) == input_bytes(kKinds[0], one_pass),
        "two passes keep {} bytes of inputs, one pass has {}", input_bytes(kKinds[0], two_passes),
        input_bytes(kKinds[0], one_pass));
  int failures = 0, cases = 0;
  auto check = [&](const Kind& kind, const tests::Case& c, bool resumed) {
    const Outcome& wanted = reference[size_t(&kind - kKinds.data())];
    ++cases;
    const Outcome found = run(session, kind, c, resumed ? &wanted.half : nullptr);
    if (found.digest == wanted.digest) return;
    ++failures;
    if (world.rank() == 0)
      std::printf("FAILED: %s%s, %s: bits differ\n", kind.name, resumed ? ", continued" : "",
                  c.text().c_str());
  };
  for (int replica = 1; replica <= ranks; replica *= 2) {
    const comm::MeshShape mesh{replica, ranks / replica};
    for (const Kind& kind : kKinds) {
      const bool both_axes = ranks < 4 || replica == 2;
      if (!kind.everywhere && !both_axes) continue;
      check(kind, case_of(mesh, 1, 2, "sharded", "sharded"), false);
      if (both_axes) check(kind, case_of(mesh, 1, 1, "sharded", "sharded"), true);
      if (!kind.splits) continue;
      check(kind, case_of(mesh, 2, 1, "replicated", "sharded"), false);
      if (kind.everywhere && ranks < 4)
        check(kind, case_of(mesh, 4, 1, "replicated", "replicated"), false);
    }
  }
  if (world.rank() == 0) std::printf("%d cases on %d ranks, %d failures\n", cases, ranks, failures);
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, compare); }
