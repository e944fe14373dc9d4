// SPDX-License-Identifier: Apache-2.0
// Tests that the emulated cuDNN refuses graphs and calls that the real one refuses, and that its
// results show strides that are wrong.
#include <string>
#include <vector>

#include "emulated_gpu.hpp"
#include "kernels/cuda/graph_cudnn.hpp"
#include "tests/unit/cuda_on_cpu/error_text.hpp"

namespace {

using namespace kernels;
using cudnn::Argument;
using cudnn::Four;
using cudnn::Graph;
using cudnn::Plan;
using cudnn::Tensor;

enum Ids : int64_t { kQ = 1, kK, kScale, kY };
constexpr Four kSquare{1, 1, 4, 4}, kByRows{16, 16, 4, 1}, kByColumns{16, 16, 1, 4};
constexpr auto kFloat = CUDNN_DATA_FLOAT;

class EmulatedCudnn : public EmulatedGpu {
 protected:
  EmulatedCudnn() : large_(device::Kind::cuda, ledger_, "test", 8192) {}
  float* at(int64_t i) const { return static_cast<float*>(large_.data()) + i; }
  // y = scale * q k, where the strides of k say which matrix its memory has.
  static Graph product(const Four& strides_of_k) {
    Graph g;
    const Tensor q = g.tensor(kQ, kSquare, kByRows, kFloat),
                 k = g.tensor(kK, kSquare, strides_of_k, kFloat),
                 sums = g.between(kSquare, kByRows, kFloat);
    g.multiply(q, k, sums);
    g.pointwise(CUDNN_POINTWISE_MUL, sums, g.scalar(kScale),
                g.tensor(kY, kSquare, kByRows, kFloat));
    return g;
  }
  std::vector<Argument> arguments() const {
    return {{kQ, at(0)}, {kK, at(16)}, {kScale, &scale_}, {kY, at(32)}};
  }
  cudnnHandle_t handle() { return cudnn::handle_on(queue_); }
  // Runs a correct plan with the given arguments, and returns the library's error.
  std::string error_with(const std::vector<Argument>& given) {
    const Plan plan(product(kByColumns), handle());
    return error_of([&] { plan.run(handle(), given, at(128)); });
  }
  std::vector<float> result(const Four& strides_of_k) {
    std::vector<float> x(32);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 7) - 2;
    const device::View all = large_.view(device::DType::f32);
    device::upload(all.slice(0, 32), x.data(), queue_);
    Plan(product(strides_of_k), handle()).run(handle(), arguments(), at(128));
    std::vector<float> y(16);
    device::download(y.data(), all.slice(32, 16), queue_);
    return y;
  }
  device::Buffer large_;
  float scale_ = 0.5f;
};

TEST_F(EmulatedCudnn, StridesAndNumbersCount) {
  const std::vector<float> y = result(kByColumns);
  float wanted = 0;  // row 1 of q, row 2 of k
  for (int64_t i = 0; i < 4; ++i) wanted += (float((4 + i) % 7) - 2) * (float((24 + i) % 7) - 2);
  EXPECT_EQ(y[1 * 4 + 2], wanted / 2);
  EXPECT_NE(y, result(kByRows)) << "k is not turned";
  scale_ = 1;
  EXPECT_NE(y, result(kByColumns));
}

TEST_F(EmulatedCudnn, EveryTensorInMemoryHasAPlace) {
  EXPECT_EQ(error_with(arguments()), "");
  for (size_t left_out = 0; left_out < arguments().size(); ++left_out) {
    std::vector<Argument> fewer = arguments();
    fewer.erase(fewer.begin() + long(left_out));
    EXPECT_NE(error_with(fewer).find("running a plan"), std::string::npos) << left_out;
  }
  std::vector<Argument> shifted = arguments();
  shifted[1].data = at(18);
  EXPECT_NE(error_with(shifted), "") << "less alignment than the graph says";
}

TEST_F(EmulatedCudnn, GraphsAreComplete) {
  Graph unknown;
  unknown.pointwise(CUDNN_POINTWISE_EXP, unknown.between(kSquare, kByRows, kFloat),
                    unknown.tensor(kY, kSquare, kByRows, kFloat));
  EXPECT_NE(error_of([&] { const Plan plan(unknown, handle()); }), "")
      << "no operation makes its argument";
  Graph other;
  other.multiply(other.tensor(kQ, {1, 1, 4, 3}, kByRows, kFloat),
                 other.tensor(kK, kSquare, kByRows, kFloat),
                 other.tensor(kY, kSquare, kByRows, kFloat));
  EXPECT_NE(error_of([&] { const Plan plan(other, handle()); }), "") << "4 x 3 times 4 x 4";
  cudnn::Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR),
      operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  EXPECT_NE(error_of([&] { operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how); }), "")
      << "it is not finished";
  how.finish();
  EXPECT_NE(error_of([&] { how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kFloat); }),
            "")
      << "it is finished";
}

TEST_F(EmulatedCudnn, TheWorkspaceIsOverwritten) {
  Graph g;
  const Four image{1, 8, 2, 2}, last{32, 1, 16, 8};
  g.convolve(ConvolutionSide::outputs, g.tensor(1, image, last, kFloat),
             g.tensor(2, {8, 8, 1, 1}, {8, 1, 8, 8}, kFloat), g.tensor(3, image, last, kFloat), 1,
             0, 0);
  const Plan plan(g, handle());
  ASSERT_GT(plan.workspace_bytes(), 0u);
  const std::vector<Argument> right{{1, at(0)}, {2, at(64)}, {3, at(128)}};
  EXPECT_EQ(error_of([&] { plan.run(handle(), right, at(256)); }), "");
  queue_.synchronize();
  // Another stream uses the same workspace.
  device::Queue second(device::Kind::cuda);
  device::check_cuda(cudaMemsetAsync(at(256), 0, 64, device::stream_of(second)), "a test");
  EXPECT_NE(error_of([&] { plan.run(handle(), right, at(256)); }).find("streams without an order"),
            std::string::npos);
}

}  // namespace
