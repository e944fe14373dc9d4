// SPDX-License-Identifier: Apache-2.0
// Measures whole jobs of inference with the model of inputs/bench_s16.toml or bench_emoji.toml and
// random weights. The last line is a JSON object: the median of several jobs, and the time that
// their products take.
//   score   the likelihoods of all pairs of images and texts
//   decode  greedy captions; each gets all its tokens. Also gives the bytes that a token step must
//           read, weights and caches, the time that memory needs to deliver them (bound_ms), and
//           the time of its products at the speed of the encoder's products (arithmetic_ms)
// The lines before it list the products of the last job by shape, and the ops of a scoring job or
// of a token step.
// Usage: caption_bench score|decode [S16|emoji] [f32|bf16] [THREADS] [IMAGES] [BATCH] [TOKENS]
//        [TEXTS] [JOBS]
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "comm/mesh.hpp"
#include "models/captions/cappa.hpp"

namespace {

using device::DType;
using device::Kind;
using device::View;

models::CappaOptions options_of(const std::string& workload) {
  models::CappaOptions o;
  if (workload == "S16") {
    o.encoder = {.variant = "", .patch = 16, .depth = 12, .width = 384, .mlp = 1536, .heads = 6};
    return o;
  }
  o.image_size = 64;
  o.vocab_size = 2048;
  o.seq_len = 24;
  o.encoder = {.variant = "", .patch = 8, .depth = 6, .width = 192, .mlp = 768, .heads = 3};
  o.decoder.depth = 3;
  return o;
}

struct Job {
  std::string kind = "score", workload = "S16", type = "f32";
  int threads = 2;
  int64_t images = 0, batch = 0, tokens = 0, texts = 100, jobs = 3;
};

// Returns the job that the command line describes. The defaults are those of the comparison with
// other programs: 32 images of S16 get captions of 32 tokens each.
Job job_of(int argc, char** argv) {
  Job job;
  auto word = [&](int i, std::string& out) { out = argc > i ? argv[i] : out; };
  auto number = [&](int i, int64_t otherwise) {
    return argc > i ? int64_t(std::atoll(argv[i])) : otherwise;
  };
  word(1, job.kind);
  word(2, job.workload);
  word(3, job.type);
  const bool small = job.workload != "S16", score = job.kind == "score";
  job.threads = int(number(4, 2));
  job.images = number(5, small ? 402 : score ? 64 : 32);
  job.batch = number(6, small ? 64 : 32);
  job.tokens = number(7, score ? 8 : small ? 24 : 32);
  job.texts = number(8, 100);
  job.jobs = number(9, 3);
  return job;
}

// Returns the bytes per second that `threads` threads read from memory, each its own part: the best
// of five passes over 256 MiB.
double read_bandwidth(int threads) {
  std::vector<double> data(size_t(32) << 20, 1.0);
  double best = 0, sum = 0;
  for (int turn = 0; turn < 5; ++turn) {
    base::Stopwatch watch;
    double total = 0;
    const auto n = int64_t(data.size());
#pragma omp parallel for simd reduction(+ : total) num_threads(threads)
    for (int64_t i = 0; i < n; ++i) total += data[size_t(i)];
    best = std::max(best, double(n) * sizeof(double) / watch.seconds());
    sum += total;
  }
  return sum > 0 ? best : 0;  // the sum keeps the loop
}

class Bench {
 public:
  explicit Bench(const Job& job)
      : job_(job),
        model_(options_of(job.workload), {}),
        queue_(Kind::cpu, job.threads, false),
        layout_(model_.parameters(), model_.blocks(), {}, 1, 1),
        weights_(
            {layout_, mesh_, queue_, ledger_, false, job.type == "bf16" ? DType::bf16 : DType::f32},
            0) {
    weights_.initialise(1);
    const View head = weights_.weight(layout_.find("decoder/LogitsDense/kernel"));
    for (int64_t i = 0; i < head.count; ++i)
      head.f32()[i] = float(0.05 * draw_.normal(uint64_t(i)));
    weights_.publish();
    const models::CappaOptions& options = model_.options();
    image_.resize(size_t(job.batch * options.height() * options.width() * 3));
    for (size_t i = 0; i < image_.size(); ++i)
      image_[i] = 2 * draw_.sub(1).uniform(uint64_t(i)) - 1;
    inputs_["image"] = device::view(image_.data(), int64_t(image_.size()));
  }

  int run();

 private:
  nn::Context context(device::Queue& queue, device::Arena& arena) {
    return {{.queue = queue, .arena = arena},
            {.weights = weights_},
            {.batch = job_.batch},
            {.keep = false}};
  }
  models::TextList texts() const;
  void time(models::ForwardPass& pass, const std::function<void(nn::Context&, int64_t)>& run_batch);
  std::string decode();
  std::string score();
  double token_step_weights() const;
  double token_step_bytes() const;

  Job job_;
  models::Cappa model_;
  std::unique_ptr<comm::Comm> alone_ = comm::make_plan_comm(1);
  comm::Mesh mesh_ = comm::make_plan_mesh({1, 1}, *alone_);
  device::Queue queue_;
  device::Ledger ledger_;
  shard::Layout layout_;
  shard::WeightStore weights_;
  base::Stream draw_{1, "caption_bench"};
  std::vector<float> image_;
  models::Inputs inputs_;
  std::vector<double> seconds_, products_;  // of each job
  struct {
    std::array<device::OpCost, device::Queue::kMaxOps> costs{};  // of the last job
    double parts = 1;                                            // the job, or its token steps
  } ops_;
};

models::TextList Bench::texts() const {
  const auto ids = uint32_t(model_.options().vocab_size - 2);
  models::TextList list{job_.tokens, {}};
  for (int64_t i = 0; i < job_.texts * job_.tokens; ++i)
    list.ids.push_back(
        i % job_.tokens == job_.tokens - 1 ? 1 : 2 + int32_t(draw_.sub(2).bits(uint64_t(i)) % ids));
  return list;
}

void Bench::time(models::ForwardPass& pass,
                 const std::function<void(nn::Context&, int64_t)>& run_batch) {
  device::Queue paper(Kind::plan, job_.threads, false);
  paper.set_prepares(true);
  device::Arena measure;
  nn::Context planned = context(paper, measure);
  const device::Queue::RowsAlike planned_alike(paper), alike(queue_);  // as evaluations run
  pass.plan(planned, inputs_);
  device::Arena arena(Kind::cpu, ledger_, "activations", measure.peak());
  nn::Context ctx = context(queue_, arena);
  for (int64_t j = 0; j <= job_.jobs; ++j) {
    kernels::reset_gemm_uses();
    queue_.reset_costs();
    base::Stopwatch watch;
    for (int64_t first = 0; first < job_.images; first += job_.batch)
      run_batch(ctx, std::min(job_.batch, job_.images - first));
    if (j == 0) continue;  // warm-up
    seconds_.push_back(watch.seconds());
    products_.push_back(0);
    for (const kernels::GemmUse& use : kernels::gemm_uses()) products_.back() += use.seconds;
  }
  ops_.costs = queue_.costs();
  std::ranges::sort(seconds_);
  std::ranges::sort(products_);
}

std::string Bench::score() {
  const std::unique_ptr<models::PairScorePass> pass = model_.make_pair_score_pass();
  const models::TextList list = texts();
  std::vector<double> scores(size_t(job_.batch * job_.texts));
  time(*pass, [&](nn::Context& ctx, int64_t) { pass->run(ctx, inputs_, list, scores.data()); });
  return fmt::format("\"texts\": {}, \"first_score\": {:.6f}", job_.texts, scores[0]);
}

// Returns the elements of the weights that a token step multiplies.
double Bench::token_step_weights() const {
  double kernels = 0;
  for (const shard::Parameter& p : model_.parameters()) {
    // Keys and values of images are projected once, and a few rows of the embedding are read.
    const bool once = p.path.find("MultiHeadDotProductAttention_1/key") != p.path.npos ||
                      p.path.find("MultiHeadDotProductAttention_1/value") != p.path.npos ||
                      p.path.find("embedding") != p.path.npos;
    if (p.path.starts_with("decoder/") && p.path.ends_with("kernel") && !once) {
      double count = 1;
      for (int64_t d : p.shape) count *= double(d);
      kernels += count;
    }
  }
  return kernels;
}

// Returns the bytes of weights and caches that a token step must read, on average over the steps.
double Bench::token_step_bytes() const {
  const models::CappaOptions& options = model_.options();
  const double width = double(options.encoder.width), layers = double(options.decoder.depth),
               patches = double(options.height() / options.encoder.patch) *
                         double(options.width() / options.encoder.patch),
               past = double(job_.tokens + 1) / 2,
               caches = 2 * layers * double(job_.batch) * (patches + past) * width;
  return (token_step_weights() + caches) * (job_.type == "bf16" ? 2 : 4);
}

std::string Bench::decode() {
  const std::unique_ptr<models::CaptionPass> pass = model_.make_caption_pass({1, job_.tokens});
  models::DecodeOptions options;
  options.end_id = int32_t(model_.options().vocab_size - 1);
  int64_t ended = 0;
  std::vector<models::Caption> captions;
  std::vector<double> steps;  // seconds of a token step
  time(*pass, [&](nn::Context& ctx, int64_t examples) {
    pass->run(ctx, inputs_, options, examples, 0, captions);
    for (const models::Caption& c : captions) ended += c.ended;
  });
  // A caption of one token costs the encoding and one step; the rest are steps.
  const double all = seconds_[seconds_.size() / 2];
  const std::vector<double> products = products_;
  const auto costs = ops_.costs;
  options.max_length = 1;
  seconds_.clear();
  products_.clear();
  time(*pass, [&](nn::Context& ctx, int64_t examples) {
    pass->run(ctx, inputs_, options, examples, 0, captions);
  });
  const double one = seconds_[seconds_.size() / 2], bytes = token_step_bytes(),
               batches = double((job_.images + job_.batch - 1) / job_.batch),
               step = (all - one) / double(job_.tokens - 1) / batches,
               bandwidth = read_bandwidth(job_.threads);
  for (size_t i = 0; i < costs.size(); ++i) {
    ops_.costs[i] = {.calls = costs[i].calls - ops_.costs[i].calls,
                     .flops = costs[i].flops - ops_.costs[i].flops,
                     .bytes = costs[i].bytes - ops_.costs[i].bytes,
                     .seconds = costs[i].seconds - ops_.costs[i].seconds};
  }
  ops_.parts = double(job_.tokens - 1) * batches;
  double multiplied = 0, seconds = 0;
  for (const kernels::GemmUse& use : kernels::gemm_uses()) {
    multiplied += double(use.m * use.n * use.k) * double(use.calls);
    seconds += use.seconds;
  }
  seconds_ = {all};
  products_ = products;
  return fmt::format(
      "\"ended\": {}, \"ms_per_token_step\": {:.3f}, \"token_step_mb\": {:.1f}, \"read_gb_per_s\": "
      "{:.1f}, \"bound_ms\": {:.3f}, \"step_over_bound\": {:.2f}, \"arithmetic_ms\": {:.3f}",
      ended, step * 1e3, bytes * 1e-6, bandwidth * 1e-9, bytes / bandwidth * 1e3,
      step / (bytes / bandwidth),
      token_step_weights() * double(job_.batch) * seconds / multiplied * 1e3);
}

int Bench::run() {
  const std::string more = job_.kind == "score" ? score() : decode();
  for (const kernels::GemmUse& use : kernels::gemm_uses())
    fmt::print("m {:5} n {:6} k {:5}  {:6} calls {:8.1f} ms {:7.1f} GFLOP/s\n", use.m, use.n, use.k,
               use.calls, use.seconds * 1e3,
               2e-9 * double(use.m * use.n * use.k) * double(use.calls) / use.seconds);
  for (size_t i = 0; i < size_t(kernels::Op::count); ++i)
    if (ops_.costs[i].calls)
      fmt::print("{:<22}{:8.1f} calls{:10.3f} ms{:8.2f} GB/s\n", kernels::name_of(kernels::Op(i)),
                 double(ops_.costs[i].calls) / ops_.parts, ops_.costs[i].seconds / ops_.parts * 1e3,
                 double(ops_.costs[i].bytes) / ops_.costs[i].seconds * 1e-9);
  fmt::print(
      "{{\"job\": \"{}\", \"workload\": \"{}\", \"dtype\": \"{}\", \"threads\": {}, \"images\": "
      "{}, \"batch\": {}, \"tokens\": {}, \"ms_per_step\": {:.1f}, \"products_ms\": {:.1f}, {}}}\n",
      job_.kind, job_.workload, job_.type, job_.threads, job_.images, job_.batch, job_.tokens,
      seconds_[seconds_.size() / 2] * 1e3, products_[products_.size() / 2] * 1e3, more);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Job job = job_of(argc, argv);
    if (job.kind != "score" && job.kind != "decode") {
      fmt::print(stderr,
                 "usage: caption_bench score|decode [S16|emoji] [f32|bf16] [THREADS] [IMAGES] "
                 "[BATCH] [TOKENS] [TEXTS] [JOBS]\n");
      return 2;
    }
    return Bench(job).run();
  } catch (const std::exception& e) {
    fmt::print(stderr, "caption_bench: {}\n", e.what());
    return 1;
  }
}
