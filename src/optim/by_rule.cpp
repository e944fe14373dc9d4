// SPDX-License-Identifier: Apache-2.0
#include "optim/by_rule.hpp"

#include <utility>

namespace optim {
namespace {

class ByRule : public Method {
 public:
  ByRule(const shard::Fabric& fabric, std::vector<int> of,
         std::vector<std::unique_ptr<Method>> methods)
      : Method(fabric, Chosen(of.size(), true)), of_(std::move(of)), methods_(std::move(methods)) {
    measures_.assign(methods_.size(), false);
    for (size_t p = 0; p < of_.size(); ++p)
      if (method(int(p)).measures(int(p)) > 0) measures_[size_t(of_[p])] = true;
  }

  int64_t sums(int parameter) const override { return method(parameter).sums(parameter); }
  void sum(const Piece& piece, device::View gradient, device::View sums) override {
    method(piece.parameter).sum(piece, gradient, sums);
  }
  void run() override {
    for (const auto& m : methods_) m->run();
  }
  void begin_step(const StepInfo& info, const TensorTotals& totals) override {
    for (const auto& m : methods_) m->begin_step(info, totals);
  }
  int64_t measures(int parameter) const override { return method(parameter).measures(parameter); }
  void measure(const Piece& piece, device::View weights, device::View gradient,
               device::View sums) override {
    method(piece.parameter).measure(piece, weights, gradient, sums);
  }
  // A method that measures nothing has no totals.
  void measured(const TensorTotals& totals) override {
    for (size_t m = 0; m < methods_.size(); ++m)
      if (measures_[m]) methods_[m]->measured(totals);
  }
  void update(const Piece& piece, const kernels::Update& update) override {
    method(piece.parameter).update(piece, update);
  }
  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (const auto& m : methods_) m->list_state(out);
  }

 private:
  Method& method(int parameter) const { return *methods_[size_t(of_[size_t(parameter)])]; }

  std::vector<int> of_;  // by parameter: index of its method
  std::vector<std::unique_ptr<Method>> methods_;
  std::vector<bool> measures_;  // by method: it measures a tensor
};

}  // namespace

std::unique_ptr<Method> make_by_rule(const shard::Fabric& fabric, std::vector<int> of,
                                     std::vector<std::unique_ptr<Method>> methods) {
  return std::make_unique<ByRule>(fabric, std::move(of), std::move(methods));
}

}  // namespace optim
