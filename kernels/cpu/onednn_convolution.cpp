// SPDX-License-Identifier: Apache-2.0
// One oneDNN convolution of fixed shape.
#include "kernels/cpu/onednn_convolution.hpp"

#include <string_view>

#include "kernels/cpu/onednn_primitive.hpp"
#include "kernels/cpu/onednn_versions.hpp"

namespace kernels {
namespace {

using dnnl::memory;

// The dimensions of the weights, and of both kinds of images. oneDNN names them in the order of
// channels first, whatever their order in memory is.
struct Dimensions {
  memory::dims x, y, weights, strides, padding;
  memory::format_tag plain;

  explicit Dimensions(const ConvolutionShape& s)
      : x{s.window.batch, s.in, s.window.height, s.window.width},
        y{s.window.batch, s.out, s.window.out_height(), s.window.out_width()},
        weights{s.out, s.in / s.groups, s.window.kernel_height, s.window.kernel_width},
        strides{s.window.stride, s.window.stride},
        padding{s.window.padding, s.window.padding},
        plain(memory::format_tag::oihw) {
    if (s.groups == 1) return;
    weights = {s.groups, s.out / s.groups, s.in / s.groups, s.window.kernel_height,
               s.window.kernel_width};
    plain = memory::format_tag::goihw;
  }
};

// True where oneDNN's first choice for outputs, blocks of products, is slower than its next one,
// by measurement on AVX-512. Blocks also multiply the padding of small images. They take few rows
// at a time where strides drop pixels.
bool next_is_faster(const ConvolutionKind& kind) {
  const Window& w = kind.shape.window;
  const int64_t positions = w.out_height() * w.out_width();
  if (w.padding > 0)
    return w.height * w.width <= 16 || positions <= (kind.narrow ? 14 * 14 : 7 * 7);
  return w.kernel_height * w.kernel_width == 1 && w.stride > 1 && kind.shape.in >= 512;
}

// True if the second choice is to replace the first one, blocks of products.
bool takes_second(const std::vector<dnnl::convolution_forward::primitive_desc>& choices) {
  auto begins_with = [&](size_t choice, std::string_view name) {
    return std::string_view(choices[choice].impl_info_str()).substr(0, name.size()) == name;
  };
  return choices.size() > 1 && begins_with(0, "brg") && begins_with(1, "jit");
}

}  // namespace

OnednnConvolution::OnednnConvolution(const ConvolutionKind& kind, int workers) {
  const Dimensions d(kind.shape);
  constexpr auto kImages = memory::format_tag::nhwc, kAny = memory::format_tag::any;
  auto type = [](bool narrow) { return narrow ? memory::data_type::bf16 : memory::data_type::f32; };
  const auto operand = type(kind.narrow), result = type(kind.narrow_result);
  // Images have the order of channels last; the library chooses the order of weights.
  auto tensors = [&](memory::data_type x, memory::data_type y, memory::data_type weights) {
    return ConvolutionTensors{.x = memory::desc(d.x, x, kImages),
                              .y = memory::desc(d.y, y, kImages),
                              .weights = memory::desc(d.weights, weights, kAny),
                              .strides = d.strides,
                              .padding = d.padding};
  };
  const bool outputs = kind.result == ConvolutionSide::outputs;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  // Gradients take the forward convolution as a hint.
  const ConvolutionTensors forward = tensors(operand, outputs ? result : operand, operand);
  const auto choices =
      describe_outputs(forward, attributes, outputs && next_is_faster(kind) ? 2 : 1);
  const auto& hint = choices[takes_second(choices) ? 1 : 0];
  plain_ = memory::desc(d.weights, operand, d.plain);
  if (outputs) {
    primitive_ = dnnl::convolution_forward(hint);
    keep(hint, {DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_WEIGHTS}, forward.x, forward.y,
         hint.weights_desc(), workers);
  } else if (kind.result == ConvolutionSide::inputs) {
    const ConvolutionTensors t = tensors(result, operand, operand);
    const auto inputs = describe_inputs(t, attributes, hint);
    primitive_ = dnnl::convolution_backward_data(inputs);
    keep(inputs, {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS}, t.x, t.y,
         inputs.weights_desc(), workers);
  } else {
    const ConvolutionTensors t = tensors(operand, operand, type(false));
    const auto gradient = describe_weights(t, attributes, hint);
    plain_ = memory::desc(d.weights, type(false), d.plain);
    primitive_ = dnnl::convolution_backward_weights(gradient);
    keep(gradient, {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}, t.x, t.y,
         gradient.diff_weights_desc(), workers);
  }
}

template <class Description>
void OnednnConvolution::keep(const Description& description, const int (&ids)[3],
                             const memory::desc& x, const memory::desc& y,
                             const memory::desc& weights, int workers) {
  packed_ = weights;
  scratch_ = description.scratchpad_desc();
  using Reorder = dnnl::reorder;
  auto reorder = [](const memory::desc& from, const memory::desc& to, bool add) {
    dnnl::primitive_attr attributes;
    dnnl::post_ops post_ops;
    if (add) post_ops.append_sum(1.0f);
    attributes.set_post_ops(post_ops);
    return Reorder(Reorder::primitive_desc(onednn_engine(), from, onednn_engine(), to, attributes));
  };
  if (ids[kWeights] == DNNL_ARG_WEIGHTS) {
    pack_ = reorder(plain_, packed_, false);
  } else {
    unpack_ = reorder(packed_, plain_, false);
    unpack_and_add_ = reorder(packed_, plain_, true);
  }
  for (int w = 0; w < workers; ++w) {
    Worker& worker = workers_.emplace_back();
    worker.stream = dnnl::stream(onednn_engine());
    auto argument = [&](int id, const memory::desc& desc) {
      worker.memories.emplace_back(desc, onednn_engine(), nullptr);
      worker.arguments.push_back({id, worker.memories.back().get()});
    };
    argument(ids[kX], x);
    argument(ids[kY], y);
    argument(ids[kWeights], weights);
    argument(DNNL_ARG_SCRATCHPAD, scratch_);
  }
}

// Calls oneDNN's C interface, because it does not throw (this runs in parallel regions) and does
// not copy the arguments.
dnnl_status_t OnednnConvolution::run(int w, void* x, void* y, void* weights, void* scratch) {
  Worker& worker = workers_[size_t(w)];
  void* const data[kArguments] = {x, y, weights, scratch};
  for (int i = 0; i < kArguments; ++i)
    if (dnnl_status_t s = dnnl_memory_set_data_handle(worker.memories[size_t(i)].get(), data[i]);
        s != dnnl_success)
      return s;
  return dnnl_primitive_execute(primitive_.get(), worker.stream.get(), int(worker.arguments.size()),
                                worker.arguments.data());
}

dnnl_status_t OnednnConvolution::convert(const dnnl::reorder& reorder,
                                         const memory::desc& from_desc, void* from,
                                         const memory::desc& to_desc, void* to) {
  const memory a(from_desc, onednn_engine(), from), b(to_desc, onednn_engine(), to);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, a.get()}, {DNNL_ARG_TO, b.get()}};
  return dnnl_primitive_execute(reorder.get(), workers_[0].stream.get(), 2, arguments);
}

dnnl_status_t OnednnConvolution::pack(void* plain, void* packed) {
  return convert(pack_, plain_, plain, packed_, packed);
}

dnnl_status_t OnednnConvolution::unpack(void* packed, void* plain, Write write) {
  return convert(write == Write::accumulate ? unpack_and_add_ : unpack_, packed_, packed, plain_,
                 plain);
}

}  // namespace kernels
