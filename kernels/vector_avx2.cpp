// The vector loops for x86-64-v3, the floor of the build.
#include <cstdint>

#include "kernels/attention_head.hpp"
#include "kernels/vector_rows.hpp"
#include "kernels/vector_table.hpp"

namespace kernels {

const VectorTable kAvx2Table = {"avx2", gelu_forward, gelu_backward, to_bf16, from_bf16, exp_of, softmax_xent_row, layer_norm_forward,
                                layer_norm_backward, dropout, attention_forward_scratch, attention_forward,
                                attention_backward_scratch, attention_backward};

}  // namespace kernels
