// SPDX-License-Identifier: Apache-2.0
// Checks a preprocessing string as part of a deck, makes its ops, and applies them to a sample with
// every kind of field.
#include <cstring>

#include "base/error.hpp"
#include "data/ops/pipeline.hpp"
#include "data/ops/tokenizer_of.hpp"
#include "data/options.hpp"
#include "targets.hpp"

namespace fuzz {
namespace {

using data::FieldSpec;
using device::DType;

// An image of 3 x 2 pixels.
constexpr unsigned char kGif[] = {0x47, 0x49, 0x46, 0x38, 0x39, 0x61, 0x03, 0x00, 0x02, 0x00,
                                  0x80, 0x00, 0x00, 0x10, 0x20, 0x30, 0xf0, 0xe0, 0xd0, 0x2c,
                                  0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x02, 0x00, 0x00, 0x02,
                                  0x04, 0x44, 0x18, 0x30, 0x28, 0x00, 0x3b};

data::Spec spec() {
  return {{"image", FieldSpec::encoded()},
          {"text", FieldSpec::characters()},
          {"captions", FieldSpec::list_of_texts()},
          {"pixels", FieldSpec::array(DType::u8, {5, 4, 3})},
          {"values", FieldSpec::array(DType::f32, {-1, -1, 3})},
          {"labels", FieldSpec::array(DType::i32, {4}, 10)},
          {"label", FieldSpec::array(DType::i32, {})}};
}

data::Array numbers(DType type, std::vector<int64_t> shape) {
  data::Array a(type, std::move(shape));
  for (int64_t i = 0; i < a.count(); ++i) {
    if (type == DType::u8) a.u8()[i] = uint8_t(i * 37);
    if (type == DType::f32) a.f32()[i] = float(i) - 2.5f;
    if (type == DType::i32) a.i32()[i] = int32_t(i * 3);
  }
  return a;
}

data::Sample sample() {
  data::Bytes gif(sizeof kGif);
  std::memcpy(gif.data(), kGif, sizeof kGif);
  data::Sample s;
  s["image"] = gif;
  s["text"] = "A fox\xc3\xa9";
  s["captions"] = data::Texts{"One", "two"};
  s["pixels"] = numbers(DType::u8, {5, 4, 3});
  s["values"] = numbers(DType::f32, {2, 6, 3});
  s["labels"] = numbers(DType::i32, {4});
  s["label"] = numbers(DType::i32, {});
  return s;
}

}  // namespace

void preprocess(std::string_view input) {
  bool sound = data::syntax_problem(input).empty();
  data::Tokenizers tokenizers({{"b", data::tokenizer_rows().at("bytes").make_options()}});
  if (sound) data::tokenizer_of(input, "labels");
  data::Pipeline pipeline(input, spec(), {.tokenizers = &tokenizers}, 7);
  expect(sound, "a string with a syntax problem became ops");
  for (int64_t position : {0, 1'000'000}) {
    data::Sample s = sample();
    pipeline.apply(s, position);
    // Decks are checked against the spec, and batches are made from it.
    expect(s.size() == pipeline.spec().size(), "the ops yield other fields than their spec");
    for (auto& [name, field] : pipeline.spec()) {
      auto it = s.find(name);
      expect(it != s.end() && data::mismatch(field, it->second).empty(),
             "a field does not match its spec");
      const data::Array* array = std::get_if<data::Array>(&it->second);
      if (field.limit == 0 || !array) continue;
      for (int64_t i = 0; i < array->count(); ++i)
        expect(array->i32()[i] >= 0 && array->i32()[i] < field.limit,
               "a value outside its field's limit");
    }
  }
  pipeline.counts();
}

}  // namespace fuzz
