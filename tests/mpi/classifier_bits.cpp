// SPDX-License-Identifier: Apache-2.0
// Trains a small classifier with mixup on every mesh of this number of ranks (run with 1, 2 and 4),
// level "mesh". Every mesh, accumulation, sharding strategy, thread count and recompute policy must
// give identical bits of every loss, every tensor of the state, and an evaluation's losses and
// ranks. This holds for each pooling of a ViT, registers, SwiGLU with rotary positions, ResNets, a
// ConvNeXt and probes of a frozen ResNet. One rank writes the reference to a file.
//   classifier_bits REFERENCE_FILE
#include <cstdio>
#include <fstream>

#include "eval/classes/class_pass.hpp"
#include "models/classes/class_model.hpp"
#include "models/trunks/convolutional/convnext.hpp"
#include "models/trunks/convolutional/resnet.hpp"
#include "models/trunks/vit_options.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

constexpr int kSteps = 6;
constexpr int64_t kPixels = 16 * 16 * 3;

// True for trunks of this test that are ResNets: "resnet0" has batch norm over the whole batch,
// "resnet6" over groups of 6 examples, "resnet_group" has group norm.
bool is_resnet(const std::string& trunk) { return trunk.starts_with("resnet"); }
bool has_group_norm(const std::string& trunk) { return trunk == "resnet_group"; }
// True for the classifiers on taps of a frozen ResNet.
bool are_probes(const std::string& trunk) { return trunk == "probes"; }

models::ModelOptions small_probes() {
  struct Root {
    models::ModelOptions model;
    void bind(config::Table& t) { t.table("model", model, ""); }
  } root;
  config::Deck({"probes.toml",
                R"([model]
kind = "linear_probe"
image_size = 16
num_classes = 11
trunk = { kind = "resnet", depth = 18, width = 8 }
[[model.probe]]
tap = "res3"
pool = 2
head = { kind = "eval_mlp", channels = 16, layers = [11] }
[[model.probe]]
tap = "flatten"
head = { kind = "mlp", layers = [11] }
)",
                {}},
               root)
      .throw_if_any();
  return root.model;
}

models::ClassifierOptions small_classifier(const std::string& pool) {
  models::ClassifierOptions o;
  o.image_size = 16;
  o.num_classes = 11;
  o.loss = pool == "gap" ? kernels::ClassLoss::sigmoid : kernels::ClassLoss::softmax;
  o.label_smoothing = 0.1;
  o.mixup = {.p = 0.3, .group = 3};
  if (is_resnet(pool)) {
    auto resnet = std::make_shared<models::ResnetTrunkOptions>();
    const bool group_norm = has_group_norm(pool);
    resnet->config = {.blocks = {1, 1, 1, 1},
                      .bottleneck = pool == "resnet6",
                      .width = 8,
                      .group_examples = group_norm ? 0 : std::stoll(pool.substr(6)),
                      .norm = group_norm ? models::ResnetNorm::group : models::ResnetNorm::batch,
                      .norm_groups = 4};
    o.trunk = {"resnet", resnet};
    return o;
  }
  if (pool == "convnext") {
    auto convnext = std::make_shared<models::ConvnextTrunkOptions>();
    convnext->config = {.depths = {2, 1}, .widths = {8, 12}, .layer_scale = 0.5, .drop_path = 0.3};
    o.trunk = {"convnext", convnext};
    return o;
  }
  auto trunk = std::make_shared<models::VitTrunkOptions>();
  trunk->size = {.variant = "", .patch = 8, .depth = 2, .width = 48, .mlp = 80, .heads = 3};
  const bool registers =
      pool == "registers";  // those of DINOv2, with layer scale, and the first norm of CLIP
  trunk->pool = registers ? models::Pool::tok : base::value_of(models::kPoolNames, pool);
  trunk->registers = registers ? 2 : 0;
  trunk->pre_norm = registers;
  trunk->size.swiglu = pool == "tok";  // with rotary positions, as in DINOv3
  if (pool == "tok") trunk->positions = models::Positions::rotary;
  trunk->size.layer_scale = registers ? 0.5 : 0;
  o.trunk = {"vit", trunk};
  return o;
}

// Makes images and classes of the examples at [first, first + n).
struct MadeImages {
  std::vector<float> image;
  std::vector<int32_t> label;
  models::HostBatch host;
  MadeImages(int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      base::Stream s = base::Stream(7, "made").sub(uint64_t(first + i));
      label.push_back(int32_t(s.bits(100000) % 11));
      for (int64_t p = 0; p < kPixels; ++p)
        image.push_back(s.uniform(uint64_t(p)) - 0.5f + (p % 11 == label.back() ? 1.0f : 0.0f));
    }
    host = {.features = {{"image", device::view(image.data(), int64_t(image.size()))},
                         {"label", device::view(label.data(), n)}},
            .examples = n,
            .first_position = first};
  }
};

struct Outcome {
  double first = 0, last = 0;
  uint64_t digest = 0;
};

Outcome run(comm::Session& session, const tests::Case& c, const std::string& pool) {
  comm::Mesh mesh = comm::make_mesh(session, c.mesh, comm::SumOrder::tree);
  step::EngineOptions options = tests::engine_options(c, kSteps);
  const models::ModelOptions model =
      are_probes(pool)
          ? small_probes()
          : models::ModelOptions{
                "classifier", std::make_shared<models::ClassifierOptions>(small_classifier(pool))};
  options.model = tests::made_model(c, model.kind, model.options);
  const bool torch_names = is_resnet(pool) || pool == "convnext" || are_probes(pool);
  options.groups = {torch_names ? "trunk/.*" : "encoder/.*", "head/.*"};
  options.passes = {[](const models::Model& made) {
    const auto& ranker = dynamic_cast<const models::ClassRanker&>(made);
    eval::ClassRequest request;
    if (!ranker.head_names().empty()) request.heads = {"res3"};
    return eval::make_class_pass(ranker, request);
  }};
  step::Engine engine(options, mesh, device::Kind::cpu);
  engine.initialise();
  engine.publish();
  Outcome out;
  const step::Geometry& g = engine.geometry();
  for (int step = 1; step <= kSteps; ++step) {
    const step::StepReport& r = engine.step(step, [&](int64_t m) {
      auto made = std::make_shared<MadeImages>(
          (step - 1) * g.global_batch + g.first_example(mesh, m), g.micro_batch);
      models::HostBatch host = made->host;
      host.owner = made;
      return host;
    });
    std::vector<double> numbers = r.measures;
    numbers.insert(numbers.end(), {r.gradients.gradients.global, r.update.parameters.global,
                                   r.update.updates.global});
    for (double v : numbers) out.digest = base::xxh3(&v, sizeof v, out.digest);
    if (step == 1) out.first = r.loss();
    out.last = r.loss();
  }
  for (const auto& [name, bytes] : tests::whole_state(engine, session.world()))
    out.digest = base::xxh3(bytes.data(), bytes.size(), out.digest);
  // Evaluates 48 examples; the result must not depend on the rank that computes each.
  std::vector<double> all(96), loss(static_cast<size_t>(g.micro_batch)), rank(loss.size());
  constexpr step::PassId kPass{0};
  auto& pass = engine.pass<eval::ClassPass>(kPass);
  for (int64_t round = 0; round * g.micro_batch * session.world().size() < 48; ++round) {
    const int64_t first = (round * session.world().size() + session.world().rank()) * g.micro_batch;
    MadeImages batch(1000 + first, g.micro_batch);
    engine.forward(kPass, batch.host, [&](nn::Context& ctx, const models::Inputs& inputs) {
      pass.run(ctx, inputs, {.loss = loss.data(), .rank = rank.data()});
    });
    std::copy(loss.begin(), loss.end(), all.begin() + first);
    std::copy(rank.begin(), rank.end(), all.begin() + 48 + first);
  }
  session.world().all_reduce({all.data(), device::DType::f64, 96}).wait();
  out.digest = base::xxh3(all.data(), 96 * sizeof(double), out.digest);
  return out;
}

int compare(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  const int ranks = world.size();
  const std::string file = argc > 1 ? argv[1] : "classifier_bits.txt";
  const std::vector<std::string> pools = {
      "gap", "map", "tok", "registers", "resnet0", "resnet6", "resnet_group", "convnext", "probes"};
  std::map<std::string, uint64_t> reference;
  int failures = 0, cases = 0;
  if (ranks == 1) {
    std::ofstream out(file);
    for (const std::string& pool : pools)
      for (bool bf16 : {false, true}) {
        const Outcome o = run(session, {.mesh = {1, 1}, .bf16 = bf16}, pool);
        std::printf("%s %s: loss %.6f -> %.6f\n", pool.c_str(), bf16 ? "bf16" : "f32", o.first,
                    o.last);
        // Six steps are too few for a ResNet to learn.
        if (!is_resnet(pool) && !are_probes(pool) && !(o.last < 0.995 * o.first)) {
          ++failures;
          std::printf("FAILED: it does not learn\n");
        }
        reference[pool + (bf16 ? " bf16" : "")] = o.digest;
        out << o.digest << "\n";
      }
  } else {
    std::ifstream in(file);
    for (const std::string& pool : pools)
      for (bool bf16 : {false, true}) in >> reference[pool + (bf16 ? " bf16" : "")];
    if (!in) {
      std::fprintf(stderr, "no reference in %s: run with one rank first\n", file.c_str());
      return 2;
    }
  }
  for (int replica = 1; replica <= ranks; replica *= 2)
    for (auto [parameters, optimizer] :
         {std::pair{"replicated", "sharded"}, {"sharded", "sharded"}})
      for (int accumulation : {1, 4})
        for (const std::string& pool : pools)
          for (bool bf16 : {false, true}) {
            // Each pass of a step rounds the running values, so accumulation changes their bits.
            if (((is_resnet(pool) && !has_group_norm(pool)) || are_probes(pool)) &&
                accumulation > 1)
              continue;
            const tests::Case c{.mesh = {replica, ranks / replica},
                                .micro_batch = 48 / ranks / accumulation,
                                .parameters = parameters,
                                .optimizer = optimizer,
                                .recompute = accumulation == 1 ? "block"
                                             : bf16            ? "mlp"
                                                               : "gelu",
                                .threads = accumulation == 1 ? 2 : 1,
                                .bf16 = bf16};
            ++cases;
            if (run(session, c, pool).digest == reference[pool + (bf16 ? " bf16" : "")]) continue;
            ++failures;
            if (world.rank() == 0)
              std::printf("FAILED: %s pool=%s: bits differ\n", c.text().c_str(), pool.c_str());
          }
  if (world.rank() == 0) std::printf("%d cases on %d ranks, %d failures\n", cases, ranks, failures);
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, compare); }
