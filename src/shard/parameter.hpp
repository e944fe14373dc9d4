// SPDX-License-Identifier: Apache-2.0
// Parameters and units (design 3.3). A parameter is a logical tensor with big_vision's path and
// shape. A unit is one flat buffer of parameters of one block. The parameters of a unit share
// strategy, kind and optimizer state per element, because equal parts of a unit must carry equal
// state. Only this folder knows units, padding and which rank holds what. Files and messages know
// logical tensors and element ranges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "comm/mesh.hpp"
#include "config/table.hpp"
#include "device/types.hpp"

namespace shard {

// Elements of a line, 64 bytes of f32. Every tensor and every cut of a unit starts on a new line.
constexpr int64_t kLine = 16;

// Initial distribution (cappa.md 1.7).
struct Init {
  enum class Kind {
    zeros,
    ones,
    constant,
    normal,
    lecun_normal,
    xavier_uniform,
    uniform
  } kind = Kind::zeros;
  double value = 0;                 // constant; uniform: the limit on both sides of 0
  double std = 0;                   // normal
  int64_t fan_in = 0, fan_out = 0;  // lecun_normal (fan_in), xavier_uniform
  double scale = 1;                 // lecun_normal, xavier_uniform: a factor of all values
  bool unit_rows = false;           // each drawn row is divided by its length
};

// trained: the optimizer changes it. frozen: nothing changes it. state: passes write its next
// value, which becomes the value when a step is applied (StateStore). Running statistics, queues,
// centres and numbers of a loss are state. All three kinds are sharded, saved and restored alike,
// below /params: one name space, like in the files of other frameworks.
enum class ParameterKind { trained, frozen, state };

struct Parameter {
  std::string path;  // "encoder/Transformer/encoderblock_0/LayerNorm_0/scale"
  std::vector<int64_t> shape;
  Init init;
  int block = 0;   // index of the model's block
  int level = -1;  // in a trunk: its block, counted from the images on
  ParameterKind kind = ParameterKind::trained;
  // True for an operand of matrix products and for a bias of activations: both are also needed in
  // the type of products (precision.compute).
  bool operand = false;
  // True for a matrix whose rows are brought to unit length after each applied update, if it is
  // trained. Rules that drop its gradient for a time do not change this.
  bool unit_rows = false;
  // True if a step writes few rows of this state, and names them first (StateStore::touch).
  bool by_rows = false;
  int64_t element_state_bytes = 0;  // optimizer state per element
  // filled by the layout
  int64_t size = 0;  // elements
  int unit = -1;
  int64_t offset = 0;  // first element in the unit

  int64_t count() const;
  bool trained() const { return kind == ParameterKind::trained; }
};

// A strategy pair (replicated+replicated = data parallel, replicated+sharded = ZeRO-1,
// sharded+sharded = FSDP).
struct Strategy {
  bool parameters_sharded = false;
  bool optimizer_sharded = false;
  bool operator==(const Strategy&) const = default;
};

enum class Placement { inherited, replicated, sharded };  // inherited: the default of [sharding]
inline constexpr std::pair<const char*, Placement> kPlacementNames[] = {
    {"", Placement::inherited},
    {"replicated", Placement::replicated},
    {"sharded", Placement::sharded}};

struct ShardingRule {
  std::string match;
  Placement parameters = Placement::inherited, optimizer = Placement::inherited;
  void bind(config::Table& t);
};
struct ShardingOptions {
  Placement parameters = Placement::replicated, optimizer = Placement::replicated;
  int64_t prefetch = 1;
  double min_size_to_shard_mb = 0;
  std::vector<ShardingRule> rules;
  void bind(config::Table& t);
  // Returns the strategy of a parameter with this many elements: replicated if it is too small to
  // shard.
  Strategy strategy_of(const std::string& path, int64_t elements) const;
  // Returns the strategy of a large parameter. The first full match wins. Throws
  // Error(Exit::config) for sharded parameters with a replicated optimizer.
  Strategy strategy_of(const std::string& path) const;
};

// Part of a parameter inside a range of a unit: elements [begin, end) of the logical, flattened
// tensor.
struct Segment {
  int parameter = 0;
  int64_t begin = 0, end = 0;
  // element `begin`, counted from the start of the range asked for
  int64_t offset = 0;
  int64_t count() const { return end - begin; }
};

struct Unit {
  std::string name;  // block name, plus "#2", "#3", ... for further units of the block
  int block = 0;
  Strategy strategy;
  ParameterKind kind = ParameterKind::trained;
  bool by_rows = false;  // its parameters are
  int64_t element_state_bytes = 0;
  std::vector<int> parameters;  // in the order of their offsets
  int64_t length = 0;           // elements, padded to a multiple of `cuts`
  // Number of equal cuts of the unit: `slices` at determinism level "mesh", the fsdp size at level
  // "run". Norms and optimizer sums are formed per cut and added along a fixed binary tree over the
  // cuts. They do not depend on which rank holds which cut.
  int64_t cuts = 1;
  int64_t cut_length() const { return length / cuts; }
  bool trained() const { return kind == ParameterKind::trained; }
};

// All parameters of a model and their places in units; the same on every rank.
class Layout {
 public:
  // `cuts`: see Unit; must be a multiple of fsdp. Blocks are named by
  // `block_names[parameter.block]`.
  Layout(std::vector<Parameter> parameters, std::vector<std::string> block_names,
         const ShardingOptions& options, int fsdp, int64_t cuts);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  const std::vector<std::vector<int>>& units_of_block() const { return units_of_block_; }
  int fsdp() const { return fsdp_; }
  int find(const std::string& path) const;  // index, or -1
  int64_t total_elements() const;

  // Elements of the unit whose optimizer state fsdp rank `f` keeps: all if the optimizer is
  // replicated.
  int64_t owned_begin(int unit, int f) const;
  int64_t owned_count(int unit) const;
  // Number of cuts in the owned range: cuts / fsdp if the optimizer is sharded, else all.
  int64_t owned_cuts(int unit) const;
  // The parts of parameters within elements [begin, begin + count) of the unit.
  std::vector<Segment> segments(int unit, int64_t begin, int64_t count) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<std::vector<int>> units_of_block_;
  int fsdp_;
};

// One rank's part of a logical tensor, for checkpoints: it shows no units, padding or ranks.
struct TensorSlice {
  // "/params/encoder/pos_embedding", "/optimizer/momentum/..."
  std::string name;
  device::DType type = device::DType::f32;
  std::vector<int64_t> shape;  // of the whole tensor ({} = scalar)
  struct Part {
    int64_t begin = 0, end = 0;  // flattened logical elements
    void* data = nullptr;        // memory of this rank
  };
  std::vector<Part> parts;  // empty: this rank holds no part
  // True on exactly one of the ranks that hold these parts: that rank writes them.
  bool writes = true;

  device::View view(const Part& part) const { return {part.data, type, part.end - part.begin}; }
};

}  // namespace shard
