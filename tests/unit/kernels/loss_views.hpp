// SPDX-License-Identifier: Apache-2.0
// The views of the ops of heads and of losses over embeddings, for mirror.hpp.
#pragma once

#include <vector>

#include "kernels/activation.hpp"
#include "kernels/barlow_terms.hpp"
#include "kernels/contrastive.hpp"
#include "kernels/keep_rows.hpp"
#include "kernels/l2_normalize.hpp"
#include "kernels/loss_state.hpp"
#include "kernels/memory_bank.hpp"
#include "kernels/nce_terms.hpp"
#include "kernels/pair_sigmoid.hpp"
#include "kernels/sinkhorn.hpp"
#include "kernels/transpose_positions.hpp"
#include "kernels/view_xent.hpp"

namespace rig {

using Views = std::vector<device::View*>;
inline Views views(kernels::L2NormalizeForward& a) {
  return {&a.y, &a.x, &a.inverse, &a.row_scale};
}
inline Views views(kernels::L2NormalizeBackward& a) {
  return {&a.dx, &a.dy, &a.x, &a.inverse, &a.row_scale, &a.drow_scale};
}
inline Views views(kernels::ActivationForward& a) { return {&a.y, &a.x}; }
inline Views views(kernels::ActivationBackward& a) { return {&a.dx, &a.dy, &a.x}; }
inline Views views(kernels::TransposePositions& a) { return {&a.y, &a.x}; }
inline Views views(kernels::ContrastiveTerms& a) { return {&a.terms, &a.loss, &a.logits}; }
inline Views views(kernels::ContrastiveGradient& a) { return {&a.logits, &a.terms, &a.loss_scale}; }
inline Views views(kernels::BarlowTerms& a) {
  return {&a.products, &a.loss, &a.diagonal, &a.off, &a.loss_scale};
}
inline Views views(kernels::ColumnTotals& a) { return {&a.totals, &a.x}; }
inline Views views(kernels::FiniteMaximum& a) { return {&a.maximum, &a.x}; }
inline Views views(kernels::SinkhornStart& a) { return {&a.q, &a.scores, &a.maxima}; }
inline Views views(kernels::SinkhornScale& a) { return {&a.q, &a.totals, &a.targets}; }
inline Views views(kernels::SoftTargets& a) { return {&a.y, &a.x, &a.centre}; }
inline Views views(kernels::ViewXent& a) {
  return {&a.loss, &a.gradient, &a.scores, &a.targets, &a.loss_scale};
}
inline Views views(kernels::MovingMean& a) { return {&a.mean, &a.totals}; }
inline Views views(kernels::KeepRows& a) {
  return {&a.kept, &a.state, &a.before, &a.index, &a.decided};
}
inline Views views(kernels::QueuePlaces& a) { return {&a.index, &a.place}; }
inline Views views(kernels::BankScores& a) { return {&a.scores, &a.x, &a.bank, &a.index}; }
inline Views views(kernels::BankGradient& a) { return {&a.dx, &a.d, &a.bank, &a.index}; }
inline Views views(kernels::BankUpdate& a) { return {&a.bank, &a.x, &a.index}; }
inline Views views(kernels::NceTotals& a) { return {&a.total, &a.logits}; }
inline Views views(kernels::NceConstant& a) { return {&a.constant, &a.total}; }
inline Views views(kernels::NceTerms& a) {
  return {&a.logits, &a.loss, &a.constant, &a.loss_scale};
}
inline Views views(kernels::PairSigmoid& a) {
  return {&a.cosines, &a.t, &a.b, &a.loss, &a.dt, &a.db, &a.loss_scale};
}

}  // namespace rig
