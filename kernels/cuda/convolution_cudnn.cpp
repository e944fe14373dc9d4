// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of convolutions, by cuDNN: graphs of one operation, their plans, and calls.
// Convolutions of single pixels without stride are matrix products.
#include "kernels/cuda/convolution_cudnn.hpp"

#include <map>
#include <tuple>

#include "kernels/cuda/graph_cudnn.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

using cudnn::Four;

enum Id : int64_t { kX = 1, kWeights, kY };

// What decides a plan.
struct Key {
  ConvolutionSide result;
  ConvolutionShape shape;
  DType operands, result_type;
  Write write;
  int64_t alignment;  // of the images
  bool tf32;
  auto operator<=>(const Key&) const = default;
};

cudnnDataType_t type_of(DType type) {
  return type == DType::bf16  ? CUDNN_DATA_BFLOAT16
         : type == DType::f16 ? CUDNN_DATA_HALF
                              : CUDNN_DATA_FLOAT;
}

// Sizes are (batch, channels, rows, columns), and the channels lie together in memory.
Four strides_of(const Four& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

cudnn::Graph graph_of(const Key& key) {
  const ConvolutionShape& s = key.shape;
  const Window& w = s.window;
  const Four x{w.batch, s.in, w.height, w.width}, y{w.batch, s.out, w.out_height(), w.out_width()},
      weights{s.out, s.in / s.groups, w.kernel_height, w.kernel_width};
  cudnn::Graph graph;
  auto tensor = [&](int64_t id, const Four& sizes, ConvolutionSide side) {
    return graph.tensor(id, sizes, strides_of(sizes),
                        type_of(side == key.result ? key.result_type : key.operands),
                        side == ConvolutionSide::weights ? 16 : key.alignment);
  };
  graph.convolve(key.result, tensor(kX, x, ConvolutionSide::inputs),
                 tensor(kWeights, weights, ConvolutionSide::weights),
                 tensor(kY, y, ConvolutionSide::outputs), w.stride, w.padding,
                 key.write == Write::accumulate ? 1 : 0);
  return graph;
}

cudnn::Demands demands_of(const Key& key) {
  return {.fixed_order = true,
          .exact_f32 = key.operands == DType::f32,
          .tf32 = key.tf32,
          .most_workspace = convolution_workspace(key.shape, key.operands)};
}

const cudnn::Plan& plan_for(const Key& key, Queue& queue) {
  // The shapes of a run are fixed, so plans are kept to its end.
  static std::map<Key, std::unique_ptr<cudnn::Plan>> plans;
  auto& plan = plans[key];
  if (!plan) try {
      plan = std::make_unique<cudnn::Plan>(graph_of(key), cudnn::handle_on(queue), "",
                                           demands_of(key));
    } catch (const base::Error& e) {
      const ConvolutionShape& s = key.shape;
      base::fail(base::Exit::mesh,
                 "convolution of {} images of {} x {}, {} to {} channels in {} groups, windows of "
                 "{} x {}, {}: {}",
                 s.window.batch, s.window.height, s.window.width, s.in, s.out, s.groups,
                 s.window.kernel_height, s.window.kernel_width, device::name_of(key.operands),
                 e.what());
    }
  return *plan;
}

int64_t alignment_of(const View& a, const View& b) {
  const auto address = reinterpret_cast<uintptr_t>(a.data) | reinterpret_cast<uintptr_t>(b.data);
  return address % 16 == 0 ? 16 : std::min(device::size_of(a.type), device::size_of(b.type));
}

// Runs cuDNN on images and on weights with channels last, which `fill` writes before, and `drain`
// reads after.
template <class Fill, class Drain>
void run_graph(ConvolutionSide result, const ConvolutionShape& shape, DType operands, View x,
               View y, View weights, Write write, Queue& queue, const Fill& fill,
               const Drain& drain) {
  const DType result_type = result == ConvolutionSide::inputs    ? x.type
                            : result == ConvolutionSide::outputs ? y.type
                                                                 : weights.type;
  const cudnn::Plan& plan = plan_for({result, shape, operands, result_type, write,
                                      alignment_of(x, y), queue.tf32() && operands == DType::f32},
                                     queue);
  const ConvolutionScratch places(shape, weights.type, int64_t(plan.workspace_bytes()));
  char* const workspace = static_cast<char*>(queue.scratch(size_t(places.bytes)));
  char* const last = workspace + places.weights;
  fill(last);
  plan.run(cudnn::handle_on(queue), {{kX, x.data}, {kWeights, last}, {kY, y.data}}, workspace);
  drain(last);
}

// Runs cuDNN with given weights.
void run_images(ConvolutionSide result, const ConvolutionShape& shape, DType operands, View x,
                View y, View weights, Write write, Queue& queue) {
  run_graph(
      result, shape, operands, x, y, weights, write, queue,
      [&](char* last) { put_channels_last(last, weights, shape, queue); }, [](char*) {});
}

template <class Args>
void prepare(const Args& a, const Queue& queue) {
  if (a.shape.is_product()) prepare_cuda(product_of(a), queue);
}

}  // namespace

void run_cuda(const ConvolutionForward& a, Queue& queue) {
  if (a.y.count == 0) return;
  if (a.shape.is_product()) return run_cuda(product_of(a), queue);
  run_images(ConvolutionSide::outputs, a.shape, a.x.type, a.x, a.y, a.weight, Write::overwrite,
             queue);
}

void run_cuda(const ConvolutionBackwardData& a, Queue& queue) {
  if (a.dx.count == 0) return;
  if (a.shape.is_product()) return run_cuda(product_of(a), queue);
  run_images(ConvolutionSide::inputs, a.shape, a.dy.type, a.dx, a.dy, a.weight, a.write, queue);
}

void run_cuda(const ConvolutionBackwardWeights& a, Queue& queue) {
  if (a.shape.window.batch == 0) {  // an empty sum
    if (a.write == Write::overwrite) run_cuda(Fill{.y = a.dw, .value = 0}, queue);
    return;
  }
  if (a.shape.is_product()) return run_cuda(product_of(a), queue);
  run_graph(
      ConvolutionSide::weights, a.shape, a.x.type, a.x, a.dy, a.dw, Write::overwrite, queue,
      [](char*) {},
      [&](char* last) {
        take_channels_last(a.dw, reinterpret_cast<const float*>(last), a.shape, a.write, queue);
      });
}

void prepare_cuda(const ConvolutionForward& a, const Queue& queue) { prepare(a, queue); }
void prepare_cuda(const ConvolutionBackwardData& a, const Queue& queue) { prepare(a, queue); }
void prepare_cuda(const ConvolutionBackwardWeights& a, const Queue& queue) { prepare(a, queue); }

std::string cudnn_plan_problem(ConvolutionSide result, const ConvolutionShape& shape,
                               DType operands, DType result_type, Write write,
                               const std::string& device) {
  const Key key{result, shape, operands, result_type, write, 16, false};
  try {
    cudnn::Plan plan(graph_of(key), nullptr, device, demands_of(key));
    return "";
  } catch (const base::Error& e) {
    return e.what();
  }
}

}  // namespace kernels
