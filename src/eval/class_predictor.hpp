// SPDX-License-Identifier: Apache-2.0
// Predictions of classifiers: the logits of all classes, and the most likely classes with their
// probabilities.
#pragma once

#include "eval/predictor.hpp"
#include "models/classify_pass.hpp"

namespace eval {

// probe: the one that ranks the classes, or "" if the model has one classifier.
std::unique_ptr<Predictor> make_class_predictor(models::LogitsPass& pass, const std::string& probe,
                                                int64_t top_k);

}  // namespace eval
