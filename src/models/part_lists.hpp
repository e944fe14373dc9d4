// SPDX-License-Identifier: Apache-2.0
// The parts of models that a deck names, and the measures of models, for --list and --describe.
#pragma once

#include <string>
#include <vector>

namespace models {

struct NamedPart {
  std::string name, doc;
};

std::vector<NamedPart> head_parts();   // head.cpp
std::vector<NamedPart> trunk_parts();  // trunk.cpp
// The losses: what a model minimises. Each text names the kinds of models that have the loss.
std::vector<NamedPart> loss_parts();
// The measures of all models. NAME stands for the names of probes.
std::vector<NamedPart> measure_parts();

}  // namespace models
