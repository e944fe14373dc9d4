// SPDX-License-Identifier: Apache-2.0
// A made-up state and ways to cut it among ranks, for tests of checkpoints with and without MPI.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/state.hpp"

namespace tests {

using device::DType;

struct Tensor {
  const char* name;
  DType type;
  std::vector<int64_t> shape;
};
// Scalars, odd sizes, several blocks of 1 MiB, exactly one block, an empty tensor, every element
// type.
inline const std::vector<Tensor> kTensors = {
    {"/params/encoder/kernel", DType::f32, {701, 1003}},
    {"/params/encoder/bias", DType::f32, {1003}},
    {"/params/one_block", DType::f32, {512, 512}},
    {"/params/empty", DType::f32, {0, 4}},
    {"/optimizer/momentum/encoder/kernel", DType::bf16, {701, 1003}},
    {"/optimizer/count", DType::i32, {}},
    {"/optimizer/scale", DType::f64, {3}},
    {"/optimizer/half", DType::f16, {7, 5}},
    {"/state/seen", DType::i64, {2, 3}},
    {"/state/flags", DType::u8, {(1 << 20) + 1}},
};

inline int64_t count(const Tensor& t) {
  int64_t n = 1;
  for (int64_t d : t.shape) n *= d;
  return n;
}
inline unsigned char byte_at(size_t tensor, int64_t i, int64_t step) {
  uint64_t x = (uint64_t(i) + 1) * 0x9E3779B97F4A7C15ull ^ (tensor * 977 + uint64_t(step) * 31 + 7);
  return static_cast<unsigned char>((x * 0xbf58476d1ce4e5b9ull) >> 56);
}

// Ways to cut a tensor of n elements among `ranks`.
enum class Cut { even, uneven, small_pieces, one_holds_all, replicated, first_holds_nothing };
inline const Cut kCuts[] = {Cut::even,          Cut::uneven,     Cut::small_pieces,
                            Cut::one_holds_all, Cut::replicated, Cut::first_holds_nothing};

inline std::vector<std::pair<int64_t, int64_t>> cut(Cut how, int64_t n, int rank, int ranks) {
  auto even = [n](int64_t r, int64_t of) { return std::pair{n * r / of, n * (r + 1) / of}; };
  switch (how) {
    case Cut::even:
      return {even(rank, ranks)};
    case Cut::uneven: {  // cuts in the middle of blocks and pages
      auto at = [&](int r) {
        return r == 0 ? 0 : r == ranks ? n : std::min(n, n * r / ranks / 3 + 17 * r);
      };
      return {{at(rank), at(rank + 1)}};
    }
    case Cut::small_pieces: {
      std::vector<std::pair<int64_t, int64_t>> parts;
      int64_t pieces = 6 * ranks;
      for (int64_t p = rank; p < pieces; p += ranks) parts.push_back(even(pieces - 1 - p, pieces));
      return parts;
    }
    case Cut::one_holds_all:
      return rank == ranks - 1 ? std::vector<std::pair<int64_t, int64_t>>{{0, n}}
                               : std::vector<std::pair<int64_t, int64_t>>{};
    case Cut::replicated:
      return {{0, n}};
    case Cut::first_holds_nothing:
      if (ranks == 1) return {{0, n}};
      if (rank == 0) return {};
      return {even(rank - 1, ranks - 1)};
  }
  return {};
}

// Owns the memory of one rank's part of the state.
struct Owner {
  std::vector<std::vector<unsigned char>> memory;
  checkpoint::State state;
  Owner(Cut how, int rank, int ranks, int64_t step, bool filled) {
    state.step = step;
    if (filled) {
      state.numbers = {{"train_s", 1.0 / 3 + double(step)},
                       {"nan", std::numeric_limits<double>::quiet_NaN()}};
      state.texts = {{"deck", "[run]\nname = \"x\"\n" + std::string(100, '#')},
                     {"name", "test"},
                     {"version", "0"},
                     {"notes", ""}};
    }
    for (size_t t = 0; t < kTensors.size(); ++t) {
      const Tensor& tensor = kTensors[t];
      shard::TensorSlice slice{
          tensor.name, tensor.type, tensor.shape, {}, how != Cut::replicated || rank == 0};
      int64_t size = device::size_of(tensor.type);
      for (auto [begin, end] : cut(how, count(tensor), rank, ranks)) {
        memory.emplace_back(size_t((end - begin) * size), 0xee);
        if (filled)
          for (int64_t i = 0; i < (end - begin) * size; ++i)
            memory.back()[size_t(i)] = byte_at(t, begin * size + i, step);
        slice.parts.push_back({begin, end, memory.back().data()});
      }
      state.tensors.push_back(slice);
    }
  }
  // Returns "" if everything is as made for `step`, else the first difference.
  std::string problem(int64_t step) const {
    if (state.step != step) return fmt::format("step {} instead of {}", state.step, step);
    if (state.numbers.at("train_s") != 1.0 / 3 + double(step) ||
        !std::isnan(state.numbers.at("nan")))
      return "numbers";
    if (!state.texts.at("deck").starts_with("[run]\n") || state.texts.at("deck").size() != 117)
      return "deck";
    if (state.texts.at("name") != "test" || state.texts.at("notes") != "") return "texts";
    for (size_t t = 0; t < kTensors.size(); ++t)
      for (const auto& part : state.tensors[t].parts) {
        int64_t size = device::size_of(kTensors[t].type);
        const auto* bytes = static_cast<const unsigned char*>(part.data);
        for (int64_t i = 0; i < (part.end - part.begin) * size; ++i)
          if (bytes[i] != byte_at(t, part.begin * size + i, step))
            return fmt::format("{} byte {}", kTensors[t].name, part.begin * size + i);
      }
    return "";
  }
};

inline int64_t made_bytes() {
  int64_t bytes = 0;
  for (const Tensor& t : kTensors) bytes += count(t) * device::size_of(t.type);
  return bytes;
}

}  // namespace tests
