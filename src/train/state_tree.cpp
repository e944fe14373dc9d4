// SPDX-License-Identifier: Apache-2.0
#include "train/state_tree.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/text.hpp"

namespace train {
namespace {

constexpr const char* kRow = "{:<80} {:<18} {:<5} {:<14} {:>16} {:>16}\n";

int64_t elements_of(const shard::TensorSlice& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t held_by_this_rank(const shard::TensorSlice& tensor) {
  int64_t elements = 0;
  for (const shard::TensorSlice::Part& part : tensor.parts) elements += part.end - part.begin;
  return elements;
}

std::string shape_of(const shard::TensorSlice& tensor) {
  std::vector<std::string> sizes;
  for (const int64_t size : tensor.shape) sizes.push_back(std::to_string(size));
  return fmt::format("[{}]", base::join(sizes, ","));
}

// `held`: elements that all ranks together hold.
std::string placement_of(double held, int64_t elements, int ranks) {
  if (ranks == 1) return "one rank";
  const auto copies = int64_t(std::llround(held / double(std::max<int64_t>(elements, 1))));
  if (copies == ranks) return "replicated";
  return copies == 1 ? "sharded" : fmt::format("sharded x {}", copies);
}

// "/params/encoder/..." -> "/params"
std::string root_of(const std::string& name) { return name.substr(0, name.find('/', 1)); }

// Returns lines like "ranks 0 to 3   1,234", one for neighbours that hold equal numbers of bytes.
std::string by_rank(const std::vector<std::string>& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    size_t end = i;
    while (end < bytes.size() && bytes[end] == bytes[i]) ++end;
    const std::string who = end - i == 1 ? fmt::format("rank {}", i)
                                         : fmt::format("each of ranks {} to {}", i, end - 1);
    out += fmt::format("{:<80} {:>16}\n", who, base::with_commas(std::stoll(bytes[i])));
    i = end;
  }
  return out;
}

}  // namespace

std::string state_tree(comm::Comm& world, const checkpoint::State& state) {
  std::vector<const shard::TensorSlice*> tensors;
  for (const shard::TensorSlice& tensor : state.tensors) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, [](const shard::TensorSlice* t) { return t->name; });
  std::vector<double> held;
  int64_t own_bytes = 0;
  for (const shard::TensorSlice* tensor : tensors) {
    held.push_back(double(held_by_this_rank(*tensor)));
    own_bytes += held_by_this_rank(*tensor) * device::size_of(tensor->type);
  }
  world.all_reduce({held.data(), device::DType::f64, int64_t(held.size())}).wait();
  std::string out =
      fmt::format(fmt::runtime(kRow), "Tensor", "Shape", "Type", "Placement", "Bytes", "Per rank");
  std::map<std::string, int64_t> roots;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const shard::TensorSlice& tensor = *tensors[i];
    const int64_t elements = elements_of(tensor), size = device::size_of(tensor.type);
    roots[root_of(tensor.name)] += elements * size;
    out += fmt::format(fmt::runtime(kRow), tensor.name, shape_of(tensor),
                       device::name_of(tensor.type), placement_of(held[i], elements, world.size()),
                       base::with_commas(elements * size),
                       base::with_commas(int64_t(held[i] * double(size)) / world.size()));
  }
  out += "\n";
  for (const char* own : {"format", "step", "write_completed"})
    out += fmt::format("@{:<79} number\n", own);
  for (const auto& [name, value] : state.numbers) out += fmt::format("@{:<79} number\n", name);
  for (const auto& [name, text] : state.texts)
    out += fmt::format("@{:<79} text of {} bytes\n", name, base::with_commas(int64_t(text.size())));
  out += "\n";
  for (const auto& [root, bytes] : roots)
    out += fmt::format("{:<80} {:>16}\n", "all of " + root, base::with_commas(bytes));
  return out + by_rank(world.gather_text(std::to_string(own_bytes)));
}

}  // namespace train
