// SPDX-License-Identifier: Apache-2.0
#include "shard/parameter.hpp"

#include <algorithm>
#include <span>

#include "base/narrow.hpp"
#include "base/pattern.hpp"

namespace shard {
namespace {

constexpr std::span<const std::pair<const char*, Placement>> kDefaults =
    std::span(kPlacementNames).subspan(1);

}  // namespace

int64_t Parameter::count() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

void ShardingRule::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("match", match,
        "regular expression that must match the whole parameter path; the first rule wins")
      .required()
      .on_resume(may);
  t.choice("parameters", parameters, kPlacementNames,
           "where the parameters live; empty = the default")
      .on_resume(may);
  t.choice("optimizer", optimizer, kPlacementNames,
           "where the optimizer state lives; empty = the default")
      .on_resume(may);
  if (std::string problem = base::pattern_problem(match); !problem.empty())
    t.error("match", problem);
}

void ShardingOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.choice("parameters", parameters, kDefaults,
           "replicated: every rank holds all; sharded: each fsdp rank holds its part")
      .on_resume(may);
  t.choice("optimizer", optimizer, kDefaults, "where optimizer state and f32 master weights live")
      .on_resume(may);
  t.key("prefetch", prefetch, "units gathered ahead of use (sharded parameters)")
      .min(0)
      .max(1)
      .on_resume(may);
  t.key("min_size_to_shard_mb", min_size_to_shard_mb,
        "parameters of at most this size in f32 stay replicated, with their optimizer state, even "
        "if a rule says sharded: sharding a small parameter saves little memory but adds messages; "
        "0 = none; 4 is the published default")
      .min(0)
      .unit("MiB")
      .on_resume(may);
  t.list("rule", rules, "per parameter, before the defaults above");
  if (parameters == Placement::sharded && optimizer == Placement::replicated)
    t.error("optimizer",
            "sharded parameters with a replicated optimizer: every rank would update weights that "
            "it does not hold; use optimizer = \"sharded\"");
}

Strategy ShardingOptions::strategy_of(const std::string& path) const {
  Placement p = parameters, o = optimizer;
  for (const ShardingRule& rule : rules)
    if (base::Pattern(rule.match).matches(path)) {
      if (rule.parameters != Placement::inherited) p = rule.parameters;
      if (rule.optimizer != Placement::inherited) o = rule.optimizer;
      break;
    }
  Strategy s{p == Placement::sharded, o == Placement::sharded};
  if (s.parameters_sharded && !s.optimizer_sharded)
    base::fail(base::Exit::config,
               "sharding: {} would have sharded parameters and a replicated optimizer; use "
               "optimizer = \"sharded\"",
               path);
  return s;
}

Strategy ShardingOptions::strategy_of(const std::string& path, int64_t elements) const {
  const Strategy s = strategy_of(path);
  return double(elements) * 4 <= min_size_to_shard_mb * 0x1p20 ? Strategy{} : s;
}

Layout::Layout(std::vector<Parameter> parameters, std::vector<std::string> block_names,
               const ShardingOptions& options, int fsdp, int64_t cuts)
    : parameters_(std::move(parameters)), units_of_block_(block_names.size()), fsdp_(fsdp) {
  CHECK(cuts >= fsdp && cuts % fsdp == 0, "{} cuts over {} ranks", cuts, fsdp);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    p.size = p.count();
    Strategy s = options.strategy_of(p.path, p.size);
    int found = -1;
    for (int u : units_of_block_.at(size_t(p.block)))
      if (const Unit& unit = units_[size_t(u)]; unit.strategy == s && unit.kind == p.kind &&
                                                unit.by_rows == p.by_rows &&
                                                unit.element_state_bytes == p.element_state_bytes)
        found = u;
    if (found < 0) {
      found = int(units_.size());
      units_of_block_[size_t(p.block)].push_back(found);
      size_t nth = units_of_block_[size_t(p.block)].size();
      units_.push_back({nth == 1 ? block_names[size_t(p.block)]
                                 : fmt::format("{}#{}", block_names[size_t(p.block)], nth),
                        p.block,
                        s,
                        p.kind,
                        p.by_rows,
                        p.element_state_bytes,
                        {},
                        0,
                        cuts});
    }
    Unit& u = units_[size_t(found)];
    p.unit = found;
    p.offset = base::round_up(u.length, kLine);
    u.length = p.offset + p.size;
    u.parameters.push_back(int(i));
  }
  for (Unit& u : units_) u.length = base::round_up(u.length, cuts * kLine);
}

int Layout::find(const std::string& path) const {
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].path == path) return int(i);
  return -1;
}

int64_t Layout::total_elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.size;
  return n;
}

int64_t Layout::owned_begin(int unit, int f) const {
  return units_.at(size_t(unit)).strategy.optimizer_sharded ? owned_count(unit) * f : 0;
}

int64_t Layout::owned_count(int unit) const {
  const Unit& u = units_.at(size_t(unit));
  return u.strategy.optimizer_sharded ? u.length / fsdp_ : u.length;
}

int64_t Layout::owned_cuts(int unit) const {
  const Unit& u = units_.at(size_t(unit));
  return u.strategy.optimizer_sharded ? u.cuts / fsdp_ : u.cuts;
}

std::vector<Segment> Layout::segments(int unit, int64_t begin, int64_t count) const {
  std::vector<Segment> out;
  for (int i : units_.at(size_t(unit)).parameters) {
    const Parameter& p = parameters_[size_t(i)];
    int64_t from = std::max(begin, p.offset), to = std::min(begin + count, p.offset + p.size);
    if (from < to) out.push_back({i, from - p.offset, to - p.offset, from - begin});
  }
  return out;
}

}  // namespace shard
