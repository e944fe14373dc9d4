// SPDX-License-Identifier: Apache-2.0
// State with one number per element (momentum, second moment). It is packed, and kept only for the
// elements that this rank owns.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "optim/method.hpp"

namespace optim {

class ElementState {
 public:
  ElementState() = default;
  // `keeps(parameter)`: true for the trainable tensors that have this state. All buffers have the
  // length that the rank with the most elements needs. A plan made for one rank then holds for all.
  ElementState(const shard::Fabric& fabric, device::DType type,
               const std::function<bool(int)>& keeps);

  bool keeps(int parameter) const { return !parts_.empty() && parts_[size_t(parameter)].kept; }
  device::View of(const Piece& piece) const;
  // Adds one logical tensor, named PREFIX/PATH, to `out`.
  void list(const std::string& prefix, int parameter, std::vector<shard::TensorSlice>& out) const;

 private:
  struct Part {
    bool kept = false;
    int64_t begin = 0, end = 0;  // owned elements of the tensor; begin == end: none
    int64_t offset = 0;          // element `begin` in the buffer
  };
  const shard::Layout* layout_ = nullptr;
  const comm::Mesh* mesh_ = nullptr;
  device::DType type_ = device::DType::f32;
  std::vector<Part> parts_;  // by parameter
  device::Buffer buffer_;
};

// True if this rank writes its copy of a tensor. All ranks of the mesh hold a copy, or, if it is
// sharded, all ranks of one fsdp index.
bool writes_state(const comm::Mesh& mesh, bool sharded);

// A coefficient that multiplies stored state is rounded to the type of the state, as the published
// code does.
float state_coefficient(double value, device::DType type);

}  // namespace optim
