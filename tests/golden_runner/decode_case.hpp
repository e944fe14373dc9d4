// SPDX-License-Identifier: Apache-2.0
// Compares cached decoding with the recorded one: group `decode` of predict.h5.
#pragma once

#include <functional>

#include "case_file.hpp"
#include "compare.hpp"
#include "decode_pass.hpp"
#include "step/engine.hpp"

namespace golden {

// Makes the pass that compare_decoding needs, for EngineOptions::passes, where it comes second.
step::MakePass make_decode_pass(const CaseFile& predict);
inline constexpr step::PassId kDecode{1};

// Feeds the recorded tokens to the engine's decoder and compares logits and caches. images: [n,
// height, width, 3], at least as many as the file decodes. Every rank decodes all of them, so that
// gathers of weights meet. `tolerance` returns the tolerance of a set. Collective.
void compare_decoding(const CaseFile& predict, const std::vector<float>& images,
                      step::Engine& engine,
                      const std::function<double(const std::string& set)>& tolerance,
                      Report& report);

}  // namespace golden
