// SPDX-License-Identifier: Apache-2.0
// The engine's exchanges of gradients begin before its backward passes end. The test counts
// products instead of measuring time.
#include "engine_rig.hpp"

namespace tests {
namespace {

// Passes calls on, and notes how many products had run when each sum of f32 began.
class WatchedComm : public comm::Comm {
 public:
  WatchedComm(std::unique_ptr<comm::Comm> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  comm::Ticket all_gather(device::View send, device::View recv, device::Queue& queue) override {
    return inner_->all_gather(send, recv, queue);
  }
  comm::Ticket reduce_scatter(device::View send, device::View recv, device::Queue& queue) override {
    note(send, queue);
    return inner_->reduce_scatter(send, recv, queue);
  }
  comm::Ticket all_reduce(device::View view, device::Queue& queue) override {
    note(view, queue);
    return inner_->all_reduce(view, queue);
  }
  void broadcast(device::View view, int root) override { inner_->broadcast(view, root); }
  void barrier() override { inner_->barrier(); }
  int64_t min(int64_t v) override { return inner_->min(v); }
  int64_t max(int64_t v) override { return inner_->max(v); }
  int64_t sum(int64_t v) override { return inner_->sum(v); }
  double max(double v) override { return inner_->max(v); }
  int64_t max(int64_t v, bool& alike) override { return inner_->max(v, alike); }
  std::vector<std::string> gather_text(const std::string& t) override {
    return inner_->gather_text(t);
  }
  std::string broadcast_text(const std::string& t, int root) override {
    return inner_->broadcast_text(t, root);
  }
  std::vector<int64_t> products;  // before each exchange

 private:
  void note(const device::View& view, device::Queue& queue) {
    if (view.type == device::DType::f32 && inner_->size() > 1)
      products.push_back(queue.costs()[size_t(kernels::Op::gemm)].calls);
  }
  std::unique_ptr<comm::Comm> inner_;
};

}  // namespace

void check_overlap() {
  const int ranks = session->world().size();
  if (ranks == 1) return;
  for (const comm::MeshShape shape : {comm::MeshShape{1, ranks}, {ranks, 1}})
    for (const char* optimizer : {"replicated", "sharded"}) {
      comm::Mesh mesh = comm::make_mesh(*session, shape, comm::SumOrder::library);
      auto& axis = shape.fsdp > 1 ? mesh.fsdp : mesh.replica;
      auto* watched = new WatchedComm(std::move(axis));
      axis.reset(watched);
      tests::Case c{.mesh = shape,
                    .micro_batch = 48 / ranks / 2,
                    .parameters = "replicated",
                    .optimizer = optimizer,
                    .level = "run",
                    .kind = "sgd"};
      step::Engine engine(options_of(c, {}), mesh, device::Kind::cpu);
      engine.initialise();
      engine.publish();
      watched->products.clear();
      engine.queue().reset_costs();
      tests::run_step(engine, mesh, 1);
      const int64_t all = engine.queue().costs()[size_t(kernels::Op::gemm)].calls;
      const std::vector<int64_t>& at = watched->products;
      const auto within = std::count_if(at.begin(), at.end(), [&](int64_t n) { return n < all; });
      // Only gradients that are complete last may be exchanged after all products.
      expect(at.size() > 3 && within >= 3 && at.front() > all / 2,
             fmt::format("{}: {} of {} exchanges begin before the last of {} products, the first "
                         "after {}",
                         c.text(), within, at.size(), all, at.empty() ? -1 : at.front()));
    }
}

}  // namespace tests
