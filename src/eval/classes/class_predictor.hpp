// SPDX-License-Identifier: Apache-2.0
// Predictions of classifiers: the logits of all classes, and the most likely classes with their
// probabilities.
#pragma once

#include "eval/classes/class_pass.hpp"
#include "eval/predictor.hpp"

namespace eval {

// pass: computes scores only. probe: name of the probe that ranks the classes, or "" if the model
// has one classifier.
std::unique_ptr<Predictor> make_class_predictor(ClassPass& pass, const std::string& probe,
                                                int64_t top_k);

}  // namespace eval
