// SPDX-License-Identifier: Apache-2.0
// One recorded loss of embeddings (losses.h5): its steps with gradients and states, on any number
// of ranks, passes and slices. The group's options and inputs define the loss.
#pragma once

#include "keys.hpp"
#include "models/losses/losses.hpp"
#include "workbench.hpp"

namespace golden {

// A recorded tensor over all examples: [views, examples, width].
struct LossTensor {
  int64_t views = 0, width = 0;
  std::vector<float> values;
};

// What a loss reads in one step.
struct LossStep {
  std::vector<LossTensor> outputs{}, teacher{};
  std::vector<int32_t> index{}, negatives{};  // [examples], [examples, outputs, K]
};

class LossCase {
 public:
  using Floats = std::vector<float>;

  LossCase(const CaseFile& file, const std::string& group, const Settings& settings,
           comm::Mesh& mesh);
  virtual ~LossCase() = default;
  // Runs the steps for each number of ranks that is recorded. Collective.
  void run(Report& report);

 protected:
  // Declares the loss that the published code has on `ranks` ranks.
  virtual std::unique_ptr<models::EmbeddingLoss> make(int64_t ranks,
                                                      models::ParameterList& list) = 0;
  virtual void set_states(Workbench&) {}
  virtual LossStep step(int64_t s) const = 0;
  // Compares states; `prefix` names the recorded step: "moco/ranks4/step2/".
  virtual void compare_states(Workbench&, const std::string& /*prefix*/, int64_t /*ranks*/,
                              Report&) const {}
  // Returns gradients in the form of the recorded sets, from gradients of the outputs. With weights
  // of prototypes, gradients of scores are added to the embedding's gradient.
  virtual std::vector<std::pair<std::string, LossTensor>> gradients_of(
      const std::vector<LossTensor>& outputs) const = 0;
  virtual int64_t teacher_views() const { return 0; }

  // Returns part `s` of a set [steps, views, examples, width], or a set without steps.
  LossTensor read(const std::string& input, int64_t s) const;
  std::string input(const std::string& name) const { return group_ + "/inputs/" + name; }
  void compare_state(Workbench& bench, const std::string& state, const std::string& set,
                     const Shape& shape, Report& report) const;

  const CaseFile& file_;
  std::string group_;
  nlohmann::json config_;
  int64_t steps_ = 1, examples_ = 0;
  bool stepped_ = false;  // inputs have a dimension of steps

 private:
  void run_ranks(const std::string& name, int64_t ranks, Report& report);
  void run_step(Workbench& bench, const models::EmbeddingLoss& loss, int64_t s,
                const std::string& prefix, int64_t ranks, Report& report);
  device::View rows(Workbench& bench, const LossTensor& all, int64_t first) const;
  void put_back(Workbench& bench, const device::View& gradient, int64_t first,
                LossTensor& all) const;

  Settings settings_;  // losses are f32 in every precision
  comm::Mesh& mesh_;
  step::Geometry geometry_;
};

// Returns null if the group holds no loss of embeddings.
std::unique_ptr<LossCase> make_loss_case(const CaseFile& file, const std::string& group,
                                         const Settings& settings, comm::Mesh& mesh);

}  // namespace golden
