// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weight_file.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.hpp"
#include "base/text.hpp"
#include "kernels/f16_value.hpp"

namespace checkpoint {
namespace {

constexpr int64_t kPiece = int64_t{1} << 18;  // elements converted at a time
constexpr size_t kLongestName = 1024;

template <class From>
void convert(const char* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * int64_t(sizeof value), sizeof value);
    to[i] = static_cast<float>(value);
  }
}

void convert_f16(const char* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = kernels::loops::to_float(kernels::loops::F16{bits});
  }
}

void convert_bf16(const char* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = std::bit_cast<float>(uint32_t(bits) << 16);
  }
}

}  // namespace

std::optional<int64_t> checked_count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape)
    if (d < 0 || __builtin_mul_overflow(n, std::max<int64_t>(d, 1), &n) || n > (int64_t{1} << 59))
      return {};
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? n : 0;
}

int64_t FileTensor::count() const { return checked_count(shape).value(); }

std::string describe(const FileTensor& t) {
  return fmt::format("{} {}[{}]", t.name, t.dtype, fmt::join(t.shape, ", "));
}

void WeightFile::refuse(std::string_view what) const {
  base::fail(base::Exit::checkpoint, "{}: {}", path_, what);
}

void WeightFile::add(FileTensor tensor) {
  if (tensor.name.empty()) refuse("a tensor has no name");
  if (tensor.name.size() > kLongestName)  // patterns are matched by recursion over their characters
    refuse(fmt::format("the name of a tensor has {} bytes, at most {} are read: {}",
                       tensor.name.size(), kLongestName, base::quoted(tensor.name, 40)));
  tensors_.push_back(std::move(tensor));
}

void WeightFile::begin(size_t tensor) {
  CHECK(tensor < tensors_.size() && tensors_[tensor].type && (!current_ || tensor > *current_),
        "tensor {} of {} after {}", tensor, tensors_.size(), current_.value_or(0));
  current_ = tensor;
  left_ = tensors_[tensor].count();
  seek(tensor);
}

void WeightFile::read(float* out, int64_t count) {
  CHECK(current_ && count <= left_, "{} elements are wanted, {} are left", count, left_);
  device::DType type = *tensors_[*current_].type;
  for (int64_t done = 0; done < count;) {
    int64_t n = std::min(kPiece, count - done);
    if (type == device::DType::f32) {
      take(reinterpret_cast<char*>(out + done), 4 * n);
    } else {
      buffer_.resize(size_t(n * device::size_of(type)));
      take(buffer_.data(), int64_t(buffer_.size()));
      if (type == device::DType::f64) convert<double>(buffer_.data(), out + done, n);
      if (type == device::DType::i64) convert<int64_t>(buffer_.data(), out + done, n);
      if (type == device::DType::f16) convert_f16(buffer_.data(), out + done, n);
      if (type == device::DType::bf16) convert_bf16(buffer_.data(), out + done, n);
    }
    done += n;
  }
  left_ -= count;
  if (left_ == 0) finish();
}

}  // namespace checkpoint
