// SPDX-License-Identifier: Apache-2.0
// Predictions of classifiers: the logits of all classes, and the most likely classes with their
// probabilities.
#pragma once

#include "eval/predictor.hpp"

namespace eval {

const Predicts& class_predictions();

}  // namespace eval
