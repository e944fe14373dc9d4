// SPDX-License-Identifier: Apache-2.0
// Models. A model declares its blocks, parameters, fields and measures, and makes passes that run
// on them; it sees no mesh, no optimizer, no file. To add one: a pair of files here and a row in
// registry.cpp.
#pragma once

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
#include "nn/context.hpp"
#include "shard/parameter.hpp"

namespace models {

using device::View;
using kernels::Write;

// What backward computes again instead of keeping: nothing, GELU, the hidden layer of MLPs, whole
// blocks.
enum class Recompute { none, gelu, mlp, block };
inline constexpr std::pair<const char*, Recompute> kRecomputeNames[] = {
    {"none", Recompute::none},
    {"gelu", Recompute::gelu},
    {"mlp", Recompute::mlp},
    {"block", Recompute::block}};

// A buffer that the model wants filled for each micro-batch.
struct InputSpec {
  std::string name;
  device::DType type;
  int64_t per_example;  // elements
};
// The host fills and reads one of two views, ops read the other, which the engine brings up to
// date. Both are the same memory on the CPU.
struct Input {
  View host, device;
  Input() = default;
  Input(View both) : host(both), device(both) {}
  Input(View host_view, View device_view) : host(host_view), device(device_view) {}
};
using Inputs = std::map<std::string, Input>;

// A field of the data that `prepare` reads: each example holds exactly this.
struct FeatureSpec {
  device::DType type;
  std::vector<int64_t> shape;
  std::string key;              // of the deck, where the shape comes from
  bool optional = false;        // the data may lack it
  int64_t below = 0;            // values must be smaller; 0: no limit
  std::string limit_key{};      // of the deck, which says so
  std::optional<double> pad{};  // the value that fills unused places
  bool pixels = false;          // may come as bytes, see take_bytes
};

// What the trainer hands to `prepare`: arrays of the data pipeline, by feature name.
struct HostBatch {
  std::map<std::string, View> features;  // [n, ...], as Model::features() names them
  int64_t examples = 0;
  int64_t first_position = 0;           // global position of the first example
  std::shared_ptr<const void> owner{};  // keeps the arrays alive, where the caller does not
};

// A number that a step reports, formed from the model's sums over the examples of the step. The
// engine, the metric files and the console carry every measure and know none by name; the first one
// is the loss.
struct Measure {
  static constexpr int kExamples = -1;

  std::string name, unit, doc;  // of the metric; the unit is "1" for plain numbers
  int column = 0;               // of the sums
  int divided_by = kExamples;   // another column, or all examples of the step
  bool on_console = true;

  // NaN where the divisor is 0. sums: f64 [sum_columns()] of the whole step.
  double value(const double* sums, int64_t examples) const {
    const double divisor = divided_by == kExamples ? double(examples) : sums[divided_by];
    return divisor > 0 ? sums[column] / divisor : std::numeric_limits<double>::quiet_NaN();
  }
};

// One way to run a model on a micro-batch. The object holds whatever lives from the first op of a
// pass to its last, so that two passes can be under way at once; the model itself does not change.
// The engine measures each pass on paper, owns its input buffers and runs it.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string name() const = 0;  // passes of one name are alike
  // The buffers that the pass wants filled for each micro-batch. Passes may share a name of a
  // buffer, never at the same time.
  virtual std::vector<InputSpec> inputs() const = 0;
};

// A pass without gradients, which a capability of the model offers (caption_scorer.hpp).
class ForwardPass : public Pass {
 public:
  // Runs the pass on paper.
  virtual void plan(nn::Context& ctx, const Inputs& inputs) = 0;
};

class TrainPass : public Pass {
 public:
  // Fills the input buffers on the host. Decisions about examples are drawn from `stream` by global
  // position.
  virtual void prepare(const HostBatch& batch, base::Stream stream, const Inputs& into) const = 0;
  // Forward and backward; the gradient of sum over examples of loss / global_batch goes to
  // ctx.gradients. sums: f64 [ctx.slices, Model::sum_columns()], overwritten, in the queue's
  // memory: the host waits for nothing. Tables first, then all ops in one ctx.repeat.
  virtual void run(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) = 0;
  // Passes may have smaller shapes than those that a pass on paper finds largest: how many sets of
  // shapes there are. A context on paper says which one is meant, 0 being the largest.
  virtual int64_t shape_sets(int64_t /*batch*/, int64_t /*slices*/) const { return 1; }
};

class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<std::string> blocks() const = 0;
  virtual std::vector<shard::Parameter> parameters() const = 0;
  // Paths of position tables [1, g * g, width] with one row per image patch: resampled when initial
  // weights come from another image size.
  virtual std::vector<std::string> patch_tables() const { return {}; }
  // The fields of the data that passes read: checked against the data.
  virtual std::map<std::string, FeatureSpec> features() const = 0;
  // Returns the training loss of a uniform guess: all answers equally likely. NaN if the loss has
  // no such value.
  virtual double uniform_loss() const { return std::numeric_limits<double>::quiet_NaN(); }

  // Fields of pixels come as bytes; `range` says which value each byte stands for. Called before
  // anything else, if at all.
  virtual void take_bytes(const kernels::PixelRange& range) = 0;

  // A training pass sums so many columns over the examples of a slice, in f64; column 0 is the
  // loss. The step's sums are added along the tree; nothing is divided before.
  virtual int64_t sum_columns() const = 0;
  // The numbers that are reported, formed from these sums. The first is the loss: column 0 over all
  // examples.
  virtual std::vector<Measure> measures() const = 0;

  virtual std::unique_ptr<TrainPass> make_train_pass() const = 0;
  // Returns why arguments of ops differ from pass to pass whatever the shapes, so that no training
  // pass can be repeated; "" if they do not.
  virtual std::string changing_arguments() const { return ""; }

  // Multiply-adds x 2 of all products of one example's forward pass, padding counted: what MFU is
  // counted in.
  virtual int64_t forward_flops() const = 0;
  // FLOPs of the first product, whose input needs no gradient.
  virtual int64_t input_flops() const = 0;
  // Of a step per example: each product forward, and once for the gradient of each operand.
  int64_t train_flops() const { return 3 * forward_flops() - input_flops(); }
};

// ---- registry

struct ModelOptions {
  std::string kind;
  std::shared_ptr<config::Table::Variant> options;
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
