// SPDX-License-Identifier: Apache-2.0
// One oneDNN convolution of fixed shape, which several threads may run at the same time.
#pragma once

#include <dnnl.hpp>
#include <vector>

#include "kernels/convolution.hpp"

namespace kernels {

// The key of a primitive, which computes `result` from the other two tensors.
struct ConvolutionKind {
  ConvolutionSide result = ConvolutionSide::outputs;
  ConvolutionShape shape{};
  bool narrow = false;         // operands are bf16
  bool narrow_result = false;  // resulting images are bf16
  auto operator<=>(const ConvolutionKind&) const = default;
};

// A primitive, with the stream, memories and arguments of each of `workers` threads that run it.
// Images are as in convolution.hpp; weights have the library's own layout.
class OnednnConvolution {
 public:
  OnednnConvolution(const ConvolutionKind& kind, int workers);

  size_t scratch_bytes() const { return scratch_.get_size(); }
  size_t weights_bytes() const { return packed_.get_size(); }

  // Reads two of x, y and weights, and writes the third. Does not throw.
  dnnl_status_t run(int worker, void* x, void* y, void* weights, void* scratch);
  // Converts weights to the library's layout.
  dnnl_status_t pack(void* plain, void* packed);
  // Writes, or adds, a gradient in the library's layout to one in the plain layout.
  dnnl_status_t unpack(void* packed, void* plain, Write write);

 private:
  enum Argument { kX, kY, kWeights, kScratch, kArguments };
  struct Worker {
    dnnl::stream stream;
    std::vector<dnnl::memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  template <class Description>
  void keep(const Description& description, const int (&ids)[3], const dnnl::memory::desc& x,
            const dnnl::memory::desc& y, const dnnl::memory::desc& weights, int workers);
  dnnl_status_t convert(const dnnl::reorder& reorder, const dnnl::memory::desc& from_desc,
                        void* from, const dnnl::memory::desc& to_desc, void* to);

  dnnl::primitive primitive_;
  dnnl::reorder pack_, unpack_, unpack_and_add_;
  dnnl::memory::desc plain_, packed_, scratch_;
  std::vector<Worker> workers_;
};

}  // namespace kernels
