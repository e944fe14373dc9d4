// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.hpp"

#include "optim/registry.hpp"

namespace optim {
namespace {

class Sgd : public Method {
 public:
  explicit Sgd(const shard::Fabric& fabric) : Method(fabric) {}
  void update(const Piece&, const kernels::Update& update) override { updates_.add({update}); }
  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }
  void list_state(std::vector<shard::TensorSlice>&) override {}

 private:
  kernels::OpList<kernels::ApplyUpdate> updates_;
};

}  // namespace

std::unique_ptr<Method> SgdOptions::make(const shard::Fabric& fabric) const {
  return std::make_unique<Sgd>(fabric);
}

MethodRow sgd_row() {
  return {"sgd", "plain gradient descent, no state",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<SgdOptions>()); }};
}

}  // namespace optim
