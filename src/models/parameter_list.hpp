// SPDX-License-Identifier: Apache-2.0
// Collects a model's parameters in the order in which they are declared.
#pragma once

#include <cmath>

#include "nn/group_norm.hpp"
#include "nn/layers.hpp"
#include "shard/parameter.hpp"

namespace models {

class ParameterList {
 public:
  int begin_block(const std::string& name) {
    blocks_.push_back(name);
    if (counts_levels_) ++level_;
    return int(blocks_.size()) - 1;
  }
  // Between these calls each new block is a level of a trunk (optimizer.layer_decay).
  void begin_levels() { counts_levels_ = true; }
  void end_levels() {
    counts_levels_ = false;
    level_ = -1;
  }
  // Adds to the latest block; returns the parameter's number.
  int add(const std::string& path, std::vector<int64_t> shape, shard::Init init) {
    add_fans(path, shape, init);
    parameters_.push_back({.path = path,
                           .shape = std::move(shape),
                           .init = init,
                           .block = int(blocks_.size()) - 1,
                           .level = level_});
    return int(parameters_.size()) - 1;
  }
  // Adds an operand of matrix products, or a bias that is added to an activation.
  int add_operand(const std::string& path, std::vector<int64_t> shape, shard::Init init) {
    int parameter = add(path, std::move(shape), init);
    parameters_.back().operand = true;
    return parameter;
  }
  // Adds a state, whose next value passes write (shard::StateStore).
  int add_state(const std::string& path, std::vector<int64_t> shape, shard::Init init) {
    const int parameter = add(path, std::move(shape), init);
    parameters_.back().kind = shard::ParameterKind::state;
    return parameter;
  }
  // Adds a state by rows: a step writes few of its rows, and names them first (StateStore::touch).
  int add_state_by_rows(const std::string& path, std::vector<int64_t> shape, shard::Init init) {
    const int parameter = add_state(path, std::move(shape), init);
    parameters_.back().by_rows = true;
    return parameter;
  }
  // Adds a constant, which is saved and restored like all other parameters.
  int add_frozen(const std::string& path, std::vector<int64_t> shape, shard::Init init) {
    const int parameter = add(path, std::move(shape), init);
    parameters_.back().kind = shard::ParameterKind::frozen;
    return parameter;
  }
  // Turns all trained parameters so far into constants.
  void freeze() {
    for (shard::Parameter& p : parameters_)
      if (p.trained()) p.kind = shard::ParameterKind::frozen;
  }
  // Makes the optimizer scale the rows of a parameter to unit length after each update.
  void keep_unit_rows(int parameter) { parameters_[size_t(parameter)].unit_rows = true; }
  static shard::Init zeros() { return {}; }
  static shard::Init ones() { return {.kind = shard::Init::Kind::ones}; }
  static shard::Init constant(double value) {
    return {.kind = shard::Init::Kind::constant, .value = value};
  }
  static shard::Init normal(double std) { return {.kind = shard::Init::Kind::normal, .std = std}; }
  static shard::Init lecun(int64_t fan_in) {
    return {.kind = shard::Init::Kind::lecun_normal, .fan_in = fan_in};
  }
  static shard::Init xavier(int64_t fan_in, int64_t fan_out) {
    return {.kind = shard::Init::Kind::xavier_uniform, .fan_in = fan_in, .fan_out = fan_out};
  }
  // Uniform in +-limit.
  static shard::Init uniform(double limit) {
    return {.kind = shard::Init::Kind::uniform, .value = limit};
  }
  // The default of torch's convolutions and products (ssl.md 1.5): uniform in +-1 / sqrt(fan_in).
  static shard::Init uniform_fan_in(int64_t fan_in) {
    return uniform(1 / std::sqrt(double(fan_in)));
  }
  static shard::Init unit_rows(shard::Init init) {
    init.unit_rows = true;
    return init;
  }

  nn::LayerNorm layer_norm(const std::string& path, int64_t width, bool bias) {
    nn::LayerNorm n{.width = width};
    n.scale = add(path + "/scale", {width}, ones());
    if (bias) n.bias = add(path + "/bias", {width}, zeros());
    return n;
  }
  nn::LayerScale layer_scale(const std::string& path, int64_t width, double value) {
    return {.scale = add(path + "/scale", {width}, constant(value)), .width = width};
  }
  // Adds a layer norm with torch's names.
  nn::LayerNorm torch_layer_norm(const std::string& path, int64_t width) {
    nn::LayerNorm n{.width = width};
    n.scale = add(path + ".weight", {width}, ones());
    n.bias = add(path + ".bias", {width}, zeros());
    return n;
  }
  // Adds a batch norm with torchvision's names (ssl.md 1.3). Its running values are states.
  nn::BatchNorm batch_norm(const std::string& path, int64_t width, bool zero_scale = false) {
    nn::BatchNorm n{.width = width};
    n.scale = add(path + ".weight", {width}, zero_scale ? zeros() : ones());
    n.bias = add(path + ".bias", {width}, zeros());
    n.running_mean = add_state(path + ".running_mean", {width}, zeros());
    n.running_variance = add_state(path + ".running_var", {width}, ones());
    n.batches = add_state(path + ".num_batches_tracked", {}, zeros());
    return n;
  }
  // Adds a group norm with the same names, as published programs do. It has no states.
  nn::GroupNorm group_norm(const std::string& path, int64_t width, bool zero_scale = false) {
    nn::GroupNorm n{.width = width};
    n.scale = add(path + ".weight", {width}, zero_scale ? zeros() : ones());
    n.bias = add(path + ".bias", {width}, zeros());
    return n;
  }
  // Adds the hidden and the output product of an MLP: Xavier kernels, biases N(0, 1e-6^2).
  nn::Mlp mlp(const std::string& path, int64_t width, int64_t hidden, bool bias) {
    nn::Mlp m;
    m.hidden = {.in = width, .out = hidden};
    m.output = {.in = hidden, .out = width};
    m.hidden.kernel = add_operand(path + "/Dense_0/kernel", {width, hidden}, xavier(width, hidden));
    if (bias) m.hidden.bias = add_operand(path + "/Dense_0/bias", {hidden}, normal(1e-6));
    m.output.kernel = add_operand(path + "/Dense_1/kernel", {hidden, width}, xavier(hidden, width));
    if (bias) m.output.bias = add(path + "/Dense_1/bias", {width}, normal(1e-6));
    return m;
  }
  // Adds the gate of an MLP, which makes it SwiGLU.
  void add_gate(const std::string& path, nn::Mlp& m) {
    const int64_t in = m.hidden.in, out = m.hidden.out;
    m.gate = {.in = in, .out = out};
    m.gate.kernel = add_operand(path + "/gate/kernel", {in, out}, xavier(in, out));
    if (m.hidden.bias >= 0) m.gate.bias = add_operand(path + "/gate/bias", {out}, normal(1e-6));
  }
  // Adds query [width, heads, d], key and value [memory_width, heads, d], out [heads, d, width].
  // `init(in, out)` gets flattened fans.
  template <class InitOf>
  nn::Attention attention(const std::string& path, int64_t width, int64_t memory_width,
                          int64_t heads, bool bias, InitOf init) {
    nn::Attention a;
    a.heads = heads;
    int64_t d = width / heads;
    auto project = [&](const std::string& name, int64_t in) {
      nn::Linear l{.in = in, .out = width};
      l.kernel = add_operand(path + "/" + name + "/kernel", {in, heads, d}, init(in, width));
      if (bias) l.bias = add_operand(path + "/" + name + "/bias", {heads, d}, zeros());
      return l;
    };
    a.query = project("query", width);
    a.key = project("key", memory_width);
    a.value = project("value", memory_width);
    a.output = {.in = width, .out = width};
    a.output.kernel = add_operand(path + "/out/kernel", {heads, d, width}, init(width, width));
    if (bias) a.output.bias = add(path + "/out/bias", {width}, zeros());
    return a;
  }

  const std::vector<std::string>& blocks() const { return blocks_; }
  const std::vector<shard::Parameter>& parameters() const { return parameters_; }

 private:
  // Fills in the fans of a product, for rules of [[model.init]], unless `init` has them. A product
  // is a kernel [..., out], or a weight [out, in, ...] with torch's name.
  static void add_fans(const std::string& path, const std::vector<int64_t>& shape,
                       shard::Init& init) {
    const bool kernel = path.ends_with("/kernel");
    if (shape.size() < 2 || !(kernel || path.ends_with(".weight"))) return;
    int64_t count = 1;
    for (const int64_t d : shape) count *= d;
    if (init.fan_in == 0) init.fan_in = count / (kernel ? shape.back() : shape[0]);
    if (init.fan_out == 0) init.fan_out = kernel ? shape.back() : count / shape[1];
  }

  std::vector<std::string> blocks_;
  std::vector<shard::Parameter> parameters_;
  bool counts_levels_ = false;
  int level_ = -1;  // of the latest block
};

}  // namespace models
