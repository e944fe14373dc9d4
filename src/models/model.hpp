// Models. A model declares its blocks, parameters and input buffers and runs forward, backward and evaluation on them; it sees
// no mesh, no optimizer, no file. To add one: a pair of files here and a row in registry.cpp.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "kernels/loss_sums.hpp"
#include "kernels/patchify.hpp"
#include "nn/context.hpp"
#include "shard/parameter.hpp"

namespace models {

using device::View;
using kernels::Write;

// What backward computes again instead of keeping: nothing, GELU, the hidden layer of MLPs, whole blocks.
enum class Recompute { none, gelu, mlp, block };

// A buffer that the model wants filled for each micro-batch.
struct InputSpec {
  std::string name;
  device::DType type;
  int64_t per_example;               // elements
};
// The host fills and reads one of two views, ops read the other, which the engine brings up to date. Both are the same memory on
// the CPU.
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
  std::string key;                   // of the deck, where the shape comes from
  bool optional = false;             // the data may lack it
};

// What the trainer hands to `prepare`: arrays of the data pipeline, by feature name.
struct HostBatch {
  std::map<std::string, View> features;   // "image" f32 or u8 [n, H, W, 3], "labels" i32 [n, L], optional "label_masks" f32 [n, L]
  int64_t examples = 0;
  int64_t first_position = 0;             // global position of the first example
};
// Decisions of a step that are drawn per global position; tests inject recorded ones.
struct Draws {
  std::vector<uint8_t> parallel;          // [n]
  std::vector<int32_t> decoder_ids;       // [n * L]
};

// Sums over the examples of one slice; nothing is divided. One row per slice and micro-batch, added along the tree.
struct Sums : kernels::LossColumns {
  double v[count] = {};
};

class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<std::string> blocks() const = 0;
  virtual std::vector<shard::Parameter> parameters() const = 0;
  // Paths of position tables [1, g * g, width] with one row per image patch: resampled when initial weights come from another
  // image size.
  virtual std::vector<std::string> patch_tables() const { return {}; }
  virtual std::vector<InputSpec> inputs() const = 0;
  // The features that `prepare` takes ("image" -> f32 [H, W, 3], "labels" -> i32 [L]): checked against the data.
  virtual std::map<std::string, FeatureSpec> features() const = 0;
  // Labels must be smaller than this; `limit_key` is the key of the deck that says so.
  virtual int64_t label_limit() const = 0;
  virtual const char* limit_key() const = 0;
  // Returns the training loss of a uniform guess: all answers equally likely. NaN if the loss has no such value.
  virtual double uniform_loss() const { return std::numeric_limits<double>::quiet_NaN(); }

  // Images come as bytes, which stand for what this makes of them: called first, if at all.
  virtual void take_bytes(const kernels::PixelRange& range) = 0;

  // Host work: fills the input buffers, on the host. `draws`: recorded decisions, or nullptr to draw from `stream`.
  // train = false prepares evaluation (always autoregressive).
  virtual void prepare(const HostBatch& batch, bool train, base::Stream stream, const Draws* draws, const Inputs& into) const = 0;

  // Forward and backward; the gradient of sum over examples of loss / global_batch goes to ctx.gradients. sums: f64
  // [ctx.slices, Sums::count], overwritten; in the queue's memory: the host waits for nothing. Tables first, then all ops in one
  // ctx.repeat.
  virtual void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) = 0;
  // Why arguments of ops differ from pass to pass whatever the shapes, so that no pass can be repeated; empty where they do not.
  virtual std::string changing_arguments() const { return ""; }
  // Forward only: summed negative log-likelihood and number of weighted tokens per example, f64 [batch] each.
  virtual void evaluate(nn::Context& ctx, const Inputs& inputs, double* nll, double* weight) = 0;

  // Passes may have smaller shapes than those that a pass on paper finds largest: how many sets of shapes there are. A context
  // on paper says which one is meant, 0 being the largest.
  virtual int64_t shape_sets(int64_t /*batch*/, int64_t /*slices*/) const { return 1; }

  // Multiply-adds x 2 of all products of one example's forward pass, padding counted: what MFU is counted in.
  virtual int64_t forward_flops() const = 0;
  // Of them, those of the product whose input is data: nobody wants its gradient.
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
struct LossOptions {
  double label_smoothing = 0;
  int64_t pad_id = 0;
};
struct MemoryOptions {
  std::string recompute = "none";
  int64_t logits_mb = 1024;
  void bind(config::Table& t);
  Recompute policy() const;
};

struct Registered {
  std::string name, doc;
  std::shared_ptr<config::Table::Variant> (*make_options)();
  std::unique_ptr<Model> (*make)(const config::Table::Variant& options, const LossOptions& loss, const MemoryOptions& memory);
};
const std::vector<Registered>& registry();
std::unique_ptr<Model> make_model(const ModelOptions& options, const LossOptions& loss, const MemoryOptions& memory);

}  // namespace models
