// SPDX-License-Identifier: Apache-2.0
// One oneDNN convolution of fixed shape.
#include "kernels/cpu/onednn_convolution.hpp"

#include <string_view>

#include "kernels/cpu/onednn_primitive.hpp"

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

// Replaces blocks of products by oneDNN's next choice.
void take_next(dnnl::convolution_forward::primitive_desc& first) {
  dnnl::convolution_forward::primitive_desc next = first;
  auto begins_with = [](const auto& description, std::string_view name) {
    return std::string_view(description.impl_info_str()).substr(0, name.size()) == name;
  };
  if (begins_with(first, "brgconv") && next.next_impl() && begins_with(next, "jit")) first = next;
}

}  // namespace

OnednnConvolution::OnednnConvolution(const ConvolutionKind& kind, int workers) {
  const Dimensions d(kind.shape);
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  constexpr auto kImages = memory::format_tag::nhwc, kAny = memory::format_tag::any;
  auto type = [](bool narrow) { return narrow ? memory::data_type::bf16 : memory::data_type::f32; };
  const auto operand = type(kind.narrow), result = type(kind.narrow_result);
  auto x_of = [&](memory::data_type t) { return memory::desc(d.x, t, kImages); };
  auto y_of = [&](memory::data_type t) { return memory::desc(d.y, t, kImages); };
  auto weights_of = [&](memory::data_type t) { return memory::desc(d.weights, t, kAny); };
  const bool outputs = kind.result == ConvolutionSide::outputs;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  // Gradients take the forward convolution as a hint. `wanted` lives while choices are compared.
  using Forward = dnnl::convolution_forward;
  const Forward::desc wanted(dnnl::prop_kind::forward_training, kDirect, x_of(operand),
                             weights_of(operand), y_of(outputs ? result : operand), d.strides,
                             d.padding, d.padding);
  Forward::primitive_desc forward(wanted, attributes, onednn_engine());
  if (outputs && next_is_faster(kind)) take_next(forward);
  plain_ = memory::desc(d.weights, operand, d.plain);
  if (outputs) {
    primitive_ = Forward(forward);
    keep(forward, {DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_WEIGHTS}, x_of(operand), y_of(result),
         forward.weights_desc(), workers);
  } else if (kind.result == ConvolutionSide::inputs) {
    using Data = dnnl::convolution_backward_data;
    const Data::primitive_desc data(Data::desc(kDirect, x_of(result), weights_of(operand),
                                               y_of(operand), d.strides, d.padding, d.padding),
                                    attributes, onednn_engine(), forward);
    primitive_ = Data(data);
    keep(data, {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS}, x_of(result),
         y_of(operand), data.weights_desc(), workers);
  } else {
    using Weights = dnnl::convolution_backward_weights;
    plain_ = memory::desc(d.weights, type(false), d.plain);
    const Weights::primitive_desc gradient(
        Weights::desc(kDirect, x_of(operand), weights_of(type(false)), y_of(operand), d.strides,
                      d.padding, d.padding),
        attributes, onednn_engine(), forward);
    primitive_ = Weights(gradient);
    keep(gradient, {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}, x_of(operand),
         y_of(operand), gradient.diff_weights_desc(), workers);
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
