// SPDX-License-Identifier: Apache-2.0
#include "data/array.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/narrow.hpp"

namespace data {
namespace {

constexpr size_t kAlign = 64, kSpare = 16;
constexpr size_t kPoolBlocks = 8;
constexpr size_t kLargestPooled = size_t{32} << 20;  // a rare huge image must not stay in memory

std::atomic<int64_t> g_allocated{0};

struct Block {
  uint8_t* data;
  size_t capacity;
};

// True after this thread's pool is destroyed. Blocks released later go back to the system at once.
thread_local bool t_closed = false;

struct Pool {
  Block blocks[kPoolBlocks];
  size_t used = 0;
  ~Pool() {
    for (size_t i = 0; i < used; ++i) std::free(blocks[i].data);
    used = 0;
    t_closed = true;
  }
};
thread_local Pool t_pool;

// Rounds up to few distinct capacities (four per power of two), so that images of slightly
// different sizes share blocks.
size_t rounded(size_t bytes) {
  size_t step = kAlign;
  while (step * 8 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

Block allocate_block(size_t bytes) {
  size_t capacity = rounded(bytes + kSpare), best = kPoolBlocks;
  if (!t_closed) {
    Pool& pool = t_pool;
    for (size_t i = 0; i < pool.used; ++i)
      if (size_t c = pool.blocks[i].capacity;
          c >= capacity && c / 4 <= capacity &&
          (best == kPoolBlocks || c < pool.blocks[best].capacity))
        best = i;
    if (best != kPoolBlocks) {
      Block found = pool.blocks[best];
      pool.blocks[best] = pool.blocks[--pool.used];
      return found;
    }
  }
  auto* p = static_cast<uint8_t*>(std::aligned_alloc(kAlign, capacity));
  if (!p) throw std::bad_alloc();
  ++g_allocated;
  return {p, capacity};
}

void release_block(Block block) {
  if (block.capacity == 0) return;
  if (t_closed || block.capacity > kLargestPooled) return std::free(block.data);
  Pool& pool = t_pool;
  if (pool.used < kPoolBlocks) {
    pool.blocks[pool.used++] = block;
    return;
  }
  Block* smallest =
      std::min_element(pool.blocks, pool.blocks + kPoolBlocks,
                       [](const Block& a, const Block& b) { return a.capacity < b.capacity; });
  if (smallest->capacity < block.capacity) std::swap(*smallest, block);
  std::free(block.data);
}

}  // namespace

int64_t blocks_from_system() { return g_allocated; }

Bytes::Bytes(const Bytes& other) : Bytes(other.size_) {
  if (size_) std::memcpy(data_, other.data_, size_);
}

Bytes Bytes::borrowed(uint8_t* data, size_t size) {
  Bytes out;
  out.data_ = data;
  out.size_ = size;
  return out;
}

Bytes::~Bytes() { release_block({data_, capacity_}); }

void Bytes::reset(size_t size) {
  if (size + kSpare > capacity_) {
    release_block({std::exchange(data_, nullptr), std::exchange(capacity_, 0)});
    size_ = 0;
    Block block = allocate_block(size);
    data_ = block.data;
    capacity_ = block.capacity;
  }
  size_ = size;
}

void Bytes::swap(Bytes& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
}

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i) out += ',';
    out += shape[i] < 0 ? "?" : std::to_string(shape[i]);
  }
  return out + "]";
}

void Array::reset(device::DType element, std::vector<int64_t> dims) {
  type = element;
  shape = std::move(dims);
  bytes.reset(base::narrow<size_t>(count() * device::size_of(type)));
}

bool FieldSpec::fixed() const {
  return kind == Kind::array &&
         std::none_of(shape.begin(), shape.end(), [](int64_t d) { return d < 0; });
}

std::string text_of(const FieldSpec& field) {
  if (field.kind == FieldSpec::Kind::bytes) return "encoded bytes";
  if (field.kind == FieldSpec::Kind::text) return "text";
  if (field.kind == FieldSpec::Kind::texts) return "texts";
  return fmt::format("{} {}", device::name_of(field.type), text_of(field.shape));
}

std::string text_of(const Spec& spec) {
  std::string out;
  for (auto& [name, field] : spec)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, text_of(field));
  return out.empty() ? "nothing" : out;
}

std::string mismatch(const FieldSpec& field, const Value& value) {
  const Array* a = std::get_if<Array>(&value);
  FieldSpec actual = a                                      ? FieldSpec::array(a->type, a->shape)
                     : std::holds_alternative<Bytes>(value) ? FieldSpec::encoded()
                     : std::holds_alternative<std::string>(value) ? FieldSpec::characters()
                                                                  : FieldSpec::list_of_texts();
  bool same = actual.kind == field.kind;
  if (same && a) {
    same = a->type == field.type && a->shape.size() == field.shape.size();
    for (size_t i = 0; same && i < a->shape.size(); ++i)
      same = field.shape[i] < 0 || field.shape[i] == a->shape[i];
  }
  return same ? "" : fmt::format("is {}, expected {}", text_of(actual), text_of(field));
}

}  // namespace data
