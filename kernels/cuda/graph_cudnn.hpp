// SPDX-License-Identifier: Apache-2.0
// Graphs of cuDNN's backend interface: tensors, the few operations that attention and convolutions
// need, and plans that run graphs. Failures throw base::Error with cuDNN's own text.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_library.hpp"
#include "kernels/convolution.hpp"

#define DNN(function) LIBRARY_FUNCTION("libcudnn.so.9", function)

namespace kernels::cudnn {

void check_status(cudnnStatus_t status, const char* what);

// Returns the handle of this process, set to the queue's stream.
cudnnHandle_t handle_on(device::Queue& queue);

// A descriptor of the backend interface. It is complete after `finish`. Copies share it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                  const void* values);
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const T& value) {
    return set(name, type, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& other);
  Descriptor& finish();

 private:
  std::shared_ptr<void> descriptor_;
};

using Four = std::array<int64_t, 4>;

struct Tensor {
  Descriptor descriptor;
  Four sizes{}, strides{};
};

class Graph {
 public:
  // `alignment`: of the address, in bytes.
  Tensor tensor(int64_t id, const Four& sizes, const Four& strides, cudnnDataType_t type,
                int64_t alignment = 16) {
    return make(id, sizes, strides, type, false, false, alignment);
  }
  // A number on the host.
  Tensor scalar(int64_t id) {
    return make(id, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, false, true);
  }
  // An intermediate tensor, which is never stored in memory.
  Tensor between(const Four& sizes, const Four& strides, cudnnDataType_t type) {
    return make(next_id_++, sizes, strides, type, true, false);
  }
  Tensor like(const Tensor& t, cudnnDataType_t type) { return between(t.sizes, t.strides, type); }

  void multiply(const Tensor& a, const Tensor& b, const Tensor& c);  // matrices
  void pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y,
                 cudnnDataType_t computed = CUDNN_DATA_FLOAT, int64_t axis = -1) {
    pointwise(mode, x, nullptr, nullptr, y, computed, axis);
  }
  void pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y,
                 cudnnDataType_t computed = CUDNN_DATA_FLOAT) {
    pointwise(mode, x, &b, nullptr, y, computed, -1);
  }
  void select(const Tensor& yes, const Tensor& no, const Tensor& which, const Tensor& y) {
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, yes, &no, &which, y, CUDNN_DATA_FLOAT, -1);
  }
  // Computes one of x, w and y from the other two: result = sum + keep * result. Images are (batch,
  // channels, rows, columns).
  void convolve(ConvolutionSide result, const Tensor& x, const Tensor& w, const Tensor& y,
                int64_t stride, int64_t padding, float keep);
  void reduce(cudnnReduceTensorOp_t how, const Tensor& x, const Tensor& y);
  void reshape(const Tensor& x, const Tensor& y);

  const std::vector<Descriptor>& operations() const { return operations_; }

 private:
  Tensor make(int64_t id, const Four& sizes, const Four& strides, cudnnDataType_t type,
              bool is_virtual, bool by_value, int64_t alignment = 16);
  void pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor* b, const Tensor* t,
                 const Tensor& y, cudnnDataType_t computed, int64_t axis);
  std::vector<Descriptor> operations_;
  int64_t next_id_ = 1000;
};

struct Argument {
  int64_t id;
  const void* data;
};

// The conditions that a plan must fulfil.
struct Demands {
  bool fixed_order = false;  // the same bits in every run
  bool exact_f32 = false;    // f32 operands are not rounded
  bool tf32 = false;         // with exact_f32: they may be rounded to tf32
  int64_t most_workspace = INT64_MAX;
};

class Plan {
 public:
  // Makes the first of cuDNN's proposals that works and fulfils the demands; their order is the
  // same in every run. With a null handle the plan is for the device that `device` describes
  // (JSON), and no GPU is needed.
  Plan(const Graph& graph, cudnnHandle_t handle, const std::string& device = "",
       const Demands& demands = {});
  size_t workspace_bytes() const { return size_t(workspace_); }
  void run(cudnnHandle_t handle, const std::vector<Argument>& arguments, void* workspace) const;

 private:
  // Takes the proposal, or throws.
  void take(const Descriptor& configuration, cudnnHandle_t handle, const Descriptor& device,
            const Demands& demands);
  Descriptor graph_, plan_;
  int64_t workspace_ = 0;
};

}  // namespace kernels::cudnn
