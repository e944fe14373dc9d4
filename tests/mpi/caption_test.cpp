// SPDX-License-Identifier: Apache-2.0
// Generates captions on every mesh of this number of ranks. Each rank has other images, and ranks
// end at different times. Captions must have the bits of a rank alone, with weights sharded or not.
//   caption_test [cuda]
// With `cuda`, the emulated GPU must find the captions that the CPU finds.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "device/gpu.hpp"
#include "engine_rig.hpp"
#include "models/captioner.hpp"

namespace {

using models::Caption;
using models::DecodeMethod;
using models::DecodeOptions;
using tests::expect;
using tests::session;

constexpr int64_t kBatch = 4, kPlaces = 3;

step::EngineOptions caption_options(const tests::Case& c) {
  step::EngineOptions o = tests::options_of(c, {});
  o.passes = {[](const models::Model& model) {
    return dynamic_cast<const models::Captioner&>(model).make_caption_pass({.places = kPlaces});
  }};
  return o;
}

std::vector<Caption> captions(step::Engine& engine, const DecodeOptions& options, int64_t first,
                              int64_t examples) {
  const tests::MadeBatch batch(tests::small_cappa(), first, kBatch);
  constexpr step::PassId kPass{0};
  auto& pass = engine.pass<models::CaptionPass>(kPass);
  std::vector<Caption> out;
  engine.forward(kPass, batch.host, [&](nn::Context& ctx, const models::Inputs& inputs) {
    pass.run(ctx, inputs, options, examples, first, out);
  });
  return out;
}

std::vector<DecodeOptions> all_methods() {
  return {{},
          {.method = DecodeMethod::beam, .beams = kPlaces, .length_penalty = 0.6},
          {.method = DecodeMethod::sample, .seed = 3}};
}

void check_meshes() {
  tests::Alone alone;
  for (bool bf16 : {false, true})
    for (const comm::MeshShape& shape : tests::shapes())
      for (const char* parameters : {"sharded", "replicated"}) {
        const int64_t ranks = shape.ranks();
        const tests::Case one{.mesh = {1, 1},
                              .micro_batch = kBatch,
                              .level = "run",
                              .global_batch = kBatch,
                              .bf16 = bf16};
        tests::Case all = one;
        all.mesh = shape;
        all.global_batch = kBatch * ranks;
        all.parameters = parameters;
        step::Engine single(caption_options(one), alone.mesh, device::Kind::cpu);
        tests::stir(single);
        comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::library);
        step::Engine engine(caption_options(all), mesh, device::Kind::cpu);
        tests::stir(engine);
        const int64_t rank = session->world().rank(), first = rank * kBatch;
        for (const DecodeOptions& options : all_methods())
          for (int64_t examples : {kBatch, rank % (kBatch + 1)}) {
            const auto want = captions(single, options, first, examples),
                       got = captions(engine, options, first, examples);
            expect(int64_t(got.size()) == examples, all.text() + ": number of captions");
            for (size_t b = 0; b < got.size(); ++b)
              expect(got[b].ids == want[b].ids && got[b].ended == want[b].ended &&
                         got[b].log_likelihood == want[b].log_likelihood,
                     fmt::format("{}: caption {} has likelihood {}, not {}", all.text(), b,
                                 got[b].log_likelihood, want[b].log_likelihood));
          }
      }
}

void check_gpu() {
  const int ranks = session->world().size();
  const tests::Case c{
      .mesh = {1, ranks}, .micro_batch = kBatch, .level = "run", .global_batch = kBatch * ranks};
  comm::Mesh on_cpu = comm::make_mesh(*session, c.mesh, comm::SumOrder::library),
             on_gpu = comm::make_mesh(*session, c.mesh, comm::SumOrder::library);
  comm::MeshOptions mesh_options;
  mesh_options.gpu_exchange = base::value_of(comm::kGpuExchangeNames, "mpi");
  comm::connect_gpus(on_gpu, mesh_options, comm::SumOrder::library, session->host());
  step::Engine cpu(caption_options(c), on_cpu, device::Kind::cpu),
      gpu(caption_options(c), on_gpu, device::Kind::cuda);
  tests::stir(cpu);
  for (const shard::TensorSlice& from : cpu.state())
    for (const shard::TensorSlice& to : gpu.state())
      if (from.name == to.name && from.name.starts_with("/params/"))
        for (size_t i = 0; i < from.parts.size(); ++i)
          device::upload(to.view(to.parts[i]), from.parts[i].data, gpu.queue());
  gpu.publish();
  const int64_t first = session->world().rank() * kBatch;
  for (const DecodeOptions& options : all_methods()) {
    const auto want = captions(cpu, options, first, kBatch),
               got = captions(gpu, options, first, kBatch);
    for (size_t b = 0; b < kBatch; ++b)
      expect(got[b].ids == want[b].ids &&
                 std::abs(got[b].log_likelihood - want[b].log_likelihood) < 1e-4,
             fmt::format("caption {} on the GPU has likelihood {}, not {}", b,
                         got[b].log_likelihood, want[b].log_likelihood));
  }
}

int body(comm::Session& s, int argc, char** argv) {
  session = &s;
  if (argc > 1 && std::strcmp(argv[1], "cuda") == 0) {
    setenv("CUDA_ON_CPU_GPUS", std::to_string(s.world().size()).c_str(), 1);
    device::use_gpu(s.local_rank());
    check_gpu();
  } else {
    check_meshes();
  }
  return tests::conclude("caption_test");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, body); }
