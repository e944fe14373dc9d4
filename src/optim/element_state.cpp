// SPDX-License-Identifier: Apache-2.0
#include "optim/element_state.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/bf16_value.hpp"

namespace optim {
namespace {
constexpr int64_t kAlign = 32;  // elements; tensors then start on a 64-byte line in either type
}

ElementState::ElementState(const shard::Fabric& fabric, device::DType type,
                           const std::function<bool(int)>& keeps)
    : layout_(&fabric.layout),
      mesh_(&fabric.mesh),
      type_(type),
      parts_(fabric.layout.parameters().size()) {
  const shard::Layout& layout = fabric.layout;
  for (const shard::Unit& unit : layout.units())
    for (int p : unit.parameters) parts_[size_t(p)].kept = unit.trained() && keeps(p);
  int64_t longest = 0;
  for (int f = 0; f < layout.fsdp(); ++f) {
    int64_t length = 0;
    for (int u = 0; u < int(layout.units().size()); ++u)
      for (const shard::Segment& s :
           layout.segments(u, layout.owned_begin(u, f), layout.owned_count(u))) {
        Part& part = parts_[size_t(s.parameter)];
        if (!part.kept) continue;
        if (f == fabric.mesh.fsdp_index) {
          part.begin = s.begin;
          part.end = s.end;
          part.offset = length;
        }
        length += base::round_up(s.count(), kAlign);
      }
    longest = std::max(longest, length);
  }
  buffer_ =
      device::Buffer(fabric.queue.kind(), fabric.ledger, "optimizer", longest * size_of(type));
}

device::View ElementState::of(const Piece& piece) const {
  const Part& part = parts_[size_t(piece.parameter)];
  CHECK(part.kept && piece.begin >= part.begin && piece.end <= part.end, "no state for [{}, {})",
        piece.begin, piece.end);
  return buffer_.view(type_).slice(part.offset + piece.begin - part.begin, piece.count());
}

void ElementState::list(const std::string& prefix, int parameter,
                        std::vector<shard::TensorSlice>& out) const {
  const Part& part = parts_[size_t(parameter)];
  const shard::Parameter& p = layout_->parameters()[size_t(parameter)];
  shard::TensorSlice slice{prefix + "/" + p.path, type_, p.shape, {}, true};
  if (part.begin < part.end) {
    device::View v = buffer_.view(type_).slice(part.offset, part.end - part.begin);
    slice.parts.push_back({part.begin, part.end, v.data});
  }
  slice.writes = writes_state(*mesh_, layout_->units()[size_t(p.unit)].strategy.optimizer_sharded);
  out.push_back(std::move(slice));
}

bool writes_state(const comm::Mesh& mesh, bool sharded) {
  return mesh.replica_index == 0 && (sharded || mesh.fsdp_index == 0);
}

float state_coefficient(double value, device::DType type) {
  using namespace kernels::loops;
  return type == device::DType::bf16 ? to_float(round_to_bf16(float(value))) : float(value);
}

}  // namespace optim
