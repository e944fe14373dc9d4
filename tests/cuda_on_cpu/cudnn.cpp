// SPDX-License-Identifier: Apache-2.0
// The backend interface of an emulated cuDNN, which has convolutions only, and copies of their
// results to f32. Each graph that the library serves has three plans. The first one adds in another
// order in each call, and says so in its notes. The second one rounds f32 operands to tf32, and
// says so too.
#include "cudnn.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "cudnn_convolution.hpp"

using cuda_on_cpu::DnnConvolution;
using cuda_on_cpu::DnnEngine;
using cuda_on_cpu::DnnTensor;

struct EmulatedDnn {
  cudaStream_t stream = nullptr;
};

namespace {

constexpr int64_t kWorkspace = 1000;

// A copy of a descriptor refers to copies of others, because callers destroy theirs early.
struct Content {
  cudnnBackendDescriptorType_t type{};
  bool finished = false;
  std::map<int, std::vector<char>> values;
  std::map<int, std::vector<std::shared_ptr<Content>>> others;
  DnnEngine engine = DnnEngine::plain;  // of engines and configurations

  template <class T>
  void get(int name, T* to, size_t count = 1) const {
    auto it = values.find(name);
    if (it != values.end() && it->second.size() == count * sizeof(T))
      std::memcpy(to, it->second.data(), count * sizeof(T));
  }
  std::shared_ptr<Content> other(int name) const {
    auto it = others.find(name);
    return it == others.end() || it->second.empty() ? nullptr : it->second[0];
  }
};
using Shared = std::shared_ptr<Content>;

Shared& content(cudnnBackendDescriptor_t d) { return *static_cast<Shared*>(d); }

int64_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    default:
      return 4;
  }
}

bool is_convolution(int type) {
  return type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

DnnTensor tensor_of(const Shared& c) {
  DnnTensor t;
  if (!c) return t;
  c->get(CUDNN_ATTR_TENSOR_UNIQUE_ID, &t.id);
  c->get(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &t.alignment);
  c->get(CUDNN_ATTR_TENSOR_DATA_TYPE, &t.type);
  c->get(CUDNN_ATTR_TENSOR_DIMENSIONS, t.sizes.data(), 4);
  c->get(CUDNN_ATTR_TENSOR_STRIDES, t.strides.data(), 4);
  return t;
}

// The attributes of the three operations differ in number, and so do their orders.
DnnConvolution convolution_of(const Content& c) {
  struct Names {
    int x, w, y, how, alpha;
  };
  const Names names = c.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
                          ? Names{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA}
                      : c.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                          ? Names{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA}
                          : Names{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA};
  DnnConvolution out{.operation = c.type,
                     .x = tensor_of(c.other(names.x)),
                     .w = tensor_of(c.other(names.w)),
                     .y = tensor_of(c.other(names.y))};
  c.get(names.alpha, &out.alpha);
  c.get(names.alpha + 1, &out.beta);
  if (const Shared how = c.other(names.how)) {
    how->get(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, out.strides, 2);
    how->get(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, out.padding, 2);
  }
  return out;
}

// The convolution of a graph, whose result a second operation may copy.
struct Call {
  bool valid = false;
  DnnConvolution convolution;
};
Call call_of(const Content& graph) {
  auto it = graph.others.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (it == graph.others.end() || !is_convolution(it->second[0]->type)) return {};
  const auto& operations = it->second;
  Call call{.valid = true, .convolution = convolution_of(*operations[0])};
  if (operations.size() == 1) return call;
  const Content& copy = *operations[1];
  const Shared how = copy.other(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  cudnnPointwiseMode_t mode{};
  if (how) how->get(CUDNN_ATTR_POINTWISE_MODE, &mode);
  DnnTensor& result = call.convolution.result();
  const DnnTensor from = tensor_of(copy.other(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
                  to = tensor_of(copy.other(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  call.valid = operations.size() == 2 && mode == CUDNN_POINTWISE_IDENTITY && from.id == result.id &&
               from.sizes == to.sizes && from.strides == to.strides;
  call.convolution.keeps_floats = true;
  result = to;
  return call;
}

}  // namespace

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                              : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  std::snprintf(message, size, "emulated cuDNN");
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  static EmulatedDnn one;
  *handle = &one;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* out) {
  *out = new Shared(std::make_shared<Content>());
  content(*out)->type = type;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<Shared*>(d);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  Content& c = *content(d);
  if (c.finished) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto& others = c.others[name];
    for (int64_t i = 0; i < count; ++i) {
      const Shared& other = content(static_cast<const cudnnBackendDescriptor_t*>(values)[i]);
      if (!other->finished) return CUDNN_STATUS_BAD_PARAM;
      others.push_back(other);
    }
    return CUDNN_STATUS_SUCCESS;
  }
  const char* from = static_cast<const char*>(values);
  c.values[name].assign(from, from + count * size_of(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t wanted, int64_t* count,
                                       void* values) {
  const Content& c = *content(d);
  auto* raw = static_cast<cudnnBackendDescriptor_t*>(values);
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      *count = call_of(*c.other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)).convolution.has_plans()
                   ? int64_t(DnnEngine::count)
                   : 0;
      for (int64_t i = 0; i < std::min(wanted, *count); ++i) {
        *content(raw[i]) = {.type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                            .finished = true,
                            .values = {},
                            .others = c.others,
                            .engine = DnnEngine(i)};
      }
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      *count = 1;
      content(*raw)->engine = c.engine;
      content(*raw)->finished = true;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      *count = c.engine == DnnEngine::plain ? 0 : 1;
      if (*count > 0)
        *static_cast<cudnnBackendNumericalNote_t*>(values) =
            c.engine == DnnEngine::unordered ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
                                             : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      *count = 1;
      *static_cast<int64_t*>(values) = kWorkspace;
      return CUDNN_STATUS_SUCCESS;
    default:
      return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  Content& c = *content(d);
  c.finished = true;
  if (is_convolution(c.type) && !convolution_of(c).is_valid()) return CUDNN_STATUS_NOT_SUPPORTED;
  if (c.type != CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  return call_of(c).valid ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Shared configuration = content(plan)->other(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Shared graph = configuration->other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  DnnConvolution call = call_of(*graph).convolution;
  call.engine = configuration->engine;
  const Content& c = *content(pack);
  int64_t ids[3] = {};
  void *data[3] = {}, *workspace = nullptr;
  c.get(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids, 3);
  c.get(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, data, 3);
  c.get(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &workspace);
  for (DnnTensor* t : {&call.x, &call.w, &call.y})
    for (int i = 0; i < 3; ++i)
      if (ids[i] == t->id) t->data = data[i];
  if (!call.has_data() || !workspace) return CUDNN_STATUS_BAD_PARAM;
  cuda_on_cpu::submit(handle->stream, [call, workspace]() mutable {
    cuda_on_cpu::Access access;
    // Callers must not rely on the old contents.
    std::memset(workspace, 0xff, size_t(kWorkspace));
    call.run();
  });
  return CUDNN_STATUS_SUCCESS;
}
