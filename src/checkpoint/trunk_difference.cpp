// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/trunk_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace checkpoint {
namespace {

using Shape = std::vector<int64_t>;

// A number of a trunk that a key of the deck sets, read off the shapes of tensors.
struct Number {
  const char *key, *what;  // "model.trunk.depth", "depth"
  int64_t value;
};

// Blocks of each stage of a ResNet, and the channels after the first convolution.
struct ResnetForm {
  Shape blocks = Shape(4, 0);
  int64_t convolutions = 0, channels = 0;

  void add(const std::string& path, const Shape& shape) {
    int64_t stage = 0, block = 0;
    if (path == "trunk/conv1.weight" && !shape.empty()) channels = shape[0];
    if (std::sscanf(path.c_str(), "trunk/layer%ld.%ld.", &stage, &block) != 2) return;
    if (stage < 1 || stage > 4 || block < 0) return;
    blocks[size_t(stage - 1)] = std::max(blocks[size_t(stage - 1)], block + 1);
    const int64_t three = path.ends_with(".conv3.weight") ? 3 : 2;
    convolutions = std::max(convolutions, three);
  }
  bool found() const { return channels > 0; }
  std::vector<Number> numbers() const {
    return {{"model.trunk.depth", "depth",
             2 + convolutions * (blocks[0] + blocks[1] + blocks[2] + blocks[3])},
            {"model.trunk.width", "width", channels}};
  }
  std::string text() const {
    return fmt::format("a ResNet-{} of {} blocks, {} channels after conv1", numbers()[0].value,
                       fmt::join(blocks, "+"), channels);
  }
};

struct VitForm {
  int64_t depth = 0, width = 0, mlp = 0, heads = 0, patch = 0;

  void add(const std::string& path, const Shape& shape) {
    int64_t block = 0;
    if (path == "encoder/embedding/kernel" && shape.size() == 4) {
      patch = shape[0];
      width = shape[3];
    }
    if (std::sscanf(path.c_str(), "encoder/Transformer/encoderblock_%ld/", &block) != 1) return;
    depth = std::max(depth, block + 1);
    if (path.ends_with("/MlpBlock_0/Dense_0/kernel") && shape.size() == 2) mlp = shape[1];
    if (path.ends_with("/query/kernel") && shape.size() == 3) heads = shape[1];
  }
  bool found() const { return patch > 0; }
  std::vector<Number> numbers() const {
    return {{"model.trunk.depth", "depth", depth},
            {"model.trunk.width", "width", width},
            {"model.trunk.mlp", "mlp", mlp},
            {"model.trunk.heads", "heads", heads},
            {"model.trunk.patch", "patch", patch}};
  }
  std::string text() const {
    std::vector<std::string> all;
    for (const Number& n : numbers()) all.push_back(fmt::format("{} {}", n.what, n.value));
    return fmt::format("a ViT of {}", fmt::join(all, ", "));
  }
};

template <class Form>
std::string difference(const std::map<std::string, Shape>& file, const std::vector<Wanted>& model) {
  Form theirs, ours;
  for (const auto& [path, shape] : file) theirs.add(path, shape);
  for (const Wanted& w : model) ours.add(w.path, w.shape);
  if (!theirs.found() || !ours.found() || theirs.text() == ours.text()) return "";
  const std::vector<Number> of_file = theirs.numbers(), of_model = ours.numbers();
  size_t i = 0;
  while (i + 1 < of_model.size() && of_model[i].value == of_file[i].value) ++i;
  return fmt::format(
      "{} = {}: the file holds {}, this model has {}: make model.trunk the same, or take another "
      "file",
      of_model[i].key, of_model[i].value, theirs.text(), ours.text());
}

}  // namespace

std::string trunk_difference(const std::map<std::string, Shape>& file,
                             const std::vector<Wanted>& model) {
  const bool decodes = std::any_of(model.begin(), model.end(),
                                   [](const Wanted& w) { return w.path.starts_with("decoder/"); });
  if (decodes) return "";
  const std::string of_resnets = difference<ResnetForm>(file, model);
  return of_resnets.empty() ? difference<VitForm>(file, model) : of_resnets;
}

}  // namespace checkpoint
