// Second stage of sums over many blocks: partial sums are added in an order that their number alone decides.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// out[j] = (+=) sum over b of partial[b * stride + j], j < columns, b < blocks. All on the queue's device.
void add_partials(float* out, const float* partial, int64_t blocks, int64_t stride, int64_t columns, Write write,
                  Queue& queue);

// Where the blocks of a kernel leave their sums of doubles: [sum][block] in the queue's scratch, or where the sums go if there
// is one block. `add` then makes out[s] = sum over blocks.
class DoublePartials {
 public:
  DoublePartials(const View& out, int64_t blocks, int sums, Queue& queue);
  double* data() const { return data_; }
  void add(Queue& queue) const;

 private:
  double *out_, *data_;
  int64_t blocks_;
  int sums_;
};

}  // namespace kernels
