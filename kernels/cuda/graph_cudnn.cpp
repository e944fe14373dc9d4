// SPDX-License-Identifier: Apache-2.0
// Graphs of cuDNN's backend interface, and plans that run them.
#include "kernels/cuda/graph_cudnn.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "device/cuda.hpp"

namespace kernels::cudnn {

void check_status(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char more[1024] = {};
  DNN(cudnnGetLastErrorString)(more, sizeof more);
  base::fail(base::Exit::mesh, "cuDNN: {}: {} ({})", what, DNN(cudnnGetErrorString)(status), more);
}

cudnnHandle_t handle_on(device::Queue& queue) {
  static cudnnHandle_t handle = nullptr;
  if (!handle) check_status(DNN(cudnnCreate)(&handle), "starting cuDNN");
  check_status(DNN(cudnnSetStream)(handle, device::stream_of(queue)), "choosing a stream");
  return handle;
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  check_status(DNN(cudnnBackendCreateDescriptor)(type, &made), "making a descriptor");
  descriptor_ = {made, [](void* d) { DNN(cudnnBackendDestroyDescriptor)(d); }};
}
Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            int64_t count, const void* values) {
  check_status(DNN(cudnnBackendSetAttribute)(get(), name, type, count, values),
               "describing a graph");
  return *this;
}
Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& other) {
  cudnnBackendDescriptor_t raw = other.get();
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}
Descriptor& Descriptor::finish() {
  check_status(DNN(cudnnBackendFinalize)(get()), "finishing a descriptor");
  return *this;
}

Tensor Graph::make(int64_t id, const Four& sizes, const Four& strides, cudnnDataType_t type,
                   bool is_virtual, bool by_value, int64_t alignment) {
  Tensor t{Descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR), sizes, strides};
  t.descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes.data())
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data())
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  if (is_virtual) t.descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  if (by_value) t.descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  t.descriptor.finish();
  return t;
}

void Graph::multiply(const Tensor& a, const Tensor& b, const Tensor& c) {
  Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finish();
  Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how)
      .finish();
  operations_.push_back(operation);
}

void Graph::pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor* b, const Tensor* t,
                      const Tensor& y, cudnnDataType_t computed, int64_t axis) {
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, computed);
  if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  how.finish();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor);
  if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->descriptor);
  if (t) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->descriptor);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor).finish();
  operations_.push_back(operation);
}

namespace {
// The names of an operation that computes one side of a convolution.
struct ConvolutionNames {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t x, w, y, how, alpha, beta;
};
ConvolutionNames names_of(ConvolutionSide result) {
  switch (result) {
    case ConvolutionSide::outputs:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case ConvolutionSide::inputs:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvolutionSide::weights:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}
}  // namespace

void Graph::convolve(ConvolutionSide result, const Tensor& x, const Tensor& w, const Tensor& y,
                     int64_t stride, int64_t padding, float keep) {
  const int64_t strides[] = {stride, stride}, paddings[] = {padding, padding}, dilations[] = {1, 1};
  Descriptor how(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides)
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, paddings)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, paddings)
      .finish();
  const ConvolutionNames names = names_of(result);
  Descriptor operation(names.operation);
  operation.set(names.x, x.descriptor)
      .set(names.w, w.descriptor)
      .set(names.y, y.descriptor)
      .set(names.how, how)
      .set(names.alpha, CUDNN_TYPE_FLOAT, 1.0f)
      .set(names.beta, CUDNN_TYPE_FLOAT, keep)
      .finish();
  operations_.push_back(operation);
}

void Graph::reduce(cudnnReduceTensorOp_t how, const Tensor& x, const Tensor& y) {
  Descriptor reduction(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how)
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .finish();
  Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction)
      .finish();
  operations_.push_back(operation);
}

void Graph::reshape(const Tensor& x, const Tensor& y) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor)
      .finish();
  operations_.push_back(operation);
}

namespace {

// cuDNN's notes on how an engine computes.
std::vector<cudnnBackendNumericalNote_t> notes_on(const Descriptor& configuration) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  check_status(DNN(cudnnBackendGetAttribute)(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
               "asking for an engine");
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  check_status(DNN(cudnnBackendGetAttribute)(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                             CUDNN_TYPE_NUMERICAL_NOTE, int64_t(notes.size()),
                                             &count, notes.data()),
               "asking for an engine's notes");
  notes.resize(size_t(count));
  return notes;
}

void check_notes(const Descriptor& configuration, const Demands& demands) {
  if (!demands.fixed_order && !demands.exact_f32) return;
  const auto notes = notes_on(configuration);
  auto refuse = [&](bool refused, cudnnBackendNumericalNote_t note, const char* why) {
    if (refused && std::count(notes.begin(), notes.end(), note))
      base::fail(base::Exit::mesh, "{}", why);
  };
  refuse(demands.fixed_order, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, "no fixed order");
  refuse(demands.exact_f32, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, "rounds its operands");
  refuse(demands.exact_f32 && !demands.tf32, CUDNN_NUMERICAL_NOTE_TENSOR_CORE, "computes in tf32");
}

// Returns cuDNN's proposals for a graph, the fastest first.
std::vector<Descriptor> proposals_for(const Descriptor& graph, const Descriptor& device,
                                      cudnnBackendHeurMode_t mode) {
  Descriptor proposals(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  proposals.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (device.get()) proposals.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  proposals.finish();
  auto results = [&](int64_t wanted, cudnnBackendDescriptor_t* raw) {
    int64_t count = 0;
    check_status(DNN(cudnnBackendGetAttribute)(proposals.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, wanted, &count, raw),
                 "asking for plans");
    return count;
  };
  std::vector<Descriptor> configurations;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0, count = results(0, nullptr); i < count; ++i) {
    configurations.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configurations.back().get());
  }
  if (!raw.empty()) configurations.resize(size_t(results(int64_t(raw.size()), raw.data())));
  return configurations;
}

}  // namespace

Plan::Plan(const Graph& graph, cudnnHandle_t handle, const std::string& device,
           const Demands& demands) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& d : graph.operations()) raw.push_back(d.get());
  graph_ = Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(raw.size()),
             raw.data());
  if (handle) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph_.finish();

  Descriptor described;
  if (!handle) {
    described = Descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    described
        .set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, int64_t(device.size()),
             device.data())
        .finish();
  }
  // The second mode has slower engines, which serve more graphs. It may refuse graphs that the
  // first one has engines for.
  std::string problems;
  size_t tried = 0;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    const auto attempt = [&](const auto& call) {
      try {
        call();
        return true;
      } catch (const base::Error& e) {
        problems += std::string("; ") + e.what();
        return false;
      }
    };
    std::vector<Descriptor> configurations;
    attempt([&] { configurations = proposals_for(graph_, described, mode); });
    for (const Descriptor& configuration : configurations) {
      ++tried;
      if (attempt([&] { take(configuration, handle, described, demands); })) return;
    }
  }
  base::fail(base::Exit::mesh, "cuDNN has no plan among {}{}", tried, problems);
}

void Plan::take(const Descriptor& configuration, cudnnHandle_t handle, const Descriptor& device,
                const Demands& demands) {
  check_notes(configuration, demands);
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  if (!handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
  plan.finish();
  int64_t one = 0;
  check_status(DNN(cudnnBackendGetAttribute)(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                             CUDNN_TYPE_INT64, 1, &one, &workspace_),
               "asking for a plan's workspace");
  if (workspace_ > demands.most_workspace)
    base::fail(base::Exit::mesh, "needs a workspace of {} bytes", workspace_);
  plan_ = plan;
}

void Plan::run(cudnnHandle_t handle, const std::vector<Argument>& arguments,
               void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> data;
  for (const Argument& a : arguments) {
    ids.push_back(a.id);
    data.push_back(const_cast<void*>(a.data));
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(data.size()),
           data.data())
      .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, int64_t(ids.size()), ids.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .finish();
  check_status(DNN(cudnnBackendExecute)(handle, plan_.get(), pack.get()), "running a plan");
}

}  // namespace kernels::cudnn
