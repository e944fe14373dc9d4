// SPDX-License-Identifier: Apache-2.0
// Tests a step on an emulated GPU. The host queues the step without waiting, its report comes a
// step later, and all results are as on the CPU. Images as bytes must give the results of the
// floats that they represent. Weights for products must be their rounded masters, frozen ones too.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "comm/mesh.hpp"
#include "device/gpu.hpp"
#include "kernels/cast.hpp"
#include "kernels/paths.hpp"
#include "models/captions/cappa.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

using device::Kind;

comm::Session* session = nullptr;
int failures = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::fprintf(stderr, "rank %d: %s\n", session->world().rank(), what.c_str());
}
void say(const std::string& text) {
  if (session->world().rank() == 0) std::printf("%s\n", text.c_str());
}

// `bad` is a step with one image that is not finite.
void submit(step::Engine& engine, comm::Mesh& mesh, int64_t step, bool bytes, int64_t bad = 0) {
  struct NarrowBatch : tests::MadeBatch {
    using MadeBatch::MadeBatch;
    std::vector<uint8_t> narrow;
  };
  engine.submit(step, [&](int64_t m) {
    const step::Geometry& g = engine.geometry();
    const int64_t first = (step - 1) * g.global_batch + g.first_example(mesh, m);
    auto batch = std::make_shared<NarrowBatch>(tests::small_cappa(), first, g.micro_batch);
    std::vector<uint8_t>& narrow = batch->narrow;
    for (float& x : batch->image) {
      narrow.push_back(uint8_t((x + 1) / 2 * 255));
      x = -1 + float(narrow.back()) / 255 * 2;
    }
    if (step == bad) batch->image[5] = NAN;
    if (bytes) batch->host.features["image"] = device::view(narrow.data(), int64_t(narrow.size()));
    return tests::owned(batch);
  });
}

struct Outcome {
  std::vector<double> numbers;  // loss and norms of each step
  std::vector<bool> finite;
  std::vector<device::Transfers> transfers;
  std::map<std::string, std::string> state;
};

constexpr int64_t kSteps = 4;

Outcome train(const step::EngineOptions& options, comm::Mesh& mesh, Kind kind, int64_t bad = 0) {
  step::Engine engine(options, mesh, kind);
  const bool bytes = engine.inputs().at("image").host.type == device::DType::u8;
  engine.initialise();
  engine.publish();
  Outcome out;
  auto take = [&](int64_t step) {
    const step::StepReport& r = engine.report(step);
    out.finite.push_back(r.finite);
    out.transfers.push_back(r.transfers);
    if (!r.finite) return;
    out.numbers.insert(out.numbers.end(), r.measures.begin(), r.measures.end());
    out.numbers.insert(out.numbers.end(),
                       {r.sums[models::Cappa::Sums::examples_ar], r.gradients.gradients.global,
                        r.gradients.clip, r.update.parameters.global, r.update.updates.global});
  };
  for (int64_t step = 1; step <= kSteps; ++step) {
    submit(engine, mesh, step, bytes, bad);
    if (!engine.runs_ahead()) take(step);
    if (engine.runs_ahead() && step > 1) take(step - 1);
  }
  if (engine.runs_ahead()) take(kSteps);
  out.state = tests::whole_state(engine, *mesh.world);
  return out;
}

void same_numbers(const Outcome& a, const Outcome& b, double part, const std::string& what) {
  expect(a.finite == b.finite && a.numbers.size() == b.numbers.size(),
         what + ": other steps are finite");
  for (size_t i = 0; i < std::min(a.numbers.size(), b.numbers.size()); ++i)
    expect(std::abs(a.numbers[i] - b.numbers[i]) <= part * std::abs(b.numbers[i]),
           fmt::format("{}: number {} is {}, not {}", what, i, a.numbers[i], b.numbers[i]));
}

// The distance of the average from the weights must be the same on both devices.
void same_averages(const Outcome& a, const Outcome& b, const std::string& what) {
  double square = 0, off = 0;
  auto behind = [](const Outcome& o, const std::string& path, size_t i) {
    auto at = [&](const char* root) {
      return reinterpret_cast<const float*>(o.state.at(root + path).data())[i];
    };
    return double(at("/params/")) - double(at("/ema/"));
  };
  for (const auto& [name, bytes] : a.state)
    if (name.starts_with("/ema/"))
      for (size_t i = 0; i < bytes.size() / 4; ++i) {
        const double one = behind(a, name.substr(5), i), other = behind(b, name.substr(5), i);
        square += other * other;
        off += (one - other) * (one - other);
      }
  expect(square > 0 && off < 0.01 * square,
         fmt::format("{}: averages are off by {} of {}", what, off, square));
}

void steps(const std::string& exchange, bool waits) {
  const int ranks = session->world().size();
  for (const char* kind : {"adafactor", "adamw"}) {
    tests::Case c{.mesh = {1, ranks},
                  .micro_batch = 8 / ranks,
                  .level = "run",
                  .kind = kind,
                  .global_batch = 16};
    auto options = tests::engine_options(c, kSteps);
    options.ema.emplace();
    options.ema->decay = 0.5;
    comm::Mesh on_cpu = comm::make_mesh(*session, c.mesh, comm::SumOrder::library);
    comm::Mesh on_gpu = comm::make_mesh(*session, c.mesh, comm::SumOrder::library);
    comm::MeshOptions mesh_options;
    mesh_options.gpu_exchange = base::value_of(comm::kGpuExchangeNames, exchange);
    const std::string chosen =
        comm::connect_gpus(on_gpu, mesh_options, comm::SumOrder::library, session->host());
    const std::string name = fmt::format("{}, {} ranks by {}", kind, ranks, chosen);

    const Outcome floats = train(options, on_cpu, Kind::cpu);
    options.forbid_waits = true;
    const Outcome gpu = train(options, on_gpu, Kind::cuda);
    same_numbers(gpu, floats, 2e-3, name);
    same_averages(gpu, floats, name);
    const auto floats_model = options.model;
    const auto bytes_model = tests::made_cappa(c, tests::small_cappa());
    bytes_model->take_bytes(kernels::PixelRange{0, 255, -1, 2});
    options.model = bytes_model;
    const Outcome bytes = train(options, on_gpu, Kind::cuda);
    expect(bytes.state == gpu.state && bytes.numbers == gpu.numbers,
           name + ": bytes are not the floats that they stand for");

    options.model = floats_model;
    {
      const int64_t bad = 3;
      const Outcome skipped = train(options, on_gpu, Kind::cuda, bad);
      options.forbid_waits = false;
      const Outcome wanted = train(options, on_cpu, Kind::cpu, bad);
      same_numbers(skipped, wanted, 2e-3, fmt::format("{}, step {} not finite", name, bad));
      same_averages(skipped, wanted, name);
      options.forbid_waits = true;
      expect(!skipped.finite[size_t(bad - 1)],
             name + ": a step that is not finite counts as finite");
    }

    // Transfers must not grow from step to step. Without exchanges through host memory the host
    // must not wait.
    for (const Outcome* o : {&gpu, &bytes})
      for (size_t step = 2; step < size_t(kSteps); ++step) {
        const device::Transfers &t = o->transfers[step], &first = o->transfers[1];
        expect(t.uploads == first.uploads && t.downloads == first.downloads &&
                   t.downloaded_bytes == first.downloaded_bytes,
               name + ": transfers grow");
        expect(waits ? t.waits == first.waits : t.waits == 0,
               fmt::format("{}: {} waits in step {}", name, t.waits, step + 1));
      }
    const device::Transfers &f = gpu.transfers[3], &b = bytes.transfers[3];
    const int64_t pixels = 2 * (8 / ranks) * 16 * 16 * 3;
    expect(f.uploaded_bytes - b.uploaded_bytes == 3 * pixels,
           name + ": bytes spare three quarters of the images' upload");
    say(
        fmt::format("{}: {} uploads ({} bytes; images as bytes: {}), {} downloads ({} bytes), {} "
                    "waits of the host per step of 2 passes",
                    name, f.uploads, f.uploaded_bytes, b.uploaded_bytes, f.downloads,
                    f.downloaded_bytes, f.waits));
  }
}

// Tests the times of a step that waits for data. It is submitted before the report of the previous
// step is requested. The wait is a part of the time until that report, not of the time after it.
void host_times() {
  const int ranks = session->world().size();
  tests::Case c{.mesh = {1, ranks},
                .micro_batch = 8 / ranks,
                .level = "run",
                .kind = "adamw",
                .global_batch = 8};
  comm::Mesh mesh = comm::make_mesh(*session, c.mesh, comm::SumOrder::library);
  step::Engine engine(tests::engine_options(c, kSteps), mesh, Kind::cuda);
  engine.initialise();
  engine.publish();
  constexpr double kWait = 1;
  auto submit_slowly = [&](int64_t step, double seconds) {
    engine.submit(step, [&](int64_t m) {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      const step::Geometry& g = engine.geometry();
      return tests::owned(std::make_shared<tests::MadeBatch>(
          tests::small_cappa(), g.first_example(mesh, m), g.micro_batch));
    });
  };
  submit_slowly(1, 0);
  submit_slowly(2, kWait);
  const double with = engine.report(1).data_s;
  submit_slowly(3, 0);
  const double after = engine.report(2).data_s, nothing = engine.report(3).data_s;
  expect(with >= kWait,
         fmt::format("a wait of {} s for data is {} s of the time until the report that came next",
                     kWait, with));
  expect(after < kWait && nothing == 0,
         fmt::format("the wait is counted again: {} s, {} s", after, nothing));
}

// Checks the weights that the model reads: the rounded master for products, else the master.
void check_weights(step::Engine& engine, comm::Mesh& mesh, const std::string& when) {
  const std::map<std::string, std::string> masters = tests::whole_state(engine, *mesh.world);
  device::Queue& queue = engine.queue();
  device::Ledger ledger;
  shard::WeightStore& weights = engine.forward_context().weights;
  const std::vector<shard::Parameter>& parameters = engine.layout().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const shard::Parameter& p = parameters[i];
    std::string wanted = masters.at("/params/" + p.path);
    if (p.operand) {
      device::Buffer wide(queue.kind(), ledger, "test", p.size * 4),
          narrow(queue.kind(), ledger, "test", p.size * 2);
      const device::View master = wide.view(device::DType::f32).slice(0, p.size);
      const device::View rounded = narrow.view(weights.operands()).slice(0, p.size);
      device::upload(master, wanted.data(), queue);
      kernels::run(kernels::Cast{.y = rounded, .x = master}, queue);
      device::read_on_host(rounded, queue, [&](device::View v) {
        wanted.assign(static_cast<const char*>(v.data), size_t(v.bytes()));
      });
    }
    weights.acquire(p.block);
    bool same = false;
    device::read_on_host(p.operand ? weights.operand(int(i)) : weights.weight(int(i)), queue,
                         [&](device::View v) {
                           same = size_t(v.bytes()) == wanted.size() &&
                                  !std::memcmp(v.data, wanted.data(), wanted.size());
                         });
    weights.release(p.block);
    expect(same, fmt::format("{}: {} is not what its master says", when, p.path));
  }
}

// Writes new values, equal on all ranks that hold them, as a restore does.
void refill(step::Engine& engine, double shift) {
  for (const shard::TensorSlice& slice : engine.state())
    if (slice.name.starts_with("/params/"))
      for (const auto& part : slice.parts)
        device::write_on_host(slice.view(part), engine.queue(), [&](device::View v) {
          for (int64_t e = 0; e < v.count; ++e)
            v.f32()[e] = float(0.1 * std::sin(shift + 0.37 * double(part.begin + e)));
        });
  engine.publish();
}

// Freezes an encoder and part of a block of the decoder, whose weights no rank publishes after
// updates.
void frozen_weights() {
  int cases = 0;
  for (auto [parameters, optimizer] :
       {std::pair{"sharded", "sharded"}, {"replicated", "sharded"}, {"replicated", "replicated"}})
    for (auto [kind, type] : {std::pair{Kind::cpu, device::DType::bf16},
                              {Kind::cuda, device::DType::bf16},
                              {Kind::cuda, device::DType::f16}}) {
      const int ranks = session->world().size();
      tests::Case c{.mesh = {1, ranks},
                    .micro_batch = 8 / ranks,
                    .parameters = parameters,
                    .optimizer = optimizer,
                    .level = "run",
                    .kind = "adamw",
                    .global_batch = 8,
                    .frozen = "encoder/.*|decoder/EncDecBlock1/CrossAttn/.*"};
      auto options = tests::engine_options(c, kSteps);
      options.operands = type;
      if (type == device::DType::f16) options.loss_scale = optim::LossScaleOptions{.init = 1024};
      comm::Mesh mesh = comm::make_mesh(*session, c.mesh, comm::SumOrder::library);
      if (kind == Kind::cuda)
        comm::connect_gpus(mesh, {}, comm::SumOrder::library, session->host());
      const std::string name = fmt::format("{} parameters, {} optimizer, {} on {}", parameters,
                                           optimizer, device::name_of(type), device::name_of(kind));
      step::Engine engine(options, mesh, kind);
      engine.initialise();
      engine.publish();
      check_weights(engine, mesh, name + ", at the start");
      for (int64_t step = 1; step <= 2; ++step) tests::run_step(engine, mesh, step);
      check_weights(engine, mesh, name + ", after two updates");
      refill(engine, double(cases));
      check_weights(engine, mesh, name + ", after a restore");
      expect(tests::run_step(engine, mesh, 3).finite, name + ": an update was left out");
      check_weights(engine, mesh, name + ", after a restore and an update");
      ++cases;
    }
  say(fmt::format("frozen weights: {} cases", cases));
}

// Steps at the widths and the text of S/16: libraries run all attention, although rows of the text
// are packed.
void attention_paths() {
  models::CappaOptions model;
  model.image_size = 64;
  model.vocab_size = 61;
  model.seq_len = 64;
  model.masked_pred_prob = 0.5;
  model.encoder = {.variant = "", .patch = 16, .depth = 1, .width = 384, .mlp = 384, .heads = 6};
  model.decoder = {.depth = 2, .width = 384, .mlp = 384, .heads = 6, .bias = true};
  tests::Case c{
      .mesh = {1, 1}, .micro_batch = 2, .level = "run", .kind = "adamw", .global_batch = 2};
  auto train_and_score = [&](step::EngineOptions options, const char* name) {
    options.model = tests::made_cappa(c, model);
    comm::Mesh mesh = comm::make_mesh(*session, c.mesh, comm::SumOrder::library);
    step::Engine engine(options, mesh, Kind::cuda);
    engine.initialise();
    engine.publish();
    tests::MadeBatch batch(model, 0, 2);
    const step::StepReport& report = engine.step(
        1, [&](int64_t) { return tests::owned(std::make_shared<tests::MadeBatch>(model, 0, 2)); });
    expect(report.sums[models::Cappa::Sums::examples_ar] == 1,
           fmt::format("{}: {} examples are autoregressive, not 1 of 2", name,
                       report.sums[models::Cappa::Sums::examples_ar]));
    const kernels::PathCounts before = kernels::path_counts(engine.queue());
    double nll[2], weight[2];
    tests::score(engine, batch.host, nll, weight);
    const kernels::PathCounts scored = kernels::since(kernels::path_counts(engine.queue()), before);
    // The encoder has one attention, each layer of the decoder two. Evaluations have no backward.
    const auto library = options.operands == device::DType::f32 ? kernels::Path::attention_products
                                                                : kernels::Path::attention_cudnn;
    for (auto [what, counts, calls] :
         {std::tuple{"training", report.paths, 10}, {"scoring", scored, 5}})
      for (int i = 0; i < int(counts.size()); ++i)
        expect(counts[size_t(i)] == (kernels::Path(i) == library ? calls : 0),
               fmt::format("{}, {}: {} is {}", name, what, kernels::name_of(kernels::Path(i)),
                           counts[size_t(i)]));
  };
  auto options = tests::engine_options(c, kSteps);
  options.tf32 = true;
  train_and_score(options, "tf32");
  options.tf32 = false;
  options.operands = device::DType::bf16;
  train_and_score(options, "bf16");
}

int run(comm::Session& s, int, char**) {
  session = &s;
  setenv("CUDA_ON_CPU_LATE", "1", 1);
  setenv("CUDA_ON_CPU_GPUS", std::to_string(s.world().size()).c_str(), 1);
  device::use_gpu(s.local_rank());
  steps("mpi", s.world().size() > 1);
  if (s.world().size() > 1)
    steps("auto", false);
  else
    attention_paths();
  host_times();
  frozen_weights();
  const int64_t total = s.world().sum(int64_t{failures});
  say(fmt::format("gpu steps: {} failures", total));
  return total ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
