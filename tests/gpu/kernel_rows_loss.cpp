// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/narrow.hpp"
#include "base/random.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/softmax_xent.hpp"
#include "row_list.hpp"

namespace gpu_check {

using namespace kernels;

std::vector<int32_t> drawn(int64_t count, int64_t end, const char* name) {
  std::vector<int32_t> out;
  const base::Stream stream(2, name);
  for (int64_t i = 0; i < count; ++i)
    out.push_back(int32_t(stream.uniform64(uint64_t(i)) * double(end)));
  return out;
}

// Captions are short, so a fifth of the positions are targets. Chunks of them are padded.
void add_loss(std::vector<Row>& rows, const Model& m) {
  const int64_t text = m.batch * m.text, d = m.width, v = m.vocabulary,
                targets = std::min(text, base::round_up(text / 5, 128));
  add_linear(rows, "logits", targets, d, v, 1, {.bias = true, .wide = true});
  std::vector<int32_t> index;
  for (int64_t i = 0; i < targets; ++i) index.push_back(int32_t(i * text / targets));
  add(rows, fmt::format("{} of {} x {}", targets, text, d), 1, [=](Memory& t) {
    return GatherRows{t.zeros(targets * d, kNarrow),
                      t.normals(text * d, kNarrow),
                      t.integers(index),
                      targets,
                      d,
                      text};
  });
  add(rows, fmt::format("{} of {} x {}", targets, text, d), 1, [=](Memory& t) {
    return ScatterRows{t.zeros(text * d, kWide),
                       t.normals(targets * d, kWide),
                       t.integers(index),
                       targets,
                       d,
                       text};
  });
  add(rows, fmt::format("{} x {}", targets, v), 1, [=](Memory& t) {
    return SoftmaxXent{.logits = t.normals(targets * v, kWide),
                       .labels = t.integers(drawn(targets, v, "labels")),
                       .row_scale = t.filled(targets, 1),
                       .loss = t.zeros(targets, kWide),
                       .rows = targets,
                       .columns = v,
                       .rounded = t.zeros(targets * v, kNarrow)};
  });
}

}  // namespace gpu_check
