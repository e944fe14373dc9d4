// SPDX-License-Identifier: Apache-2.0
// The update of one step, for whatever part of the parameters this rank owns.
//
// optim holds optimizers, schedules and what is common to them: the rules that give each parameter
// its scales, norms, clipping, and the order of transformations (big_vision's): clip by the global
// norm, optimizer, learning rate, + weight decay, schedule, sign. It sees owned ranges of units and
// logical tensors; models, batches and losses are none of its business.
//
// Use per step: inspect(step, units, loss) decides, from the gradients and the loss, how gradients
// are clipped and whether they are applied, and apply(step) does it. The decision stays where the
// gradients are and is read there: where something is not finite, apply leaves weights and state as
// they are. The host learns of it from report(step), which waits for that step alone; it may be
// asked while the next step is under way, not later.
//
// State for checkpoints, under /optimizer/KIND, and what big_vision's checkpoints call it (under
// opt/, with clipping on; "1" is the place of the optimizer in the chain, 0 without clipping;
// counts are step numbers and are not stored):
//   adafactor/{v_row,v_col,v,momentum}/PATH   1/0/0/{1,2,3}/PATH and 1/0/2/1/PATH   (unused ones
//   are [1] zeros there) adamw/{mu,nu}/PATH                        1/0/{1,2}/PATH
//   momentum/trace/PATH                       1/0/0/PATH
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/per_step.hpp"
#include "optim/cut_sums.hpp"
#include "optim/method.hpp"
#include "optim/options.hpp"
#include "optim/schedule.hpp"

namespace optim {

struct OwnedUnit {
  int unit = 0;
  device::View weights;  // f32 [layout.owned_count(unit)]
  // the same elements of the finished mean gradient; none where the unit is frozen
  device::View gradient;
};

struct Norms {
  double global = 0;
  std::vector<double> per_parameter;
  std::vector<double> per_group;
};

struct Inspection {
  bool applied = true;  // gradients and loss were finite; else nothing was updated
  Norms gradients;      // raw, before clipping; frozen parameters count as zero
  double clip = 1;      // what gradients are multiplied by
  // fp16: the scale that the gradients had, of which norms are free; and what follows
  double loss_scale = 0, next_loss_scale = 0;
};

struct UpdateReport {
  Norms parameters;  // after the update, frozen ones included
  Norms updates;
  std::vector<float> schedules;  // value of each schedule for this update
};

struct Report {
  Inspection gradients;
  UpdateReport update;
};

class Engine {
 public:
  // `groups`: regular expressions; norms are also formed over the parameters that each fully
  // matches.
  Engine(shard::Fabric fabric, const OptimizerOptions& options,
         std::vector<ParameterPolicy> policies, std::vector<Schedule> schedules,
         const std::vector<std::string>& groups = {},
         const std::optional<LossScaleOptions>& loss_scale = {});

  // Looks at the finished gradients: one pass over them, one all-reduce over mesh.fsdp. Every unit
  // must be there once. `step` is the number of the update, the first is 1; `loss`: f64 in the
  // queue's memory, all of which must be finite; none: nobody asks.
  void inspect(int64_t step, std::span<const OwnedUnit> units, device::View loss = {});
  // Updates weights and state of the units last inspected.
  void apply(int64_t step);
  // What came of the step. All zero under plan.
  const Report& report(int64_t step);
  // The decision of the last inspection, f32 [3] in the queue's memory (kernels::Clip::decided),
  // for everything else that changes with a step.
  device::View decision() const { return floats_found(0); }

  // With a loss scale: what the gradients to inspect must have been multiplied by, f32 [1] in the
  // queue's memory; else none. Each inspection moves it.
  device::View loss_scale() const;
  // What of it is kept from step to step: the scale, and the updates since it moved.
  struct ScaleState {
    double scale = 0, updates = 0;
  };
  ScaleState scale_state();
  void set_scale_state(const ScaleState& state);

  // The memory of all optimizer state: read to save, filled to restore. Nothing else but the loss
  // scale is kept from step to step.
  std::vector<shard::TensorSlice> state();

 private:
  // What an inspection leaves for the host: the norm, the squares it was made of by parameter, the
  // decision, the loss scale.
  device::View norm() const { return found_.view(device::DType::f64).slice(0, 1); }
  device::View squares() const { return found_.view(device::DType::f64).slice(1, places_.count); }
  device::View scale_memory() const { return floats_found(1); }  // see op loss_scale
  device::View floats_found(int64_t which) const;
  // Norms from each parameter's square, which `square(p)` says.
  template <class Square>
  void fill(Norms& norms, Square square);
  device::View weights(const Piece& piece) const;
  device::View gradient(const Piece& piece) const;
  const kernels::Update& prepare(const Piece& piece, device::View sums);

  shard::Fabric fabric_;
  double learning_rate_, weight_decay_, clip_norm_;
  std::vector<ParameterPolicy> policies_;
  std::vector<Schedule> schedules_;
  std::unique_ptr<Method> method_;
  Pieces pieces_;
  std::vector<std::vector<int>> groups_;
  std::unique_ptr<CutSums> gradient_sums_, measured_sums_, norm_sums_;
  std::optional<LossScaleOptions> scale_options_;
  std::vector<OwnedUnit> owned_;  // by unit, of the last inspection
  int64_t inspected_ = 0;         // the step, until it is applied
  StepInfo info_;
  kernels::Update update_;
  kernels::OpList<kernels::SquareSums> frozen_;  // of weights that stay
  device::Buffer found_, places_buffer_;
  device::View places_;  // i32, by parameter: where the sum of its gradient's squares is
  device::Fetched found_there_, norms_there_;
  base::PerStep<std::vector<float>> schedules_of_;
  Report report_;
};

}  // namespace optim
