// SPDX-License-Identifier: Apache-2.0
#include "modes/parameter_rows.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace modes {
namespace {

constexpr size_t kColumns = 9;
using Cells = std::array<std::string, kColumns>;

std::string text_of(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

std::string distribution(const shard::Init& init) {
  using Kind = shard::Init::Kind;
  const std::string scale = init.scale == 1 ? "" : fmt::format(",scale={:.4g}", init.scale);
  switch (init.kind) {
    case Kind::zeros:
      return "zeros";
    case Kind::ones:
      return "ones";
    case Kind::constant:
      return fmt::format("constant({:g})", init.value);
    case Kind::normal:
      return fmt::format("normal(std={:.4g})", init.std);
    case Kind::lecun_normal:
      return fmt::format("lecun_normal(fan_in={}{})", init.fan_in, scale);
    case Kind::xavier_uniform:
      return fmt::format("xavier_uniform(fan_in={},fan_out={}{})", init.fan_in, init.fan_out,
                         scale);
    case Kind::uniform:
      return fmt::format("uniform(limit={:.4g})", init.value);
  }
  return "";
}

std::string text_of(const shard::Init& init) {
  return (init.unit_rows ? "unit_rows " : "") + distribution(init);
}

std::string text_of(const shard::Strategy& strategy) {
  if (strategy.parameters_sharded) return "sharded";
  return strategy.optimizer_sharded ? "zero1" : "replicated";
}

// Returns the optimizer's state tensors by the path of their parameter: "v_row [36] v_col [72]
// momentum".
std::map<std::string, std::string> state_texts(step::Engine& engine) {
  std::map<std::string, std::string> texts;
  const std::string root = "/optimizer/";
  for (const shard::TensorSlice& slice : engine.state()) {
    if (!slice.name.starts_with(root)) continue;
    const size_t kind_end = slice.name.find('/', root.size()),
                 name_end = slice.name.find('/', kind_end + 1);
    if (kind_end == std::string::npos || name_end == std::string::npos) continue;
    const std::string path = slice.name.substr(name_end + 1);
    const int parameter = engine.layout().find(path);
    if (parameter < 0) continue;
    std::string& text = texts[path];
    text += (text.empty() ? "" : " ") + slice.name.substr(kind_end + 1, name_end - kind_end - 1);
    if (slice.shape != engine.layout().parameters()[size_t(parameter)].shape)
      text += " " + text_of(slice.shape);
  }
  return texts;
}

std::string line_of(const Cells& cells, const std::array<size_t, kColumns>& widths) {
  std::string line;
  for (size_t c = 0; c < kColumns; ++c) line += fmt::format("{:<{}}  ", cells[c], widths[c]);
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

}  // namespace

std::vector<std::string> parameter_rows(const train::Recipe& recipe, step::Engine& engine) {
  const shard::Layout& layout = engine.layout();
  const optim::Policies policies =
      optim::resolve_policies(recipe.optimizer, recipe.schedule, layout.parameters());
  const std::map<std::string, std::string> states = state_texts(engine);
  std::vector<Cells> rows;
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const shard::Parameter& p = layout.parameters()[i];
    const optim::ParameterPolicy& policy = policies.parameters[i];
    const shard::Unit& unit = layout.units()[size_t(p.unit)];
    Cells row = {p.path,   text_of(p.shape),       text_of(p.init), "-", "-",
                 "frozen", text_of(unit.strategy), unit.name,       "-"};
    if (p.kind == shard::ParameterKind::state) row[5] = "state";
    if (p.trained()) {
      row[3] = fmt::format("{:g}", recipe.optimizer.weight_decay * policy.decay_scale);
      row[4] = fmt::format("{:g}", policy.lr_scale);
      row[5] = policies.schedules[size_t(policy.schedule)];
      if (const auto state = states.find(p.path); state != states.end()) row[8] = state->second;
    }
    rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end());
  rows.insert(rows.begin(), {"path", "shape", "init", "decay", "rate", "schedule", "placement",
                             "unit", "optimizer state"});
  std::array<size_t, kColumns> widths{};
  for (const Cells& row : rows)
    for (size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
  std::vector<std::string> lines;
  for (const Cells& row : rows) lines.push_back(line_of(row, widths));
  return lines;
}

}  // namespace modes
