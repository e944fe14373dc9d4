// SPDX-License-Identifier: Apache-2.0
// Group normalisation (torch.nn.GroupNorm) of images with channels last. The channels of an image
// form `groups` groups. All pixels and channels of a group share mean and biased variance, so the
// result of an image depends on that image alone. Scale and bias are numbers per channel.
//
// It shares loops over pixels with batch norm (batch_norm.hpp), for which each image is a group of
// rows with statistics of its own. A pass runs
//   BatchNormSums with an image as a part, GroupNormStatistics, BatchNormForward with an image as a
//   group, which reads the same mean and rstd for all channels of a group;
//   BatchNormBackwardSums, with an image as a part and as a group, GroupNormBackward, and
//   BatchNormGradients over the images of a slice.
#pragma once

#include "kernels/batch_norm.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

// Forms mean and rstd of groups of channels. Each channel gets the numbers of its group.
struct GroupNormStatistics {
  static constexpr Op op = Op::group_norm_statistics;
  View mean, rstd;  // f32 [images, columns]
  View sums;        // f64 [images, 2, columns]: of x and of x^2, over the rows of an image
  int64_t images = 1, rows = 0, columns = 0;  // rows: pixels of an image
  int64_t groups = 1;                         // columns is a multiple
  float eps = 1e-5f;
};

// dx = rstd * (g * scale - mean of g * scale - z * mean of g * scale * z), with z = (x - mean) *
// rstd and the means over a group's pixels and channels.
struct GroupNormBackward {
  static constexpr Op op = Op::group_norm_backward;
  View dx;               // [images, rows, columns], f32, bf16 or f16; may be dy
  View dy;               // [images, rows, columns], of dx's type: g if not `relu`
  View x;                // [images, rows, columns], of dx's type
  BatchNormValues norm;  // with mean and rstd [images, columns]
  View sums;             // f64 [images, 2, columns], from BatchNormBackwardSums: of g and of g * z
  int64_t images = 1, rows = 0, columns = 0, groups = 1;
  bool relu = false;  // g = 0 where norm(x) is not above 0
};

size_t cuda_scratch(const GroupNormBackward&);

template <class Args>
void check_group_sizes(const Args& a) {
  need_size(a.op, "images", a.images, 1);
  need_size(a.op, "rows", a.rows, 1);
  need_size(a.op, "columns", a.columns, 1);
  CHECK(a.groups > 0 && a.columns % a.groups == 0, "{}: {} columns in {} groups", name_of(a.op),
        a.columns, a.groups);
  need_view(a.op, "sums", a.sums, DType::f64, {a.images, 2, a.columns});
}

inline void check(const GroupNormStatistics& a) {
  check_group_sizes(a);
  need_view(a.op, "mean", a.mean, DType::f32, {a.images, a.columns});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.images, a.columns});
  CHECK(a.eps >= 0, "{}: eps is {}", name_of(a.op), a.eps);
}
inline Cost cost(const GroupNormStatistics& a) {
  return {2 * a.sums.count, a.mean.bytes() + a.rstd.bytes() + a.sums.bytes()};
}

inline void check(const GroupNormBackward& a) {
  check_group_sizes(a);
  need_activation(a.op, "dx", a.dx, {a.images, a.rows, a.columns});
  need_view(a.op, "dy", a.dy, a.dx.type, {a.images, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.dx.type, {a.images, a.rows, a.columns});
  need_view(a.op, "mean", a.norm.mean, DType::f32, {a.images, a.columns});
  need_view(a.op, "rstd", a.norm.rstd, DType::f32, {a.images, a.columns});
  allow_view(a.op, "scale", a.norm.scale, DType::f32, {a.columns});
  allow_view(a.op, "bias", a.norm.bias, DType::f32, {a.columns});
}
inline Cost cost(const GroupNormBackward& a) {
  return {6 * a.x.count, a.dx.bytes() + a.dy.bytes() + a.x.bytes() + a.sums.bytes()};
}

}  // namespace kernels
