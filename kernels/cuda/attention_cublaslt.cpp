// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_cublaslt.hpp"

#include <algorithm>

#include "kernels/cuda/attention_padded.hpp"
#include "kernels/cuda/attention_scores.hpp"
#include "kernels/cuda/matmul_cublaslt.hpp"
#include "kernels/paths.hpp"

namespace kernels {
using namespace cublaslt;
namespace {

// One row-major matrix for each example. `row`, `example`: elements from one to the next.
struct Matrices {
  float* data;
  int64_t rows, columns, row, example;
  bool turned = false;  // the product reads the transposed matrix

  Matrices transposed() const {
    Matrices out = *this;
    std::swap(out.rows, out.columns);
    out.turned = !turned;
    return out;
  }
};

// c = a . b for each example.
Call product(const Matrices& c, const Matrices& a, const Matrices& b, int64_t examples,
             const Queue& queue) {
  return {.m = c.columns,
          .n = c.rows,
          .k = a.columns,
          .lda = b.row,
          .ldb = a.row,
          .ldc = c.row,
          .ldd = c.row,
          .trans_a = b.turned,
          .trans_b = a.turned,
          .tf32 = queue.tf32(),
          .batch = examples,
          .next_a = b.example,
          .next_b = a.example,
          .next_d = c.example,
          .a = b.data,
          .b = a.data,
          .c = c.data,
          .d = c.data};
}

// The work on one head of some examples.
class Head {
 public:
  Head(const AttentionShape& shape, const ProductScratch& places, char* scratch, int64_t head,
       int64_t first, Queue& queue)
      : shape_(shape),
        scratch_(scratch),
        scores_{.data = reinterpret_cast<float*>(scratch + places.scores),
                .stride = places.stride,
                .head = head,
                .first = first,
                .examples = std::min(places.examples, shape.batch - first)},
        second_(reinterpret_cast<float*>(scratch + places.scores + places.matrix)),
        queue_(queue) {}

  const HeadScores& scores() const { return scores_; }
  float* second() const { return second_; }  // the second matrix of scores
  // `whole`: [batch, length, heads, head_dim], with `stride` elements from a row to the next
  Matrices of(const View& whole, int64_t length, int64_t stride) const {
    return {whole.f32() + scores_.first * length * stride + scores_.head * shape_.head_dim, length,
            shape_.head_dim, stride, length * stride};
  }
  Matrices outputs(const View& whole) const { return of(whole, shape_.query_length, shape_.row()); }
  Matrices queries(const View& whole) const {
    return of(whole, shape_.query_length, shape_.next_query());
  }
  Matrices keys(const View& whole) const { return of(whole, shape_.key_length, shape_.next_key()); }
  Matrices matrix(float* data) const {
    return {data, shape_.query_length, shape_.key_length, scores_.stride,
            shape_.query_length * scores_.stride};
  }
  // Computes c = a . b. Returns false if the library has no kernel.
  bool multiply(const Matrices& c, const Matrices& a, const Matrices& b) {
    const Call call = product(c, a, b, scores_.examples, queue_);
    const Matmul& matmul = matmul_for(call);
    if (!matmul.found) {
      count_fallback("attention: cuBLASLt has no kernel for " + text_of(call), queue_);
      return false;
    }
    execute(call, matmul, matmul.algorithm, scratch_, queue_);
    return true;
  }

 private:
  const AttentionShape& shape_;
  char* scratch_;
  HeadScores scores_;
  float* second_;
  Queue& queue_;
};

// Calls f(head) for every head of all examples, until it returns false.
template <class F>
bool for_each_head(const AttentionShape& s, const ProductScratch& places, char* scratch,
                   Queue& queue, const F& f) {
  for (int64_t first = 0; first < s.batch; first += places.examples)
    for (int64_t h = 0; h < s.heads; ++h)
      if (!f(Head(s, places, scratch, h, first, queue))) return false;
  return true;
}

bool serves(const AttentionShape& shape, DType type, const Queue& queue) {
  return is_for_products(shape, type) && !queue.fixed_order();
}

}  // namespace

bool attention_by_products(const AttentionForward& a, Queue& queue) {
  if (!serves(a.shape, a.q.type, queue)) return false;
  const ProductScratch places(a.shape, 1, padded_bytes(a));
  char* scratch = static_cast<char*>(queue.scratch(size_t(places.bytes)));
  const AttentionForward whole = padded(a, scratch + places.copies, queue);
  const bool done = for_each_head(whole.shape, places, scratch, queue, [&](Head head) {
    const Matrices scores = head.matrix(head.scores().data);
    if (!head.multiply(scores, head.queries(whole.q), head.keys(whole.k).transposed()))
      return false;
    weights_of_scores(head.scores(), static_cast<float*>(a.lse.data), a.shape, queue);
    return head.multiply(head.outputs(whole.o), scores, head.keys(whole.v));
  });
  if (done) take_results(whole, a, queue);
  return done;
}

bool attention_by_products(const AttentionBackward& a, Queue& queue) {
  if (!serves(a.shape, a.q.type, queue)) return false;
  const ProductScratch places(a.shape, 2, padded_bytes(a));
  char* scratch = static_cast<char*>(queue.scratch(size_t(places.bytes)));
  const AttentionBackward whole = padded(a, scratch + places.copies, queue);
  const bool done = for_each_head(whole.shape, places, scratch, queue, [&](Head head) {
    const Matrices weights = head.matrix(head.scores().data),
                   gradients = head.matrix(head.second());
    const Matrices q = head.queries(whole.q), k = head.keys(whole.k), v = head.keys(whole.v),
                   d_o = head.outputs(whole.d_o);
    if (!head.multiply(weights, q, k.transposed()) ||
        !head.multiply(gradients, d_o, v.transposed()))
      return false;
    gradients_of_scores(head.scores(), head.second(), a, queue);
    return head.multiply(head.keys(whole.dv), weights.transposed(), d_o) &&
           head.multiply(head.queries(whole.dq), gradients, k) &&
           head.multiply(head.keys(whole.dk), gradients.transposed(), q);
  });
  if (done) take_results(whole, a, queue);
  return done;
}

}  // namespace kernels
