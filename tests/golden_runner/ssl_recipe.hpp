// SPDX-License-Identifier: Apache-2.0
// Translates the options of a recorded self-supervised training run into a deck, and names of its
// sets into names of tensors. The deck is read as users' decks are.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "case_file.hpp"
#include "step/engine.hpp"

namespace golden {

// A tensor of the engine that holds a part of the published loss.
struct StateOfLoss {
  std::string name;                 // "/params/loss/queue"; empty: no counterpart
  bool before_last_update = false;  // as it was before the last step's update
};

class SslRecipe {
 public:
  explicit SslRecipe(const CaseFile& file);

  int64_t steps = 0, batch = 0;
  std::vector<int64_t> sizes;   // of each view
  std::vector<int64_t> groups;  // views of equal size in a row
  double learning_rate = 1;     // schedules give rates: the deck's rate is 1
  std::set<int64_t> snapshots;  // steps whose state is recorded

  // Fills in model, optimizer, batch and schedules. Returns the model.
  std::shared_ptr<models::Model> fill(step::EngineOptions& options,
                                      const models::MemoryOptions& memory = {}) const;
  // Returns the path of the parameter of a set: trunk.X -> trunk/X, heads.0.X -> head/X, queue ->
  // loss/queue; "" for sets that have no counterpart.
  std::string path_of(const std::string& set) const;
  // Returns the momentum of the parameter of a set.
  std::string momentum_of(const std::string& set) const;
  StateOfLoss state_of_loss(const std::string& set) const;
  // Reads a set in the layout of the tensor `name`. The published queue has keys as columns.
  std::vector<float> values_of(const std::string& name, const std::string& set,
                               const Shape& shape) const;
  // Returns the share that the teacher keeps in a step.
  double teacher_keep(int64_t step) const;

 private:
  std::string model_text() const;
  std::string head_text(const nlohmann::json& head) const;
  std::string loss_text() const;
  std::string optimizer_text() const;
  std::string rules_text() const;
  std::string schedule_text() const;

  const CaseFile& file_;
  nlohmann::json config_;
  std::string kind_;
  std::string deck_;
};

}  // namespace golden
