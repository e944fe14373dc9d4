// SPDX-License-Identifier: Apache-2.0
// The update of one step, for the part of the parameters that this rank owns.
//
// optim holds optimizers, schedules and the parts that they share: rules that give each parameter
// its scales, norms, clipping, and the order of transformations. The order is big_vision's: clip by
// the global norm, optimizer, learning rate, + weight decay, schedule, sign. In PyTorch's order,
// decay is added to the gradient before the optimizer, and LARC's ratio scales the gradient there
// (optimizer.decay_form, optimizer.trust). A rule may drop the gradient of a tensor until a step:
// no update, no state, no share in norms. Last, rows are normalised (shard::Parameter::unit_rows).
// optim sees owned ranges of units and logical tensors. It knows no models, batches or losses.
//
// Use per step: inspect(step, units, loss) decides from gradients and loss how gradients are
// clipped and if the step is applied. apply(step) updates. The decision stays on the device: if a
// number is not finite, apply leaves weights and state unchanged. The host reads the decision from
// report(step), which waits for that step alone. Call report(step) before step + 2 is inspected.
//
// State for checkpoints, under /optimizer/KIND, and its names in big_vision's checkpoints, under
// opt/. "1" is the position of the optimizer in the chain with clipping; it is 0 without clipping.
// Counts are step numbers and are not stored.
//
//   adafactor/{v_row,v_col,v}/PATH   1/0/0/{1,2,3}/PATH, where unused ones are [1] zeros
//   adafactor/momentum/PATH          1/0/2/1/PATH
//   adamw/{mu,nu}/PATH               1/0/{1,2}/PATH
//   adamw/nu_max/PATH, lion/mu/PATH, muon/momentum/PATH, sgd/trace/PATH,
//   rmsprop/{square_avg,momentum_buffer,grad_avg}/PATH: none
//   momentum/trace/PATH              1/0/0/PATH
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/per_step.hpp"
#include "optim/cut_sums.hpp"
#include "optim/infinity_norms.hpp"
#include "optim/method.hpp"
#include "optim/options.hpp"
#include "optim/row_norms.hpp"
#include "optim/schedule.hpp"

namespace optim {

struct OwnedUnit {
  int unit = 0;
  device::View weights;   // f32 [layout.owned_count(unit)]
  device::View gradient;  // these elements of the finished mean gradient; none for a frozen unit
};

struct Norms {
  double global = 0;
  std::vector<double> per_parameter;
  std::vector<double> per_group;
};

struct Inspection {
  // False if nothing was updated: gradients or loss were not finite, or optimizer.drop_norm.
  bool applied = true;
  Norms gradients;             // before clipping, without the loss scale; frozen parameters have 0
  double clip = 1;             // factor of the gradients
  double loss_scale = 0;       // fp16: the scale of this step's gradients
  double next_loss_scale = 0;  // fp16
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

class Optimizer {
 public:
  // `groups`: regular expressions. Norms are also formed over the parameters that each one fully
  // matches.
  Optimizer(shard::Fabric fabric, const OptimizerOptions& options,
            std::vector<ParameterPolicy> policies, std::vector<Schedule> schedules,
            const std::vector<std::string>& groups = {},
            const std::optional<LossScaleOptions>& loss_scale = {});

  // Inspects the finished gradients: one pass over them, one all-reduce over mesh.fsdp. `units`
  // must hold every unit once. `step` is the number of the update, from 1. `loss`: f64 values in
  // the queue's memory, or none. All of them must be finite.
  void inspect(int64_t step, std::span<const OwnedUnit> units, device::View loss = {});
  // Updates weights and state of the units last inspected.
  void apply(int64_t step);
  // Returns the report of a step. All numbers are zero on the plan back end.
  const Report& report(int64_t step);
  // The decision of the last inspection, f32 [3] in the queue's memory (kernels::Clip::decided).
  // Everything else that changes with a step reads it too.
  device::View decision() const { return inspection_.decision(); }

  // The factor that the gradients to inspect must contain, f32 [1] in the queue's memory. None
  // without a loss scale. Each inspection may change it.
  device::View loss_scale() const;
  // State of the loss scale: the scale, and the number of updates since it changed.
  struct ScaleState {
    double scale = 0, updates = 0;
  };
  ScaleState scale_state();
  void set_scale_state(const ScaleState& state);

  // The memory of all optimizer state, which is read to save and filled to restore. Besides it,
  // only the loss scale is kept from step to step.
  std::vector<shard::TensorSlice> state();

 private:
  // Factors of [optimizer] that hold for all parameters.
  struct Factors {
    double learning_rate, weight_decay;
    DecayForm decay_form;
  };
  // What decides about the gradients of a step.
  struct Limits {
    double clip_norm, drop_norm;
    std::unique_ptr<InfinityNorms> infinity;  // null: the size of gradients is their 2-norm
    std::optional<LossScaleOptions> scale;

    device::View largest() const { return infinity ? infinity->all() : device::View{}; }
  };
  struct Schedules {
    std::vector<Schedule> list;
    base::PerStep<std::vector<float>> values;  // of each schedule
  };
  // Sums over whole tensors.
  struct Sums {
    std::unique_ptr<CutSums> gradients;  // the sums that the method needs; squares come first
    std::unique_ptr<CutSums> measures;   // null if the method measures nothing
    std::unique_ptr<CutSums> norms;      // squares of weights and of updates
    device::Fetched norms_on_host;
  };
  // The memory that an inspection writes and the host fetches: f64 words.
  //   | norm | square of the gradient of each trained parameter | decision | loss scale |
  // The last two are f32 [3] in two words each.
  struct InspectionWords {
    device::Buffer memory, square_index_memory;
    device::View square_index;  // i32, by trained parameter: its square's index in sums_.gradients
    device::Fetched on_host;

    device::View norm() const { return memory.view(device::DType::f64).slice(0, 1); }
    device::View squares() const {
      return memory.view(device::DType::f64).slice(1, square_index.count);
    }
    device::View decision() const { return floats(0); }
    device::View loss_scale() const { return floats(1); }  // see op loss_scale
    device::View floats(int64_t which) const;
  };
  // The step that was inspected last.
  struct CurrentStep {
    std::vector<OwnedUnit> owned;     // by unit
    int64_t inspected = 0;            // the step, until it is applied
    std::vector<TensorStep> tensors;  // by parameter
    StepInfo info;
  };

  // Computes norms. `square(p)` returns the sum of squares of a parameter.
  template <class Square>
  void fill(Norms& norms, Square square);
  void make_inspection(const std::vector<int64_t>& gradient_widths);
  void begin(int64_t step);  // fills current_
  void decide(device::View loss);
  device::View weights(const Piece& piece) const;
  device::View gradient(const Piece& piece) const;
  kernels::Update update_of(const Piece& piece, device::View sums) const;

  shard::Fabric fabric_;
  Factors factors_;
  std::vector<ParameterPolicy> policies_;
  Schedules schedules_;
  std::unique_ptr<Method> method_;
  Pieces pieces_;
  std::vector<std::vector<int>> groups_;
  Sums sums_;
  Limits limits_;
  RowNorms row_norms_;
  CurrentStep current_;
  // sums of squares of weights that do not change in this step
  kernels::OpList<kernels::SquareSums> unchanged_;
  InspectionWords inspection_;
  Report report_;
};

}  // namespace optim
