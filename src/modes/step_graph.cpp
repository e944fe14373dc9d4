// SPDX-License-Identifier: Apache-2.0
#include "modes/step_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/span.hpp"
#include "base/text.hpp"

namespace modes {
namespace {

// Collects the spans and exchanges of this process. Only one collector exists at a time.
class Collector {
 public:
  void begin(std::string_view name, int64_t number, base::SpanKind kind) {
    if (kind == base::SpanKind::op) {
      op_ = name;
      return;
    }
    path_.push_back(number == base::Span::kNoNumber ? std::string(name)
                                                    : fmt::format("{} {}", name, number));
    closed_ = true;
  }
  void end(base::SpanKind kind, int64_t flops, int64_t bytes) {
    if (kind != base::SpanKind::op) {
      path_.pop_back();
      closed_ = true;
      return;
    }
    Work& work = open_work();
    auto op_here = std::find_if(work.ops.begin(), work.ops.end(),
                                [&](const Op& known) { return known.name == op_; });
    if (op_here == work.ops.end()) op_here = work.ops.insert(op_here, {op_, 0, 0, 0});
    Op& op = *op_here;
    ++op.calls;
    op.flops += flops;
    op.bytes += bytes;
  }
  void exchange_begins(int64_t number, std::string_view text, int64_t bytes) {
    exchanges_[number] = {std::string(text), bytes, int64_t(works_.size()) - 1, {}};
    closed_ = true;
  }
  void waited_for(int64_t number) {
    // The work that begins next needs it.
    if (const auto known = exchanges_.find(number); known != exchanges_.end())
      known->second.needed_by.push_back(int64_t(works_.size()));
    closed_ = true;
  }
  std::string dot(const std::string& title) const;

 private:
  struct Op {
    std::string name;
    int64_t calls, flops, bytes;
  };
  struct Work {
    std::string path;
    std::vector<Op> ops;
  };
  struct Exchange {
    std::string text;
    int64_t bytes = 0, after = 0;  // the last work before it; -1: none
    std::vector<int64_t> needed_by;
  };
  Work& open_work() {
    if (closed_ || works_.empty()) {
      std::string path;
      // The outermost span is the step.
      for (size_t i = 1; i < path_.size(); ++i) path += (i > 1 ? " > " : "") + path_[i];
      if (works_.empty() || works_.back().path != path || exchange_between())
        works_.push_back({path, {}});
      closed_ = false;
    }
    return works_.back();
  }
  // True if an exchange began, or was waited for, since the last op.
  bool exchange_between() const {
    for (const auto& [number, e] : exchanges_) {
      if (e.after == int64_t(works_.size()) - 1) return true;
      for (int64_t work : e.needed_by)
        if (work == int64_t(works_.size())) return true;
    }
    return false;
  }

  std::vector<std::string> path_;
  std::string op_;
  bool closed_ = true;
  std::vector<Work> works_;
  std::map<int64_t, Exchange> exchanges_;
};

// Makes a text safe between quotes of DOT.
std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string Collector::dot(const std::string& title) const {
  std::string out = fmt::format(
      "digraph step {{\n  label=\"{}\";\n  labelloc=t;\n  node [shape=box, fontname=monospace];\n"
      "  subgraph cluster_work {{\n    label=\"main thread\";\n",
      escaped(title));
  for (size_t i = 0; i < works_.size(); ++i) {
    std::string text = works_[i].path + "\\l";
    for (const Op& op : works_[i].ops)
      text +=
          fmt::format("  {}{}{}\\l", op.name, op.calls > 1 ? fmt::format(" x {}", op.calls) : "",
                      op.flops > 0 ? fmt::format("  {:.4g} MFLOP", double(op.flops) / 1e6)
                                   : fmt::format("  {:.4g} kB", double(op.bytes) / 1e3));
    out += fmt::format("    w{} [label=\"{}\"];\n", i, text);
  }
  for (size_t i = 1; i < works_.size(); ++i)
    out += fmt::format("    w{} -> w{} [weight=20];\n", i - 1, i);
  out +=
      "  }\n  subgraph cluster_exchange {\n    label=\"exchanges\";\n    node [style=rounded];\n";
  for (const auto& [number, e] : exchanges_)
    out += fmt::format("    e{} [label=\"{}\\l{} bytes\\l\"];\n", number, escaped(e.text),
                       base::with_commas(e.bytes));
  out += "  }\n";
  for (const auto& [number, e] : exchanges_) {
    if (e.after >= 0) out += fmt::format("  w{} -> e{} [style=dashed];\n", e.after, number);
    for (int64_t work : e.needed_by)
      if (work < int64_t(works_.size()))
        out += fmt::format("  e{} -> w{} [style=bold];\n", number, work);
  }
  return out + "}\n";
}

Collector* collector = nullptr;

constexpr base::SpanProfiler kCollects = {
    [](std::string_view name, int64_t number, base::SpanKind kind) {
      collector->begin(name, number, kind);
    },
    [](base::SpanKind kind, int64_t flops, int64_t bytes) { collector->end(kind, flops, bytes); },
    [](int64_t number, std::string_view text, int64_t bytes) {
      collector->exchange_begins(number, text, bytes);
    },
    [](int64_t number) { collector->waited_for(number); }};

}  // namespace

std::string graph_of_step(const std::string& title, const std::function<void()>& step) {
  Collector all;
  collector = &all;
  const base::SpanProfiler* before = base::span_profiler();
  base::set_span_profiler(&kCollects);
  step();
  base::set_span_profiler(before);
  collector = nullptr;
  return all.dot(title);
}

}  // namespace modes
