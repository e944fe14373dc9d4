// SPDX-License-Identifier: Apache-2.0
// State with one number per element (momentum, second moment): kept only for the elements that this
// rank owns, packed.
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
  // `keeps(parameter)`: which trainable tensors have this state. The buffer is as long as on the
  // rank that keeps most, so that every rank holds the same number of bytes and a plan made for one
  // speaks for all.
  ElementState(const shard::Fabric& fabric, device::DType type,
               const std::function<bool(int)>& keeps);

  bool keeps(int parameter) const { return !places_.empty() && places_[size_t(parameter)].kept; }
  device::View of(const Piece& piece) const;
  // One logical tensor, named PREFIX/PATH.
  void list(const std::string& prefix, int parameter, std::vector<shard::TensorSlice>& out) const;

 private:
  struct Place {
    bool kept = false;
    int64_t begin = 0, end = 0;  // owned elements of the tensor; begin == end: none
    int64_t offset = 0;          // of `begin` in the buffer
  };
  const shard::Layout* layout_ = nullptr;
  const comm::Mesh* mesh_ = nullptr;
  device::DType type_ = device::DType::f32;
  std::vector<Place> places_;  // by parameter
  device::Buffer buffer_;
};

// Does this rank write its copy of a tensor that all ranks of the mesh (or: of one fsdp index)
// hold?
bool writes_state(const comm::Mesh& mesh, bool sharded);

// "f32" | "bf16", as the keys *_type name it.
device::DType state_type(const std::string& name);
// A coefficient that multiplies stored state is rounded to the type of the state, as the published
// code does.
float state_coefficient(double value, device::DType type);

}  // namespace optim
