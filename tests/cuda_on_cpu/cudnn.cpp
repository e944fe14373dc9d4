// SPDX-License-Identifier: Apache-2.0
// The backend interface of an emulated cuDNN, which has convolutions with copies of their results
// to f32, and attention. A convolution has three plans. The first one adds in another order in each
// call, and says so in its notes. The second one rounds f32 operands to tf32, and says so too. The
// forward pass of attention has one plan. The backward pass has another plan before it, which says
// that it adds in any order, and which does not run. Attention has no slower plans.
#include "cudnn.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "cudnn_attention.hpp"
#include "cudnn_convolution.hpp"
#include "watch.hpp"

using cuda_on_cpu::DnnAttention;
using cuda_on_cpu::DnnConvolution;
using cuda_on_cpu::DnnEngine;
using cuda_on_cpu::DnnOperation;
using cuda_on_cpu::DnnTensor;

struct EmulatedDnn {
  cudaStream_t stream = nullptr;
};

namespace {

constexpr int64_t kWorkspace = 1000;

// A copy of a descriptor refers to copies of other descriptors, because callers destroy the
// originals early.
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
  // Returns the number of values of 8 bytes.
  size_t count(int name) const {
    auto it = values.find(name);
    return it == values.end() ? 0 : it->second.size() / 8;
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
  c->get(CUDNN_ATTR_TENSOR_IS_VIRTUAL, &t.is_virtual);
  c->get(CUDNN_ATTR_TENSOR_IS_BY_VALUE, &t.is_by_value);
  return t;
}

// The three operations have different attribute numbers, in different orders.
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

DnnOperation operation_of(const Content& c) {
  DnnOperation o;
  o.type = c.type;
  auto put = [&](int name, DnnTensor& to) {
    const Shared tensor = c.other(name);
    if (tensor) to = tensor_of(tensor);
    return tensor != nullptr;
  };
  if (c.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
    put(CUDNN_ATTR_OPERATION_MATMUL_ADESC, o.x);
    o.has_b = put(CUDNN_ATTR_OPERATION_MATMUL_BDESC, o.b);
    put(CUDNN_ATTR_OPERATION_MATMUL_CDESC, o.y);
  } else if (c.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
    put(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, o.x);
    put(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, o.y);
    if (const Shared how = c.other(CUDNN_ATTR_OPERATION_REDUCTION_DESC))
      how->get(CUDNN_ATTR_REDUCTION_OPERATOR, &o.mode);
  } else if (c.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) {
    put(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, o.x);
    put(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, o.y);
  } else {
    put(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, o.x);
    o.has_b = put(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, o.b);
    o.has_t = put(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, o.t);
    put(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, o.y);
    if (const Shared how = c.other(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)) {
      how->get(CUDNN_ATTR_POINTWISE_MODE, &o.mode);
      how->get(CUDNN_ATTR_POINTWISE_AXIS, &o.axis);
    }
  }
  return o;
}

// The work of a graph: a convolution, whose result a second operation may copy, or an attention.
struct Call {
  bool valid = false;
  DnnConvolution convolution{};
  DnnAttention attention{};

  bool is_attention() const { return !attention.operations.empty(); }
  std::vector<DnnEngine> plans() {
    if (is_attention() ? !attention.has_plans() : !convolution.has_plans()) return {};
    if (!is_attention()) return {DnnEngine::unordered, DnnEngine::tensor_core, DnnEngine::plain};
    if (!attention.is_backward()) return {DnnEngine::plain};
    return {DnnEngine::unordered, DnnEngine::plain};
  }
  int64_t workspace_bytes() const {
    return is_attention() ? attention.workspace_bytes() : kWorkspace;
  }
};
Call attention_call(const std::vector<Shared>& operations) {
  Call call;
  for (const Shared& o : operations) call.attention.operations.push_back(operation_of(*o));
  call.valid = call.attention.is_valid();
  return call;
}
Call call_of(const Content& graph) {
  auto it = graph.others.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (it == graph.others.end()) return {};
  if (!is_convolution(it->second[0]->type)) return attention_call(it->second);
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

// The call of a plan.
Call planned(const Content& plan) {
  const Shared configuration = plan.other(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  Call call = call_of(*configuration->other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
  call.convolution.engine = configuration->engine;
  return call;
}

}  // namespace

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED      ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED"
                                                   : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  std::snprintf(message, size, "emulated cuDNN");
}
size_t cudnnGetVersion() { return 91900; }
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
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const auto plans = call_of(*c.other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)).plans();
      *count = int64_t(plans.size());
      for (int64_t i = 0; i < std::min(wanted, *count); ++i)
        *content(raw[i]) = {.type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                            .finished = true,
                            .values = {},
                            .others = c.others,
                            .engine = plans[size_t(i)]};
      return CUDNN_STATUS_SUCCESS;
    }
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
      *static_cast<int64_t*>(values) = planned(c).workspace_bytes();
      return CUDNN_STATUS_SUCCESS;
    default:
      return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  Content& c = *content(d);
  c.finished = true;
  if (is_convolution(c.type) && !convolution_of(c).is_valid()) return CUDNN_STATUS_NOT_SUPPORTED;
  if (c.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    cudnnBackendHeurMode_t mode{};
    c.get(CUDNN_ATTR_ENGINEHEUR_MODE, &mode);
    const bool refused = mode == CUDNN_HEUR_MODE_FALLBACK &&
                         call_of(*c.other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)).is_attention();
    return refused ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
  }
  if (c.type != CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  return call_of(c).valid ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  Call call = planned(*content(plan));
  const Content& c = *content(pack);
  std::vector<int64_t> ids(c.count(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
  std::vector<void*> data(ids.size());
  void* workspace = nullptr;
  c.get(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids.data(), ids.size());
  c.get(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, data.data(), data.size());
  c.get(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &workspace);
  std::map<int64_t, void*> places;
  for (size_t i = 0; i < ids.size(); ++i) places[ids[i]] = data[i];
  for (DnnTensor* t : {&call.convolution.x, &call.convolution.w, &call.convolution.y})
    t->data = places[t->id];
  const bool placed =
      call.is_attention() ? call.attention.place(places) : call.convolution.has_data();
  if (!placed || !workspace) return CUDNN_STATUS_BAD_PARAM;
  if (call.is_attention() && call.convolution.engine != DnnEngine::plain)
    return CUDNN_STATUS_NOT_SUPPORTED;
  // The library starts a kernel, and reports an older error as its own.
  if (cuda_on_cpu::last_error() != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
  cuda_on_cpu::submit(handle->stream, [call, workspace]() mutable {
    cuda_on_cpu::Access access;
    // Callers must not rely on the old contents.
    cuda_on_cpu::writes(workspace, size_t(call.workspace_bytes()));
    std::memset(workspace, 0xff, size_t(call.workspace_bytes()));
    if (call.is_attention())
      call.attention.run();
    else
      call.convolution.run();
  });
  return CUDNN_STATUS_SUCCESS;
}
