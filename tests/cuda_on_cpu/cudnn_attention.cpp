// SPDX-License-Identifier: Apache-2.0
// Interprets graphs of attention, one operation after the other. Each tensor is an image of its
// memory in f32, so a reshape is the same image with other strides. Values round where a tensor is
// narrow, also between operations. Products add in double precision.
#include "cudnn_attention.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "watch.hpp"

namespace cuda_on_cpu {
namespace {

using Four = std::array<int64_t, 4>;
using Image = std::vector<float>;

int64_t extent(const DnnTensor& t) {
  int64_t last = 0;
  for (size_t d = 0; d < 4; ++d) last += (t.sizes[d] - 1) * t.strides[d];
  return last + 1;
}
int64_t offset(const DnnTensor& t, const Four& at) {
  int64_t out = 0;
  for (size_t d = 0; d < 4; ++d)
    if (t.sizes[d] > 1) out += at[d] * t.strides[d];  // a size of 1 serves all
  return out;
}

template <class F>
void for_each_place(const Four& sizes, const F& f) {
  Four at{};
  for (at[0] = 0; at[0] < sizes[0]; ++at[0])
    for (at[1] = 0; at[1] < sizes[1]; ++at[1])
      for (at[2] = 0; at[2] < sizes[2]; ++at[2])
        for (at[3] = 0; at[3] < sizes[3]; ++at[3]) f(at);
}

float rounded(float x, cudnnDataType_t type) {
  return type == CUDNN_DATA_BFLOAT16 ? to_float(kernels::loops::round_to_bf16(x))
         : type == CUDNN_DATA_HALF   ? to_float(kernels::loops::round_to_f16(x))
                                     : x;
}

// The images of a run.
class Values {
 public:
  const Image& of(const DnnTensor& t) {
    auto [it, added] = images_.try_emplace(t.id);
    if (added && !t.is_virtual) {
      it->second.resize(size_t(extent(t)));
      for (size_t i = 0; i < it->second.size(); ++i) it->second[i] = t.read(int64_t(i));
    }
    return it->second;
  }
  Image& start(const DnnTensor& t) { return images_[t.id] = Image(size_t(extent(t)), NAN); }
  // Rounds a result, and writes it to memory unless its tensor is virtual.
  void finish(const DnnTensor& t) {
    Image& image = images_[t.id];
    for (float& x : image) x = rounded(x, t.type);
    if (t.is_virtual) return;
    for_each_place(t.sizes, [&](const Four& at) {
      const int64_t i = offset(t, at);
      t.write(i, image[size_t(i)]);
    });
  }

 private:
  std::map<int64_t, Image> images_;
};

// Returns a matrix of a tensor by rows, in double precision.
std::vector<double> matrix_of(const Image& image, const DnnTensor& t, int64_t b, int64_t h) {
  std::vector<double> out;
  out.reserve(size_t(t.sizes[2] * t.sizes[3]));
  for (int64_t i = 0; i < t.sizes[2]; ++i)
    for (int64_t j = 0; j < t.sizes[3]; ++j)
      out.push_back(double(image[size_t(offset(t, {b, h, i, j}))]));
  return out;
}

void multiply(const DnnOperation& o, Values& values) {
  const Image &x = values.of(o.x), &w = values.of(o.b);
  Image& y = values.start(o.y);
  const int64_t rows = o.x.sizes[2], inner = o.x.sizes[3], columns = o.b.sizes[3];
  std::vector<double> sums(static_cast<size_t>(columns));
  for (int64_t b = 0; b < o.y.sizes[0]; ++b)
    for (int64_t h = 0; h < o.y.sizes[1]; ++h) {
      const std::vector<double> left = matrix_of(x, o.x, b, h), right = matrix_of(w, o.b, b, h);
      for (int64_t i = 0; i < rows; ++i) {
        std::fill(sums.begin(), sums.end(), 0);
        for (int64_t k = 0; k < inner; ++k) {
          const double factor = left[size_t(i * inner + k)];
          const double* row = &right[size_t(k * columns)];
          for (int64_t j = 0; j < columns; ++j) sums[size_t(j)] += factor * row[j];
        }
        for (int64_t j = 0; j < columns; ++j)
          y[size_t(offset(o.y, {b, h, i, j}))] = float(sums[size_t(j)]);
      }
    }
}

float result_of(const DnnOperation& o, const Four& at, float x, float b, float t) {
  switch (o.mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b;
    case CUDNN_POINTWISE_CMP_LT:
      return x < b;
    case CUDNN_POINTWISE_GEN_INDEX:
      return float(at[size_t(o.axis)]);
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0 ? x : b;
    default:
      return NAN;
  }
}

void compute(const DnnOperation& o, Values& values) {
  static const Image kNothing;
  const bool reads_x = o.mode != CUDNN_POINTWISE_GEN_INDEX;
  const Image &x = reads_x ? values.of(o.x) : kNothing, &b = o.has_b ? values.of(o.b) : kNothing,
              &t = o.has_t ? values.of(o.t) : kNothing;
  Image& y = values.start(o.y);
  for_each_place(o.y.sizes, [&](const Four& at) {
    auto read = [&](const Image& image, const DnnTensor& of) {
      return image.empty() ? 0.0f : image[size_t(offset(of, at))];
    };
    y[size_t(offset(o.y, at))] = result_of(o, at, read(x, o.x), read(b, o.b), read(t, o.t));
  });
}

void reduce(const DnnOperation& o, Values& values) {
  const Image& x = values.of(o.x);
  Image& y = values.start(o.y);
  for_each_place(o.y.sizes, [&](Four at) {
    double sum = 0, largest = -INFINITY;
    const size_t to = size_t(offset(o.y, at));
    for (at[3] = 0; at[3] < o.x.sizes[3]; ++at[3]) {
      const double one = double(x[size_t(offset(o.x, at))]);
      sum += one;
      largest = one > largest || std::isnan(one) ? one : largest;
    }
    y[to] = float(o.mode == CUDNN_REDUCE_TENSOR_MAX ? largest : sum);
  });
}

bool is(const DnnOperation& o, cudnnBackendDescriptorType_t type) { return o.type == type; }
bool fits(const DnnTensor& part, const DnnTensor& whole) {
  for (size_t d = 0; d < 4; ++d)
    if (part.sizes[d] != 1 && part.sizes[d] != whole.sizes[d]) return false;
  return true;
}

bool is_sound(const DnnOperation& o) {
  const Four &x = o.x.sizes, &b = o.b.sizes, &y = o.y.sizes;
  if (is(o, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR))
    return x[3] == b[2] && y == Four{x[0], x[1], x[2], b[3]} && b[0] == x[0] && b[1] == x[1];
  if (is(o, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR))
    return y == Four{x[0], x[1], x[2], 1} &&
           (o.mode == CUDNN_REDUCE_TENSOR_ADD || o.mode == CUDNN_REDUCE_TENSOR_MAX);
  if (is(o, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)) return extent(o.x) == extent(o.y);
  if (!is(o, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)) return false;
  const bool one = o.mode == CUDNN_POINTWISE_EXP || o.mode == CUDNN_POINTWISE_LOG ||
                   o.mode == CUDNN_POINTWISE_GEN_INDEX,
             three = o.mode == CUDNN_POINTWISE_BINARY_SELECT;
  return o.has_b != one && o.has_t == three && fits(o.x, o.y) && (one || fits(o.b, o.y)) &&
         (!three || fits(o.t, o.y)) &&
         (o.mode != CUDNN_POINTWISE_GEN_INDEX || (o.axis >= 0 && o.axis < 4));
}

}  // namespace

bool DnnAttention::is_backward() const {
  return std::any_of(operations.begin(), operations.end(), [](const DnnOperation& o) {
    return is(o, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  });
}

bool DnnAttention::is_valid() const {
  std::set<int64_t> known;
  for (const DnnOperation& o : operations) {
    if (!is_sound(o)) return false;
    for (const DnnTensor* t : {&o.x, o.has_b ? &o.b : &o.x, o.has_t ? &o.t : &o.x})
      if (t->is_virtual && !known.count(t->id)) return false;
    known.insert(o.y.id);
  }
  return !operations.empty();
}

bool DnnAttention::has_plans() const {
  if (dnn_refuses("attention")) return false;
  for (const DnnOperation& o : operations)
    for (const DnnTensor* t : {&o.x, &o.y}) {
      if (t->is_virtual || (t->type != CUDNN_DATA_BFLOAT16 && t->type != CUDNN_DATA_HALF)) continue;
      const size_t dense = t->strides[3] == 1 ? 3 : 2;
      const int64_t dim = t->sizes[dense];
      if (t->strides[dense] != 1 || dim % 8 != 0 || dim > 128) return false;
    }
  return true;
}

int64_t DnnAttention::workspace_bytes() const {
  if (!is_backward()) return 0;
  auto up = [](int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; };
  for (const DnnOperation& o : operations)
    if (is(o, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)) {
      const Four& scores = o.y.sizes;  // of the first product
      return scores[0] * scores[1] * up(scores[2], 64) * up(scores[3], 128) * 2;
    }
  return 0;
}

std::vector<DnnTensor*> DnnAttention::in_memory() {
  std::vector<DnnTensor*> out;
  for (DnnOperation& o : operations)
    for (DnnTensor* t : {&o.x, &o.y, o.has_b ? &o.b : nullptr, o.has_t ? &o.t : nullptr})
      if (t && !t->is_virtual) out.push_back(t);
  return out;
}

bool DnnAttention::place(const std::map<int64_t, void*>& data) {
  for (DnnTensor* t : in_memory()) {
    auto it = data.find(t->id);
    if (it == data.end()) return false;
    t->data = it->second;
    if (t->is_by_value)
      t->value = *static_cast<const float*>(t->data);
    else if (!t->has_data())
      return false;
  }
  return true;
}

void DnnAttention::run() const {
  Values values;
  for (const DnnOperation& o : operations) {
    for (const DnnTensor* t : {&o.x, &o.b, &o.t})
      if (t->is_in_memory()) reads(t->data, size_t(extent(*t)) * t->element_bytes());
    if (o.y.is_in_memory()) writes(o.y.data, size_t(extent(o.y)) * o.y.element_bytes());
    if (is(o, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR))
      multiply(o, values);
    else if (is(o, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR))
      reduce(o, values);
    else if (is(o, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR))
      values.start(o.y) = values.of(o.x);
    else
      compute(o, values);
    values.finish(o.y);
  }
}

}  // namespace cuda_on_cpu
