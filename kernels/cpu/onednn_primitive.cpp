// SPDX-License-Identifier: Apache-2.0
// One oneDNN matrix product of fixed shape.
#include "kernels/cpu/onednn_primitive.hpp"

#include "kernels/cpu/onednn_versions.hpp"

namespace kernels {

const dnnl::engine& onednn_engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

OnednnPrimitive::OnednnPrimitive(const GemmKey& key, int64_t m, int64_t n, int workers,
                                 const OnednnPrimitive* like) {
  using dnnl::memory;
  auto type = [](bool narrow) { return narrow ? memory::data_type::bf16 : memory::data_type::f32; };
  auto matrix = [&](int64_t rows, int64_t columns, int64_t leading, bool transposed, bool narrow) {
    return memory::desc({rows, columns}, type(narrow),
                        transposed ? memory::dims{1, leading} : memory::dims{leading, 1});
  };
  memory::desc a = matrix(m, key.k, key.product_lda(), key.trans_a, key.narrow);
  memory::desc b = matrix(key.k, n, key.ldb, key.trans_b, key.narrow);
  const memory::desc any_b =
      like ? like->packed_ : memory::desc({key.k, n}, type(key.narrow), memory::format_tag::any);
  memory::desc c = matrix(m, n, key.product_ldc(), false, key.narrow_c && !key.widen);
  memory::desc residual = matrix(m, n, key.product_ldc(), false, false);
  memory::desc bias = matrix(1, n, n, false, false);

  dnnl::post_ops post_ops;
  if (key.accumulate) post_ops.append_sum(1.0f);
  if (key.residual) post_ops.append_binary(dnnl::algorithm::binary_add, residual);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_post_ops(post_ops);
  const dnnl::matmul::primitive_desc description =
      describe_product(a, key.packed_b ? any_b : b, key.bias ? &bias : nullptr, c, attributes);
  primitive_ = dnnl::matmul(description);
  scratch_bytes_ = description.scratchpad_desc().get_size();
  if (key.packed_b) {
    plain_ = b;
    b = packed_ = description.weights_desc();
    pack_ = dnnl::reorder(
        dnnl::reorder::primitive_desc(onednn_engine(), plain_, onednn_engine(), packed_));
  }

  for (int w = 0; w < workers; ++w) {
    Worker& worker = workers_.emplace_back();
    worker.stream = dnnl::stream(onednn_engine());
    auto argument = [&](int id, const memory::desc& desc) {
      worker.memories.emplace_back(desc, onednn_engine(), nullptr);
      worker.arguments.push_back({id, worker.memories.back().get()});
      return int(worker.memories.size()) - 1;
    };
    argument(DNNL_ARG_DST, c);
    argument(DNNL_ARG_SRC, a);
    argument(DNNL_ARG_WEIGHTS, b);
    scratch_index_ = argument(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
    if (key.bias) bias_index_ = argument(DNNL_ARG_BIAS, bias);
    int post_op = key.accumulate ? 1 : 0;
    if (key.residual)
      residual_index_ =
          argument(DNNL_ARG_ATTR_MULTIPLE_POST_OP(post_op) | DNNL_ARG_SRC_1, residual);
  }
}

void OnednnPrimitive::pack_b(const char* b, char* packed) {
  dnnl::stream stream(onednn_engine());
  dnnl::memory from(plain_, onednn_engine(), const_cast<char*>(b)),
      to(packed_, onednn_engine(), packed);
  pack_.execute(stream, from, to);
  stream.wait();
}

// Calls oneDNN's C interface, because it does not throw (this runs in parallel regions) and does
// not copy the arguments.
dnnl_status_t OnednnPrimitive::run(int w, const GemmOperands& p, void* scratch) {
  Worker& worker = workers_[size_t(w)];
  auto point = [&](int index, void* data) {
    return dnnl_memory_set_data_handle(worker.memories[size_t(index)].get(), data);
  };
  dnnl_status_t status = dnnl_success;
  auto keep_first_error = [&](dnnl_status_t s) { status = status == dnnl_success ? s : status; };
  keep_first_error(point(0, p.c));
  keep_first_error(point(1, p.a));
  keep_first_error(point(2, p.b));
  keep_first_error(point(scratch_index_, scratch));
  if (bias_index_ >= 0) keep_first_error(point(bias_index_, p.bias));
  if (residual_index_ >= 0) keep_first_error(point(residual_index_, p.residual));
  if (status != dnnl_success) return status;
  return dnnl_primitive_execute(primitive_.get(), worker.stream.get(), int(worker.arguments.size()),
                                worker.arguments.data());
}

}  // namespace kernels
