// SPDX-License-Identifier: Apache-2.0
// The queue of the op tests. With --kind=cuda its memory is a GPU's: `run` copies an op's operands
// to the GPU, between guard bands, runs the op there, and copies them back. So the same cases test
// both back ends.
#pragma once

#include <vector>

#include "device/memory.hpp"
#include "device/queue.hpp"
#include "kernels/adafactor.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/add_noise.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/attention.hpp"
#include "kernels/average_pool.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/cast.hpp"
#include "kernels/class_xent.hpp"
#include "kernels/clip_gradient.hpp"
#include "kernels/convolution.hpp"
#include "kernels/copy_columns.hpp"
#include "kernels/decode_attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/ema_update.hpp"
#include "kernels/embedding.hpp"
#include "kernels/example_sums.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/group_norm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/layer_scale.hpp"
#include "kernels/lion_update.hpp"
#include "kernels/loss_scale.hpp"
#include "kernels/loss_sums.hpp"
#include "kernels/max_abs.hpp"
#include "kernels/max_pool.hpp"
#include "kernels/mix_images.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/patchify.hpp"
#include "kernels/rank_hits.hpp"
#include "kernels/rotate_heads.hpp"
#include "kernels/row_product.hpp"
#include "kernels/scale_pixels.hpp"
#include "kernels/softmax_xent.hpp"
#include "kernels/square_sums.hpp"
#include "kernels/swiglu.hpp"
#include "kernels/target_counts.hpp"
#include "kernels/target_xent.hpp"
#include "kernels/token_mean.hpp"
#include "kernels/trust.hpp"
#include "kernels/unit_rows.hpp"
#include "loss_views.hpp"

namespace rig {

using device::Kind;

Kind kind();  // cpu, or cuda with --kind=cuda
inline bool on_cuda() { return kind() == Kind::cuda; }

// Records that an op ran: with --kind=cuda every op of the table must run.
void note_op(kernels::Op op);

struct TestQueue : device::Queue {
  explicit TestQueue(int threads = 1, bool fixed_order = false)
      : Queue(rig::kind(), threads, fixed_order) {}
};

// Returns every view of an op's arguments.
using Views = std::vector<device::View*>;
inline Views views(kernels::Gemm& a) {
  return {&a.c, &a.a, &a.b, &a.bias, &a.residual, &a.gelu, &a.gelu_of, &a.sums};
}
inline Views views(kernels::ColumnSum& a) { return {&a.out, &a.x}; }
inline Views views(kernels::LayerNormForward& a) {
  return {&a.y, &a.mean, &a.rstd, &a.x, &a.scale, &a.bias};
}
inline Views views(kernels::LayerNormBackward& a) {
  return {&a.dx, &a.dscale, &a.dbias, &a.dy, &a.x, &a.mean, &a.rstd, &a.scale, &a.rounded, &a.sums};
}
inline Views views(kernels::LayerScaleForward& a) {
  return {&a.y, &a.residual, &a.x, &a.scale, &a.factor};
}
inline Views views(kernels::LayerScaleBackward& a) {
  return {&a.dx, &a.dscale, &a.dy, &a.x, &a.scale, &a.factor};
}
inline Views views(kernels::GeluForward& a) { return {&a.y, &a.x}; }
inline Views views(kernels::GeluBackward& a) { return {&a.dx, &a.dy, &a.x}; }
inline Views views(kernels::SwigluForward& a) { return {&a.y, &a.gate, &a.value}; }
inline Views views(kernels::SwigluBackward& a) {
  return {&a.dgate, &a.dvalue, &a.dy, &a.gate, &a.value};
}
inline Views views(kernels::RotateHeads& a) { return {&a.x, &a.table}; }
inline Views views(kernels::AttentionForward& a) {
  return {
      &a.o, &a.lse, &a.q, &a.k, &a.v, &a.shape.flags, &a.shape.query_offsets, &a.shape.key_offsets};
}
inline Views views(kernels::AttentionBackward& a) {
  return {&a.dq,
          &a.dk,
          &a.dv,
          &a.d_o,
          &a.q,
          &a.k,
          &a.v,
          &a.o,
          &a.lse,
          &a.shape.flags,
          &a.shape.query_offsets,
          &a.shape.key_offsets};
}
inline Views views(kernels::DecodeAttention& a) {
  return {&a.o, &a.q, &a.k, &a.v, &a.index, &a.first};
}
inline Views views(kernels::RowProduct& a) { return {&a.c, &a.a, &a.b, &a.bias, &a.residual}; }
inline Views views(kernels::EmbeddingForward& a) { return {&a.y, &a.ids, &a.table, &a.positions}; }
inline Views views(kernels::EmbeddingBackward& a) { return {&a.dtable, &a.dy, &a.ids}; }
inline Views views(kernels::Patchify& a) { return {&a.patches, &a.image}; }
inline Views views(kernels::ScalePixels& a) { return {&a.y, &a.x}; }
inline Views views(kernels::SoftmaxXent& a) {
  return {&a.logits, &a.labels, &a.row_scale, &a.loss_scale, &a.loss, &a.rounded};
}
inline Views views(kernels::ClassXent& a) {
  return {&a.logits, &a.labels, &a.others, &a.shares, &a.loss, &a.ranks, &a.loss_scale};
}
inline Views views(kernels::TargetXent& a) {
  return {&a.logits, &a.targets, &a.weights, &a.loss, &a.hits, &a.loss_scale};
}
inline Views views(kernels::TargetCounts& a) { return {&a.counts, &a.values}; }
inline Views views(kernels::CountWeights& a) { return {&a.weights, &a.counts, &a.factor}; }
inline Views views(kernels::MixImages& a) { return {&a.y, &a.x, &a.shares, &a.boxes}; }
inline Views views(kernels::TokenMeanForward& a) { return {&a.y, &a.x}; }
inline Views views(kernels::TokenMeanBackward& a) { return {&a.dx, &a.dy}; }
inline Views views(kernels::ConvolutionForward& a) { return {&a.y, &a.x, &a.weight}; }
inline Views views(kernels::ConvolutionBackwardData& a) { return {&a.dx, &a.dy, &a.weight}; }
inline Views views(kernels::ConvolutionBackwardWeights& a) { return {&a.dw, &a.x, &a.dy}; }
inline Views views(kernels::MaxPoolForward& a) { return {&a.y, &a.place, &a.x}; }
inline Views views(kernels::MaxPoolBackward& a) { return {&a.dx, &a.dy, &a.place}; }
inline Views views(kernels::AveragePoolForward& a) { return {&a.y, &a.x}; }
inline Views views(kernels::AveragePoolBackward& a) { return {&a.dx, &a.dy}; }
inline Views views(kernels::GatherRows& a) { return {&a.y, &a.x, &a.index}; }
inline Views views(kernels::ScatterRows& a) { return {&a.y, &a.x, &a.index}; }
inline Views views(kernels::Add& a) { return {&a.y, &a.a, &a.b}; }
inline Views views(kernels::AddTable& a) { return {&a.y, &a.x, &a.table}; }
inline Views views(kernels::Copy& a) { return {&a.y, &a.x}; }
inline Views views(kernels::CopyColumns& a) { return {&a.y, &a.x}; }
inline Views views(kernels::Cast& a) { return {&a.y, &a.x}; }
inline Views views(kernels::Fill& a) { return {&a.y}; }
inline Views views(kernels::Dropout& a) { return {&a.y, &a.x}; }
inline Views views(kernels::SquareSums& a) { return {&a.sum, &a.x}; }
inline Views views(kernels::AddSums& a) { return {&a.y, &a.a, &a.b}; }
inline Views views(kernels::AdafactorSums& a) { return {&a.total, &a.over_x, &a.over_y, &a.g}; }
inline Views views(kernels::AdafactorFactors& a) {
  return {&a.v_over_x, &a.v_over_y, &a.factor_over_x, &a.factor_over_y,
          &a.over_x,   &a.over_y,   &a.clip.decided};
}
inline Views views(kernels::Update& a) {
  return {&a.weights, &a.gradient, &a.sums, &a.clip.decided, &a.inner.trust};
}
inline Views views(kernels::AdafactorScaling& a) {
  return {&a.v, &a.factor_over_x, &a.factor_over_y};
}
inline Views both(Views a, const Views& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline Views views(kernels::AdafactorUpdate& a) {
  return both(both(views(a.update), views(a.scaling)), {&a.momentum, &a.rms.square});
}
inline Views views(kernels::AdafactorRms& a) {
  return both({&a.sum, &a.gradient, &a.clip.decided}, views(a.scaling));
}
inline Views views(kernels::AdamwUpdate& a) {
  return both(views(a.update), {&a.mu, &a.nu, &a.nu_max, &a.centre});
}
inline Views views(kernels::LionUpdate& a) { return both(views(a.update), {&a.mu}); }
inline Views views(kernels::TrustSums& a) {
  return {&a.sums, &a.weights, &a.gradient, &a.clip.decided};
}
inline Views views(kernels::TrustRatio& a) { return {&a.trust, &a.sums}; }
inline Views views(kernels::MaxAbs& a) { return {&a.largest, &a.x}; }
inline Views views(kernels::RowSquares& a) { return {&a.sums, &a.x}; }
inline Views views(kernels::UnitRows& a) { return {&a.x, &a.sums, &a.decided}; }
inline Views views(kernels::AddNoise& a) { return {&a.y, &a.x}; }
inline Views views(kernels::MomentumUpdate& a) { return both(views(a.update), {&a.trace}); }
inline Views views(kernels::ApplyUpdate& a) { return views(a.update); }
inline Views views(kernels::ClipGradient& a) {
  return {&a.decision, &a.norm, &a.squares, &a.places, &a.must_be_finite, &a.found, &a.largest};
}
inline Views views(kernels::EmaUpdate& a) { return {&a.average, &a.values, &a.decided}; }
inline Views views(kernels::LossScale& a) { return {&a.decision, &a.norm, &a.state, &a.largest}; }
inline Views views(kernels::LossSums& a) {
  return {&a.sums, &a.loss, &a.first, &a.weights, &a.flags};
}
inline Views views(kernels::RankHits& a) { return {&a.hits, &a.ranks}; }
inline Views views(kernels::ExampleSums& a) { return {&a.sums, &a.values}; }
inline Views with_values(Views all, kernels::BatchNormValues& v) {
  for (device::View* view : {&v.mean, &v.rstd, &v.scale, &v.bias}) all.push_back(view);
  return all;
}
inline Views views(kernels::BatchNormSums& a) { return {&a.sums, &a.x}; }
inline Views views(kernels::BatchNormStatistics& a) {
  return {&a.mean, &a.rstd, &a.moments, &a.sums, &a.running_mean, &a.running_variance};
}
inline Views views(kernels::BatchNormRunning& a) {
  return {&a.mean, &a.variance, &a.batches, &a.moments};
}
inline Views views(kernels::BatchNormForward& a) {
  return with_values(with_values({&a.y, &a.x, &a.shortcut}, a.norm), a.shortcut_norm);
}
inline Views views(kernels::BatchNormBackwardSums& a) {
  return with_values({&a.sums, &a.g, &a.dy, &a.add, &a.y, &a.x}, a.norm);
}
inline Views views(kernels::BatchNormBackward& a) {
  return with_values({&a.dx, &a.dy, &a.x, &a.sums}, a.norm);
}
inline Views views(kernels::BatchNormGradients& a) { return {&a.dscale, &a.dbias, &a.sums}; }
inline Views views(kernels::GroupNormStatistics& a) { return {&a.mean, &a.rstd, &a.sums}; }
inline Views views(kernels::GroupNormBackward& a) {
  return with_values({&a.dx, &a.dy, &a.x, &a.sums}, a.norm);
}

// Copies host memory of some views to the GPU, and redirects the views to the copies. Views may
// overlap; their copies then overlap equally.
class Mirror {
 public:
  Mirror(const Views& shown, device::Queue& queue);  // copies, and redirects the views
  // Copies back, and fails the test if a guard band was written.
  void bring_back();

 private:
  struct Range {
    char *begin, *end;
    size_t shift;  // offset of the copy in its buffer, which keeps the alignment
    device::Buffer buffer;
  };
  device::Ledger ledger_;
  device::Queue& queue_;
  std::vector<Range> ranges_;
};

template <class Args>
void run(const Args& args, TestQueue& queue) {
  note_op(Args::op);
  if (!on_cuda()) return kernels::run(args, queue);
  check(args);
  Args there = args;
  Mirror mirror(views(there), queue);
  kernels::run(there, queue);
  mirror.bring_back();
}

}  // namespace rig
