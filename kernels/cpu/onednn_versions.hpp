// SPDX-License-Identifier: Apache-2.0
// Describes primitives to oneDNN 2 or 3. The two versions differ here alone.
#pragma once

#include <dnnl.hpp>
#include <vector>

namespace kernels {

// `bias` may be null.
dnnl::matmul::primitive_desc describe_product(const dnnl::memory::desc& a,
                                              const dnnl::memory::desc& b,
                                              const dnnl::memory::desc* bias,
                                              const dnnl::memory::desc& c,
                                              const dnnl::primitive_attr& attributes);

// True if the library takes the elements of a single column for neighbours, whatever the stride
// between them: a column of b or c, or of a transposed a.
bool misreads_columns();

struct ConvolutionTensors {
  dnnl::memory::desc x, y, weights;  // operands and result
  dnnl::memory::dims strides, padding;
};

// Returns the library's first `count` choices of kernels, or as many as there are, but at least
// one.
std::vector<dnnl::convolution_forward::primitive_desc> describe_outputs(
    const ConvolutionTensors& t, const dnnl::primitive_attr& attributes, int count);

// Gradients of the inputs, and of the weights.
dnnl::convolution_backward_data::primitive_desc describe_inputs(
    const ConvolutionTensors& t, const dnnl::primitive_attr& attributes,
    const dnnl::convolution_forward::primitive_desc& hint);
dnnl::convolution_backward_weights::primitive_desc describe_weights(
    const ConvolutionTensors& t, const dnnl::primitive_attr& attributes,
    const dnnl::convolution_forward::primitive_desc& hint);

}  // namespace kernels
