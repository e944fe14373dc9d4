// SPDX-License-Identifier: Apache-2.0
// Descriptions of primitives. oneDNN 2 makes them from a description of the operation, oneDNN 3
// from the operation's arguments.
#include "kernels/cpu/onednn_versions.hpp"

#include <fmt/format.h>

#include <atomic>

#include "kernels/cpu/onednn_primitive.hpp"
#include "kernels/library_version.hpp"
#include "kernels/testing.hpp"

namespace kernels {
namespace {

constexpr auto kDirect = dnnl::algorithm::convolution_direct;
using Forward = dnnl::convolution_forward;
using Inputs = dnnl::convolution_backward_data;
using Weights = dnnl::convolution_backward_weights;
std::atomic<bool> columns_are_packed{false};

}  // namespace

// Version 2.6 does not. Version 3.7 does with AVX-512 (GemmNarrow.AgreesWithReference).
bool misreads_columns() { return DNNL_VERSION_MAJOR >= 3 || columns_are_packed; }
void seams::force_packed_columns(bool forced) { columns_are_packed = forced; }

#if DNNL_VERSION_MAJOR < 3

dnnl::matmul::primitive_desc describe_product(const dnnl::memory::desc& a,
                                              const dnnl::memory::desc& b,
                                              const dnnl::memory::desc* bias,
                                              const dnnl::memory::desc& c,
                                              const dnnl::primitive_attr& attributes) {
  return {bias ? dnnl::matmul::desc(a, b, *bias, c) : dnnl::matmul::desc(a, b, c), attributes,
          onednn_engine()};
}

std::vector<Forward::primitive_desc> describe_outputs(const ConvolutionTensors& t,
                                                      const dnnl::primitive_attr& attributes,
                                                      int count) {
  // next_impl() reads it again.
  const Forward::desc wanted(dnnl::prop_kind::forward_training, kDirect, t.x, t.weights, t.y,
                             t.strides, t.padding, t.padding);
  Forward::primitive_desc choice(wanted, attributes, onednn_engine());
  std::vector<Forward::primitive_desc> choices = {choice};
  while (int(choices.size()) < count && choice.next_impl()) choices.push_back(choice);
  return choices;
}

Inputs::primitive_desc describe_inputs(const ConvolutionTensors& t,
                                       const dnnl::primitive_attr& attributes,
                                       const Forward::primitive_desc& hint) {
  return {Inputs::desc(kDirect, t.x, t.weights, t.y, t.strides, t.padding, t.padding), attributes,
          onednn_engine(), hint};
}

Weights::primitive_desc describe_weights(const ConvolutionTensors& t,
                                         const dnnl::primitive_attr& attributes,
                                         const Forward::primitive_desc& hint) {
  return {Weights::desc(kDirect, t.x, t.weights, t.y, t.strides, t.padding, t.padding), attributes,
          onednn_engine(), hint};
}

#else

dnnl::matmul::primitive_desc describe_product(const dnnl::memory::desc& a,
                                              const dnnl::memory::desc& b,
                                              const dnnl::memory::desc* bias,
                                              const dnnl::memory::desc& c,
                                              const dnnl::primitive_attr& attributes) {
  if (!bias) return {onednn_engine(), a, b, c, attributes};
  return {onednn_engine(), a, b, *bias, c, attributes};
}

std::vector<Forward::primitive_desc> describe_outputs(const ConvolutionTensors& t,
                                                      const dnnl::primitive_attr& attributes,
                                                      int count) {
  std::vector<Forward::primitive_desc> choices;
  while (int(choices.size()) < count) {
    // next_impl() also changes the copies of a description, so each choice starts from a new
    // description.
    Forward::primitive_desc choice(onednn_engine(), dnnl::prop_kind::forward_training, kDirect, t.x,
                                   t.weights, t.y, t.strides, t.padding, t.padding, attributes);
    for (size_t i = 0; i < choices.size(); ++i)
      if (!choice.next_impl()) return choices;
    choices.push_back(choice);
  }
  return choices;
}

Inputs::primitive_desc describe_inputs(const ConvolutionTensors& t,
                                       const dnnl::primitive_attr& attributes,
                                       const Forward::primitive_desc& hint) {
  return {onednn_engine(), kDirect,   t.x,       t.weights, t.y,
          t.strides,       t.padding, t.padding, hint,      attributes};
}

Weights::primitive_desc describe_weights(const ConvolutionTensors& t,
                                         const dnnl::primitive_attr& attributes,
                                         const Forward::primitive_desc& hint) {
  return {onednn_engine(), kDirect,   t.x,       t.weights, t.y,
          t.strides,       t.padding, t.padding, hint,      attributes};
}

#endif

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

}  // namespace kernels
