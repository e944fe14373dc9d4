// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of convolutions, by cuDNN: graphs of one operation, their plans, and calls.
// Convolutions of single pixels without stride are matrix products.
#include "kernels/cuda/convolution_cudnn.hpp"

#include <map>
#include <tuple>

#include "kernels/cuda/graph_cudnn.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"
#include "kernels/paths.hpp"

namespace kernels {
namespace {

using cudnn::Four;

enum Id : int64_t { kX = 1, kWeights, kY };

// The facts that choose a plan.
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

// Sizes are (batch, channels, rows, columns), and the channels are contiguous in memory.
Four strides_of(const Four& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

// An f32 result of narrow operands needs a second operation. Without it cuDNN has only plans for
// tensors of one type.
cudnn::Graph graph_of(const Key& key) {
  const ConvolutionShape& s = key.shape;
  const Window& w = s.window;
  const Four x{w.batch, s.in, w.height, w.width}, y{w.batch, s.out, w.out_height(), w.out_width()},
      weights{s.out, s.in / s.groups, w.kernel_height, w.kernel_width};
  cudnn::Graph graph;
  cudnn::Tensor kept;
  auto tensor = [&](int64_t id, const Four& sizes, ConvolutionSide side) {
    const DType type = side == key.result ? key.result_type : key.operands;
    cudnn::Tensor t = graph.tensor(id, sizes, strides_of(sizes), type_of(type),
                                   side == ConvolutionSide::weights ? 16 : key.alignment);
    if (type == key.operands) return t;
    kept = t;
    return graph.like(t, CUDNN_DATA_FLOAT);
  };
  const cudnn::Tensor of_x = tensor(kX, x, ConvolutionSide::inputs),
                      of_weights = tensor(kWeights, weights, ConvolutionSide::weights),
                      of_y = tensor(kY, y, ConvolutionSide::outputs);
  graph.convolve(key.result, of_x, of_weights, of_y, w.stride, w.padding,
                 key.write == Write::accumulate ? 1 : 0);
  if (key.result_type != key.operands)
    graph.pointwise(CUDNN_POINTWISE_IDENTITY,
                    key.result == ConvolutionSide::inputs    ? of_x
                    : key.result == ConvolutionSide::outputs ? of_y
                                                             : of_weights,
                    kept);
  return graph;
}

cudnn::Demands demands_of(const Key& key) {
  return {.fixed_order = true,
          .exact_f32 = key.operands == DType::f32,
          .tf32 = key.tf32,
          .most_workspace = convolution_workspace(key.shape, key.operands)};
}

// A plan, or cuDNN's reason to have none.
struct Found {
  std::unique_ptr<cudnn::Plan> plan;
  std::string problem;
};

const Found& plan_for(const Key& key, Queue& queue) {
  // The shapes of a run are fixed, so plans are kept to its end.
  static std::map<Key, Found> plans;
  auto [it, added] = plans.try_emplace(key);
  if (added) try {
      it->second.plan = std::make_unique<cudnn::Plan>(graph_of(key), cudnn::handle_on(queue), "",
                                                      demands_of(key));
    } catch (const base::Error& e) {
      it->second.problem = e.what();
    }
  return it->second;
}

int64_t alignment_of(const View& a, const View& b) {
  const auto address = reinterpret_cast<uintptr_t>(a.data) | reinterpret_cast<uintptr_t>(b.data);
  return address % 16 == 0 ? 16 : std::min(device::size_of(a.type), device::size_of(b.type));
}

// A convolution with the tensors of its caller.
struct Call {
  ConvolutionSide result;
  const ConvolutionShape& shape;
  View x, y, weights;
  Write write;

  bool makes_weights() const { return result == ConvolutionSide::weights; }
  const View& target() const {
    return makes_weights() ? weights : result == ConvolutionSide::inputs ? x : y;
  }
  DType operands() const { return result == ConvolutionSide::inputs ? y.type : x.type; }
};

std::string text_of(const ConvolutionShape& s, DType operands) {
  return fmt::format(
      "convolution of {} images of {} x {}, {} to {} channels in {} groups, windows of {} x {}, {}",
      s.window.batch, s.window.height, s.window.width, s.in, s.out, s.groups,
      s.window.kernel_height, s.window.kernel_width, device::name_of(operands));
}

// Runs a plan on weights with channels last. If the plan cannot write an image's type or cannot add
// to the image, it writes to scratch, and a copy follows.
void run_call(const Call& call, Queue& queue) {
  const View& target = call.target();
  const bool mixed = target.type != call.operands();
  Key key{call.result,
          call.shape,
          call.operands(),
          target.type,
          mixed || call.makes_weights() ? Write::overwrite : call.write,
          alignment_of(call.x, call.y),
          queue.tf32() && call.operands() == DType::f32};
  const Found* found = &plan_for(key, queue);
  const ConvolutionShape& s = call.shape;
  if (mixed && !found->plan) {
    count_fallback(text_of(s, key.operands) + ": a copy makes the f32 result: " + found->problem,
                   queue);
    key.result_type = key.operands;
    found = &plan_for(key, queue);
  }
  if (!found->plan)
    base::fail(base::Exit::mesh, "{}: {}", text_of(s, key.operands), found->problem);
  const bool apart =
      !call.makes_weights() && (key.result_type != target.type || key.write != call.write);
  const ConvolutionScratch places(s, call.weights.type, apart ? target.count : 0,
                                  int64_t(found->plan->workspace_bytes()));
  char* const workspace = static_cast<char*>(queue.scratch(size_t(places.bytes)));
  char *const last = workspace + places.weights, *const image = workspace + places.image;
  auto place_of = [&](ConvolutionSide side, const View& v) -> const void* {
    return apart && call.result == side ? image : v.data;
  };
  if (!call.makes_weights()) put_channels_last(last, call.weights, s, queue);
  found->plan->run(cudnn::handle_on(queue),
                   {{kX, place_of(ConvolutionSide::inputs, call.x)},
                    {kWeights, last},
                    {kY, place_of(ConvolutionSide::outputs, call.y)}},
                   workspace);
  if (call.makes_weights())
    take_channels_last(call.weights, {last, key.result_type, target.count}, s, call.write, queue);
  else if (apart)
    take_floats(target, {image, key.result_type, target.count}, call.write, queue);
}

template <class Args>
void prepare(const Args& a, const Queue& queue) {
  if (a.shape.is_product()) prepare_cuda(product_of(a), queue);
}

}  // namespace

void run_cuda(const ConvolutionForward& a, Queue& queue) {
  if (a.y.count == 0) return;
  if (a.shape.is_product()) return run_cuda(product_of(a), queue);
  run_call({ConvolutionSide::outputs, a.shape, a.x, a.y, a.weight, Write::overwrite}, queue);
}

void run_cuda(const ConvolutionBackwardData& a, Queue& queue) {
  if (a.dx.count == 0) return;
  if (a.shape.is_product()) return run_cuda(product_of(a), queue);
  run_call({ConvolutionSide::inputs, a.shape, a.dx, a.dy, a.weight, a.write}, queue);
}

void run_cuda(const ConvolutionBackwardWeights& a, Queue& queue) {
  if (a.shape.window.batch == 0) {  // an empty sum
    if (a.write == Write::overwrite) run_cuda(Fill{.y = a.dw, .value = 0}, queue);
    return;
  }
  if (a.shape.is_product()) return run_cuda(product_of(a), queue);
  run_call({ConvolutionSide::weights, a.shape, a.x, a.dy, a.dw, a.write}, queue);
}

void prepare_cuda(const ConvolutionForward& a, const Queue& queue) { prepare(a, queue); }
void prepare_cuda(const ConvolutionBackwardData& a, const Queue& queue) { prepare(a, queue); }
void prepare_cuda(const ConvolutionBackwardWeights& a, const Queue& queue) { prepare(a, queue); }

std::string cudnn_plan_problem(ConvolutionSide result, const ConvolutionShape& shape,
                               DType operands, DType result_type, Write write,
                               const std::string& device) {
  auto problem_of = [&](DType type) -> std::string {
    const Key key{result, shape, operands, type, write, 16, false};
    try {
      cudnn::Plan plan(graph_of(key), nullptr, device, demands_of(key));
      return "";
    } catch (const base::Error& e) {
      return e.what();
    }
  };
  const std::string problem = problem_of(result_type);
  const bool none = problem.find("no plan among 0") != std::string::npos;
  return none && result_type != operands ? problem_of(operands) : problem;  // as run_call
}

}  // namespace kernels
