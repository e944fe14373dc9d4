// SPDX-License-Identifier: Apache-2.0
// A mesh of engines in one process: one thread per rank, in lock-step through a communicator that
// adds along a tree. Tests see only logical tensors, and the rig maps them to ranks.
#pragma once

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "device/gpu.hpp"
#include "device/memory.hpp"
#include "kernels/bf16_value.hpp"
#include "optim/optimizer.hpp"
#include "tests/unit/silent_comm.hpp"

namespace rig {

using Tensor = std::vector<float>;
using Tensors = std::map<std::string, Tensor>;

// Returns the device of one-rank engines: a GPU with TRAINER_TEST_KIND=cuda, without which the
// program ends with 77. Meshes of threads stay on the CPU, because MPI tests cover exchanges
// between GPUs.
inline device::Kind default_kind() {
  static const device::Kind kind = [] {
    const char* wanted = std::getenv("TRAINER_TEST_KIND");
    if (!wanted || std::string(wanted) != "cuda") return device::Kind::cpu;
    if (device::Gpus gpus = device::find_gpus(); gpus.count == 0) {
      std::printf("skipped: %s\n", gpus.none_because.c_str());
      std::_Exit(77);
    }
    device::use_gpu(0);
    return device::Kind::cuda;
  }();
  return kind;
}

struct Meeting {
  explicit Meeting(int n) : barrier(n), views(size_t(n)) {}
  std::barrier<> barrier;
  std::vector<device::View> views;
};

// Adds neighbours first, then neighbouring pairs, and so on.
class ThreadComm : public SilentComm {
 public:
  ThreadComm(Meeting& meeting, int rank)
      : SilentComm(int(meeting.views.size()), rank), meeting_(meeting) {}
  comm::Ticket all_reduce(device::View view, device::Queue&) override {
    if (size() == 1) return {};
    ++reduced_.calls;
    reduced_.bytes += view.bytes();
    if (view.type == device::DType::f32)
      add<float>(view, 0, view);
    else
      add<double>(view, 0, view);
    return {};
  }
  comm::Ticket all_gather(device::View send, device::View recv, device::Queue&) override {
    meet(send);
    for (int r = 0; r < size(); ++r)
      std::memcpy(recv.f32() + r * send.count, meeting_.views[size_t(r)].data,
                  size_t(send.bytes()));
    meeting_.barrier.arrive_and_wait();
    return {};
  }
  comm::Ticket reduce_scatter(device::View send, device::View recv, device::Queue&) override {
    add<float>(send, rank() * recv.count, recv);
    return {};
  }
  void barrier() override { meeting_.barrier.arrive_and_wait(); }

 private:
  void meet(device::View view) {
    meeting_.views[size_t(rank_)] = view;
    meeting_.barrier.arrive_and_wait();
  }
  // out = the sums of all ranks' views, from element `first` on
  template <class T>
  void add(device::View view, int64_t first, device::View out) {
    meet(view);
    std::vector<T> sum(size_t(out.count));
    for (int64_t i = 0; i < out.count; ++i) sum[size_t(i)] = tree<T>(first + i, 0, size());
    meeting_.barrier.arrive_and_wait();
    std::copy(sum.begin(), sum.end(), static_cast<T*>(out.data));
    meeting_.barrier.arrive_and_wait();
  }
  template <class T>
  T tree(int64_t i, int begin, int end) const {
    if (end - begin == 1) return static_cast<const T*>(meeting_.views[size_t(begin)].data)[i];
    int half = 1;
    while (half * 2 < end - begin) half *= 2;
    return tree<T>(i, begin, begin + half) + tree<T>(i, begin + half, end);
  }
  Meeting& meeting_;
};

struct Job {
  std::vector<shard::Parameter> parameters;
  std::string optimizer_sharding = "sharded";
  int fsdp = 1;
  int64_t cuts = 1;
  int threads = 1;
  bool fixed_order = false;  // of products (device::Queue)
  // With kind plan, paper_of is the planned device.
  device::Kind kind = default_kind(), paper_of = device::Kind::cpu;
  optim::OptimizerOptions options;
  std::vector<optim::ParameterPolicy> policies;  // empty: no decay, nothing frozen
  std::vector<optim::Schedule> schedules{optim::Schedule()};
  std::vector<std::string> groups;
  std::optional<optim::LossScaleOptions> loss_scale;
};

inline shard::Parameter parameter(const std::string& path, std::vector<int64_t> shape,
                                  int block = 0) {
  shard::Parameter p;
  p.path = path;
  p.shape = std::move(shape);
  p.block = block;
  return p;
}

class Rig {
 public:
  explicit Rig(Job s)
      : job_(std::move(s)), meeting_(job_.fsdp), layout_(make_layout()), ranks_(size_t(job_.fsdp)) {
    if (job_.fsdp > 1 && job_.kind == device::Kind::cuda) job_.kind = device::Kind::cpu;
    for (int f = 0; f < job_.fsdp; ++f) {
      Rank& r = ranks_[size_t(f)];
      r.mesh.shape = {1, job_.fsdp};
      r.mesh.fsdp_index = f;
      if (job_.kind == device::Kind::plan)
        r.mesh.fsdp = comm::make_plan_comm(job_.fsdp);
      else
        r.mesh.fsdp = std::make_unique<ThreadComm>(meeting_, f);
      r.mesh.replica = comm::make_plan_comm(1);
      r.queue =
          std::make_unique<device::Queue>(job_.kind, job_.threads, job_.fixed_order, job_.paper_of);
      shard::Fabric fabric{layout_, r.mesh, *r.queue, r.ledger};
      r.optimizer = std::make_unique<optim::Optimizer>(
          fabric, job_.options, job_.policies, job_.schedules, job_.groups, job_.loss_scale);
      for (int u = 0; u < int(layout_.units().size()); ++u) {
        r.weights.emplace_back(job_.kind, r.other, "weights", layout_.owned_count(u) * 4);
        r.gradients.emplace_back(job_.kind, r.other, "gradients", layout_.owned_count(u) * 4);
        r.units.push_back({u, r.weights.back().view(device::DType::f32), {}});
        if (layout_.units()[size_t(u)].trained())
          r.units.back().gradient = r.gradients.back().view(device::DType::f32);
      }
    }
  }

  void set_weights(const Tensors& t) {
    each_segment([&](Rank& r, int u, const shard::Segment& s) {
      copy_in(t, s, r.weights[size_t(u)], *r.queue);
    });
  }
  void set_gradients(const Tensors& t) {
    each_segment([&](Rank& r, int u, const shard::Segment& s) {
      copy_in(t, s, r.gradients[size_t(u)], *r.queue);
    });
  }
  Tensors weights() {
    Tensors out;
    for (const shard::Parameter& p : layout_.parameters()) out[p.path].resize(size_t(p.size));
    each_segment([&](Rank& r, int u, const shard::Segment& s) {
      float* to = out[layout_.parameters()[size_t(s.parameter)].path].data() + s.begin;
      device::download(to, r.weights[size_t(u)].view(device::DType::f32).slice(s.offset, s.count()),
                       *r.queue);
    });
    return out;
  }

  // Runs the step and returns the report of rank 0.
  const optim::Report& step(int64_t number) {
    each_rank([number](Rank& r) {
      r.optimizer->inspect(number, r.units, r.loss.none() ? r.loss : r.loss.slice(0, 1));
      r.optimizer->apply(number);
      r.report = r.optimizer->report(number);
    });
    return ranks_[0].report;
  }
  const optim::Report& step(int64_t number, const Tensors& gradients) {
    set_gradients(gradients);
    return step(number);
  }
  void set_loss(double loss) {
    for (Rank& r : ranks_) {
      if (r.loss.none()) {
        r.loss_buffer = device::Buffer(job_.kind, r.other, "loss", 8);
        r.loss = r.loss_buffer.view(device::DType::f64);
      }
      device::upload(r.loss.slice(0, 1), &loss, *r.queue);
    }
  }
  // Runs a step of a one-rank rig without copying results, for counting allocations.
  void run_in_place(int64_t number) {
    CHECK(ranks_.size() == 1);
    ranks_[0].optimizer->inspect(number, ranks_[0].units);
    ranks_[0].optimizer->apply(number);
    ranks_[0].optimizer->report(number);
  }
  optim::Optimizer& optimizer(int rank) { return *ranks_[size_t(rank)].optimizer; }
  const std::vector<optim::OwnedUnit>& units(int rank) { return ranks_[size_t(rank)].units; }

  // Returns all optimizer state as logical tensors. Checks that exactly one rank writes every
  // element.
  Tensors state() {
    Tensors out;
    std::map<std::string, std::vector<int>> writers;
    for (Rank& r : ranks_)
      for (const shard::TensorSlice& s : r.optimizer->state()) {
        int64_t n = 1;
        for (int64_t d : s.shape) n *= d;
        Tensor& t = out[s.name];
        t.resize(size_t(n));
        writers[s.name].resize(size_t(n));
        shapes_[s.name] = s.shape;
        types_[s.name] = s.type;
        for (const auto& part : s.parts) {
          const device::View there{part.data, s.type, part.end - part.begin};
          std::vector<char> here(size_t(there.bytes()));
          device::download(here.data(), there, *r.queue);
          for (int64_t i = part.begin; i < part.end; ++i) {
            t[size_t(i)] = read(here.data(), s.type, i - part.begin);
            if (s.writes) ++writers[s.name][size_t(i)];
          }
        }
      }
    for (auto& [name, counts] : writers)
      for (int n : counts) CHECK(n == 1, "{} has an element with {} writers", name, n);
    return out;
  }
  void set_state(const Tensors& t) {
    for (Rank& r : ranks_)
      for (const shard::TensorSlice& s : r.optimizer->state())
        for (const auto& part : s.parts) {
          const float* from = t.at(s.name).data() + part.begin;
          const device::View there{part.data, s.type, part.end - part.begin};
          std::vector<kernels::loops::Bf16> narrow;
          for (int64_t i = 0; i < there.count; ++i)
            narrow.push_back(kernels::loops::round_to_bf16(from[i]));
          const bool rounds = s.type == device::DType::bf16;
          device::upload(there, rounds ? static_cast<const void*>(narrow.data()) : from, *r.queue);
        }
  }
  const std::vector<int64_t>& shape(const std::string& name) { return shapes_.at(name); }
  device::DType type(const std::string& name) { return types_.at(name); }

  const shard::Layout& layout() const { return layout_; }
  int size() const { return int(ranks_.size()); }
  device::Ledger& ledger(int rank) { return ranks_[size_t(rank)].ledger; }
  const comm::Traffic& reduced(int rank) { return ranks_[size_t(rank)].mesh.fsdp->reduced(); }
  const optim::Inspection& inspection(int rank) { return ranks_[size_t(rank)].report.gradients; }
  const optim::UpdateReport& report(int rank) { return ranks_[size_t(rank)].report.update; }
  device::Queue& queue(int rank) { return *ranks_[size_t(rank)].queue; }

 private:
  struct Rank {
    comm::Mesh mesh;
    std::unique_ptr<device::Queue> queue;
    device::Ledger ledger, other;
    std::unique_ptr<optim::Optimizer> optimizer;
    std::vector<device::Buffer> weights, gradients;
    std::vector<optim::OwnedUnit> units;
    device::Buffer loss_buffer;
    device::View loss;
    optim::Report report;
  };

  shard::Layout make_layout() {
    if (job_.policies.empty()) job_.policies.resize(job_.parameters.size());
    int blocks = 0;
    for (size_t p = 0; p < job_.parameters.size(); ++p) {
      if (job_.policies[p].frozen && job_.parameters[p].trained())
        job_.parameters[p].kind = shard::ParameterKind::frozen;
      blocks = std::max(blocks, job_.parameters[p].block + 1);
    }
    std::vector<std::string> names;
    for (int b = 0; b < blocks; ++b) names.push_back("block" + std::to_string(b));
    shard::ShardingOptions sharding;
    sharding.optimizer = base::value_of(shard::kPlacementNames, job_.optimizer_sharding);
    return {job_.parameters, names, sharding, job_.fsdp, job_.cuts};
  }
  template <class F>
  void each_rank(F f) {
    if (ranks_.size() == 1 || job_.kind == device::Kind::plan) {
      for (Rank& r : ranks_) f(r);
      return;
    }
    std::vector<std::jthread> threads;
    for (Rank& r : ranks_) threads.emplace_back([&r, f] { f(r); });
  }
  template <class F>
  void each_segment(F f) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      for (int u = 0; u < int(layout_.units().size()); ++u)
        for (const shard::Segment& s :
             layout_.segments(u, layout_.owned_begin(u, int(rank)), layout_.owned_count(u)))
          f(ranks_[rank], u, s);
  }
  void copy_in(const Tensors& t, const shard::Segment& s, device::Buffer& to,
               device::Queue& queue) {
    auto it = t.find(layout_.parameters()[size_t(s.parameter)].path);
    if (it == t.end()) return;
    device::upload(to.view(device::DType::f32).slice(s.offset, s.count()),
                   it->second.data() + s.begin, queue);
  }
  static float read(const void* data, device::DType type, int64_t i) {
    if (type == device::DType::bf16)
      return kernels::loops::to_float(static_cast<const kernels::loops::Bf16*>(data)[i]);
    return static_cast<const float*>(data)[i];
  }

  Job job_;
  Meeting meeting_;
  shard::Layout layout_;
  std::vector<Rank> ranks_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, device::DType> types_;
};

}  // namespace rig
