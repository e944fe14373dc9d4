// SPDX-License-Identifier: Apache-2.0
// One step as a graph for Graphviz: work in order, on the lanes where it runs, and what waits for
// what. The graph shows which work can hide each exchange.
#pragma once

#include <functional>
#include <string>

namespace modes {

// Runs `step` under the plan back end and returns its graph in the DOT language. Ops of one block
// between two exchanges are one node, added up by name. A dashed arrow leads from the work after
// which an exchange begins to the exchange, and a bold one to the work that needs its data. `title`
// names the deck and its mesh.
std::string graph_of_step(const std::string& title, const std::function<void()>& step);

}  // namespace modes
