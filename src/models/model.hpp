// SPDX-License-Identifier: Apache-2.0
// Models. A model declares its blocks, parameters, fields and measures, and makes passes that run
// on them. It sees no mesh, optimizer or file. To add one: a pair of files in a family's folder and
// a row in registry.cpp.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/registry.hpp"
#include "config/table.hpp"
#include "kernels/patchify.hpp"
#include "models/trunk_weights.hpp"
#include "nn/context.hpp"
#include "shard/init_rules.hpp"
#include "shard/parameter.hpp"

namespace models {

using device::View;
using kernels::Write;

// The part that backward computes again instead of keeping: nothing, GELU, the hidden layer of
// MLPs, whole blocks.
enum class Recompute { none, gelu, mlp, block };
inline constexpr std::pair<const char*, Recompute> kRecomputeNames[] = {
    {"none", Recompute::none},
    {"gelu", Recompute::gelu},
    {"mlp", Recompute::mlp},
    {"block", Recompute::block}};

// An input of a pass, new for each micro-batch.
struct InputSpec {
  std::string name;
  device::DType type;
  int64_t per_example;  // elements
  // The field of the batch that it is, unchanged; "": the pass makes it from the batch.
  std::string field{};
};
// Two views of an input. The host reads `host` and fills it unless it is a field. Ops read
// `device`, and the engine copies one to the other. On the CPU both are the same memory. A
// field lies in the batch itself, and no op may write to it.
struct Input {
  View host, device;
  Input() = default;
  Input(View both) : host(both), device(both) {}
  Input(View host_view, View device_view) : host(host_view), device(device_view) {}
};
using Inputs = std::map<std::string, Input>;

// A field of each example that a model reads.
struct FeatureSpec {
  device::DType type;
  std::vector<int64_t> shape;
  std::string key;              // key of the deck that sets the shape
  bool optional = false;        // the data may lack the field
  int64_t below = 0;            // values must be smaller; 0: no limit
  std::string limit_key{};      // key of the deck that sets this limit
  std::optional<double> pad{};  // the value of unused elements
  bool pixels = false;          // may come as bytes, see take_bytes
  std::string made_by{};        // ops that make such a field, for messages
};

// The examples of a pass: arrays of the data pipeline, by feature name.
struct HostBatch {
  std::map<std::string, View> features;  // [n, ...], by the names of Model::features()
  int64_t examples = 0;
  int64_t first_position = 0;           // global position of the first example
  std::shared_ptr<const void> owner{};  // keeps the arrays alive if the caller does not
};

// A number that a step reports, formed from the model's sums over the examples of the step. The
// engine, the metric files and the console handle all measures alike and know no names. The first
// one is the loss.
struct Measure {
  static constexpr int kExamples = -1;

  std::string name, unit, doc;  // the unit is "1" for plain numbers
  int column = 0;               // dividend: a column of the sums
  int divided_by = kExamples;   // divisor: another column, or the number of examples of the step
  bool on_console = true;

  // Returns the value, or NaN if the divisor is 0. sums: f64 [sum_columns()] of the whole step.
  double value(const double* sums, int64_t examples) const {
    const double divisor = divided_by == kExamples ? double(examples) : sums[divided_by];
    return divisor > 0 ? sums[column] / divisor : std::numeric_limits<double>::quiet_NaN();
  }
};

// One way to run a model on a micro-batch. The object holds everything that lives from the first op
// of a pass to its last. Two passes can be under way at once, because the model itself does not
// change. The engine measures each pass on the plan back end, owns its inputs and runs it.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string name() const = 0;  // passes of one name are alike
  // Returns what each micro-batch brings. Passes may share an input by its name, but not at the
  // same time.
  virtual std::vector<InputSpec> inputs() const = 0;
};

// A pass without gradients, which a capability of the model offers (caption_scorer.hpp).
class ForwardPass : public Pass {
 public:
  // Makes the inputs that are no fields of the batch, on the host, and checks the others' values.
  virtual void prepare(const HostBatch& /*batch*/, const Inputs& /*into*/) const {}
  // Runs the pass on the plan back end.
  virtual void plan(nn::Context& ctx, const Inputs& inputs) = 0;
};

class TrainPass : public Pass {
 public:
  // Does what ForwardPass::prepare does. `stream` gives the draws about an example by its global
  // position.
  virtual void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const = 0;
  // Runs forward and backward. The gradient of the sum over examples of loss / global_batch goes to
  // ctx.gradients. sums: f64 [ctx.slices, Model::sum_columns()], overwritten, in the queue's
  // memory; the host does not wait. A pass first makes its tables, then runs all ops in one
  // ctx.repeat.
  virtual void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) = 0;
  // Returns the number of sets of shapes that passes can have. On the plan back end ctx.shape_set
  // chooses one; set 0 has the largest shapes.
  virtual int64_t shape_sets(int64_t /*batch*/, int64_t /*slices*/) const { return 1; }
};

// A pass whose loss couples the examples of the whole step, as contrastive losses do. A step of one
// pass is begin_step, run, end_step. A step of several passes has two phases: embed for each of
// them, form_loss, then run for each. ctx.pass and ctx.passes tell them apart.
class CoupledPass : public TrainPass {
 public:
  // False if the loss reads only a pass's own examples and states. A step of several passes then
  // has one phase, too.
  virtual bool two_phases() const = 0;
  // Makes room in ctx.arena, until end_step, for what all passes of a step keep.
  virtual void begin_step(nn::Context& ctx, int64_t global_batch) = 0;
  // Runs forward and keeps the embeddings. Layers write the next values of their states.
  virtual void embed(nn::Context& ctx, const Inputs& inputs) = 0;
  // Forms loss and gradients of the embeddings of all passes, and the next state of the loss.
  virtual void form_loss(nn::Context& ctx) = 0;
  virtual void end_step(nn::Context& ctx) = 0;
};

// A second set of weights that follows the trained ones. Passes read it as nn::Context::teacher.
struct TeacherSpec {
  std::vector<int> blocks;  // blocks that passes run with this set
  // Returns the share of this set that the update at a step keeps.
  std::function<double(int64_t step, int64_t total_steps)> keep;
  bool own_states = true;  // false: it reads the running statistics of the trained layers
};

class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<std::string> blocks() const = 0;
  virtual std::vector<shard::Parameter> parameters() const = 0;
  // Returns what readers of weight files must know of the model's trunk.
  virtual TrunkWeights trunk_weights() const { return {}; }
  // Returns the fields that passes read, by name. They are checked against the data.
  virtual std::map<std::string, FeatureSpec> features() const = 0;
  // Returns the field "image" of passes that read one image of each example, such as embed passes.
  virtual FeatureSpec single_image() const { return features().at("image"); }
  // Returns the training loss of a uniform guess, to which all answers are equally likely. NaN if
  // the loss has no such value.
  virtual double uniform_loss() const { return std::numeric_limits<double>::quiet_NaN(); }

  // Switches fields of pixels to bytes; `range` maps each byte to its value. If it is called at
  // all, it must be the first call.
  virtual void take_bytes(const kernels::PixelRange& range) = 0;

  // Returns the number of columns that a training pass sums over the examples of a slice, in f64.
  // Column 0 is the loss. The step's sums are added along the tree, and only then divided.
  virtual int64_t sum_columns() const = 0;
  // Returns the numbers that are reported, formed from these sums. The first is the loss: column 0
  // over all examples.
  virtual std::vector<Measure> measures() const = 0;

  virtual std::unique_ptr<TrainPass> make_train_pass() const = 0;
  virtual std::optional<TeacherSpec> teacher() const { return {}; }
  // Returns the reason why arguments of ops differ between passes of equal shapes. Training passes
  // cannot be repeated then. "" if they do not differ.
  virtual std::string changing_arguments() const { return ""; }

  // Returns the FLOPs (2 per multiply-add) of all products of one example's forward pass, padding
  // included. MFU is based on them.
  virtual int64_t forward_flops() const = 0;
  // Returns the FLOPs of the first product, whose input needs no gradient.
  virtual int64_t input_flops() const = 0;
  // Returns the FLOPs of a step per example: each product once forward, and once for the gradient
  // of each operand.
  virtual int64_t train_flops() const { return 3 * forward_flops() - input_flops(); }
};

// ---- registry

struct ModelOptions {
  std::string kind;
  std::shared_ptr<config::Table::Variant> options;
  std::vector<shard::InitRule> init = {};
  void bind(config::Table& t);
};
struct MemoryOptions {
  Recompute recompute = Recompute::none;
  void bind(config::Table& t);
};

struct Registered {
  std::string name, doc;
  std::shared_ptr<config::Table::Variant> (*make_options)();
  std::unique_ptr<Model> (*make)(const config::Table::Variant& options,
                                 const MemoryOptions& memory);
};
const base::Registry<Registered>& registry();
std::unique_ptr<Model> make_model(const ModelOptions& options, const MemoryOptions& memory);

}  // namespace models
