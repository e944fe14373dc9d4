// SPDX-License-Identifier: Apache-2.0
// Tests the preprocessing language: syntax, arguments, and specs before any data is read.
#include "data/ops/pipeline.hpp"

#include <gtest/gtest.h>

#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

TEST(CallParser, Literals) {
  std::vector<Call> calls = parse_calls(
      R"( a | b() | c(1, -2, 3.5, 1e3, 32_000, "x|y", 'it\'s', True, None, [1, (2, "z"),], k=[], q = -1.) )");
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].name, "a");
  EXPECT_TRUE(calls[1].arguments.empty());
  std::string all;
  for (const Argument& a : calls[2].arguments) all += a.name + ":" + text_of(a.value) + " ";
  EXPECT_EQ(all,
            R"(:1 :-2 :3.5 :1000 :32000 :"x|y" :"it's" :True :None :[1, [2, "z"]] k:[] q:-1 )");
  EXPECT_EQ(calls[2].at, 11u);
  EXPECT_TRUE(parse_calls(" \n ").empty());
}

TEST(CallParser, Errors) {
  auto bad = [](const char* text, std::vector<std::string> parts) {
    SCOPED_TRACE(text);
    expect_error(Exit::config, parts, [&] { parse_calls(text); });
  };
  bad("decode | resize(64", {"character 19 (the end)", "never closed"});
  bad("decode resize(64)", {"character 8 (near 'resize(64)')", "'|'"});
  bad("decode | (64)", {"character 10", "name of an op"});
  bad("decode | | resize(64)", {"character 10", "expected an op", "'|'"});
  bad("decode || resize(64)", {"character 9", "expected an op"});
  bad("| decode", {"character 1 ", "expected an op"});
  bad("decode | ", {"(the end)", "expected an op"});
  bad("resize(64 32)", {"character 11", "',' or ')'"});
  bad("keep(image)", {"character 6", "quotes", "\"image\""});
  bad("keep(\"image)", {"character 6", "never closed"});
  bad("resize([1, 2)", {"character 13", "']'"});
  bad("resize([1, 2", {"character 8", "never closed"});
  bad("resize(1.2.3)", {"not a number"});
  bad("resize(12px)", {"not a number"});
  bad("resize(1e999)", {"not a number"});
  bad(("resize(" + std::string(101, '1') + ")").c_str(), {"not a number"});
  bad("resize(a=)", {"expected a value"});
  bad("resize(a=1, 2)", {"character 13", "without a name"});
  bad("resize(\"\\q\")", {"escapes"});
  bad("resize([[[[[[[[[[1]]]]]]]]]])", {"nested"});
}

Spec files() {
  return {{"image", FieldSpec::encoded()},
          {"text", FieldSpec::characters()},
          {"label", FieldSpec::array(device::DType::i32, {})}};
}

TEST(Pipeline, ArgumentsAreChecked) {
  auto bad = [](const char* text, std::vector<std::string> parts) {
    SCOPED_TRACE(text);
    expect_error(Exit::config, parts, [&] { Pipeline(text, files(), {}); });
    expect_error(Exit::config, parts,
                 [&] { base::fail(Exit::config, "{}", syntax_problem(text)); });
  };
  bad("decode | resze(64)",
      {"character 10 (near 'resze(64)')", "unknown op 'resze'", "nearest is 'resize'", "tokenize"});
  bad("decode | resize", {"character 10", "argument 'size'", "missing"});
  bad("decode | resize(64, siz=3)", {"character 21", "unknown argument 'siz'", "nearest is 'size'",
                                     "size, method, antialias, inkey, outkey, key"});
  bad("decode | resize(64, size=3)", {"'size' is given twice"});
  bad("decode | resize(0)", {"each of 1..65536"});
  bad("decode | resize(65537)", {"argument 'size' is 65537", "each of 1..65536"});
  bad("decode | resize([64, 100000])", {"argument 'size' is [64, 100000]", "each of 1..65536"});
  bad("decode | resize([64])", {"argument 'size' is [64]"});
  bad("decode | resize(64.5)", {"argument 'size' is 64.5"});
  bad("decode(3, True, 'a', 'b', 'c', 5)", {"too many arguments"});
  bad("decode(precise=1)", {"argument 'precise' is 1, expected True or False"});
  bad("keep()", {"argument 'fields'", "missing"});
  bad("keep('image', 3)", {"expects texts"});
  bad("value_range(-1, 1, in_max='x')", {"a number or a list of numbers"});
  EXPECT_EQ(syntax_problem("decode | resize(64) | value_range(-1, 1) | keep('image')"), "");
}

TEST(Pipeline, SpecsPropagate) {
  using device::DType;
  auto after = [](const char* text) { return Pipeline(text, files(), {}).spec(); };
  EXPECT_EQ(after("").at("image"), FieldSpec::encoded());
  EXPECT_EQ(after("decode").at("image"), FieldSpec::array(DType::u8, {-1, -1, 3}));
  EXPECT_EQ(after("decode | resize((48, 64))").at("image"),
            FieldSpec::array(DType::u8, {48, 64, 3}));
  EXPECT_EQ(after("decode | resize(64) | value_range(-1, 1)").at("image"),
            FieldSpec::array(DType::f32, {64, 64, 3}));
  EXPECT_EQ(after("decode | value_range | resize(8)").at("image"),
            FieldSpec::array(DType::f32, {8, 8, 3}));
  Spec kept = after(
      "decode(outkey='pixels') | resize(8, inkey='pixels', outkey='small') | keep('small', "
      "'label')");
  EXPECT_EQ(text_of(kept), "label i32 [], small u8 [8,8,3]");
  EXPECT_FALSE(after("decode").at("image").fixed());
  EXPECT_TRUE(after("decode | resize(2)").at("image").fixed());
}

TEST(Pipeline, SpecErrorsNameTheOp) {
  auto bad = [](const char* text, std::vector<std::string> parts) {
    SCOPED_TRACE(text);
    expect_error(Exit::config, parts, [&] { Pipeline(text, files(), {}); });
  };
  bad("resize(64)", {"character 1", "resize: field 'image' is encoded bytes", "decode before it"});
  bad("decode | decode", {"character 10", "decode: field 'image' is u8 [?,?,3]"});
  bad("decode(channels=1)", {"3 channels"});
  bad("decode(inkey='photo')",
      {"no field 'photo'", "image encoded bytes, label i32 [], text text"});
  bad("decode | keep('imge')", {"keep: there is no field 'imge'"});
  bad("value_range(inkey='label')", {"value_range: field 'label' is i32 []"});
  bad("decode | value_range(in_max=[1, 2])", {"2 values"});
  bad("decode | value_range(0, 1, [1, 2], [1, 2, 3])", {"different lengths"});
  bad("decode | value_range(0, 1, 5, 5)", {"equal"});
  bad("tokenize('t', max_len=5)", {"no [tokenizer.t]", "there is none"});
  // The check refuses these sizes before any memory is allocated.
  bad("decode | resize(65536)", {"character 10", "u8 [65536,65536,3]", "at most 1144 MiB"});
  bad("decode | resize(16384) | value_range",
      {"character 26", "f32 [16384,16384,3]", "at most 1144 MiB"});
}

TEST(Pipeline, TokenizerNamesAndOptions) {
  Tokenizers tokenizers({{"emoji", nullptr}, {"c4_en", nullptr}});
  OpEnvironment look{.tokenizers = &tokenizers, .open = false};  // opens no model file
  Pipeline good("tokenize('emoji', max_len=24, eos='sticky')", files(), look);
  EXPECT_EQ(good.spec().at("labels"), FieldSpec::array(device::DType::i32, {24}));
  auto bad = [&](const char* text, std::vector<std::string> parts) {
    SCOPED_TRACE(text);
    expect_error(Exit::config, parts, [&] { Pipeline(text, files(), look); });
  };
  bad("tokenize('emojis', max_len=24)", {"character 10", "nearest is 'emoji'", "c4_en, emoji"});
  bad("tokenize('emoji', max_len=0)", {"max_len is 0"});
  bad("tokenize('emoji', max_len=4, eos='stick')", {"eos is \"stick\"", "\"sticky\""});
  bad("tokenize('emoji', max_len=4, inkey='image')",
      {"tokenize: field 'image' is encoded bytes, not text"});
}

TEST(Pipeline, EveryOpIsDescribed) {
  for (const OpRow& row : op_rows()) {
    EXPECT_FALSE(row.doc.empty()) << row.name;
    for (const Parameter& p : row.parameters)
      EXPECT_FALSE(p.doc.empty()) << row.name << " " << p.name;
    // Defaults are literals of the parameter's type.
    std::string given;
    for (const Parameter& p : row.parameters)
      if (!p.otherwise.empty())
        given += fmt::format("{}{}={}", given.empty() ? "" : ", ", p.name, p.otherwise);
    std::string problem = syntax_problem(fmt::format("{}({})", row.name, given));
    EXPECT_TRUE(problem.empty() || problem.find("missing") != problem.npos) << problem;
  }
  for (const OpRow& row : op_rows())
    if (row.name == "keep") {
      EXPECT_EQ(signature(row), "keep(*fields)");
    }
}

TEST(Pipeline, ErrorsInASampleNameTheOp) {
  Pipeline p("decode | resize(4)", files(), {});
  Sample sample{{"image", test::bytes_of("nonsense")}, {"text", "t"}};
  expect_error(Exit::data, {"decode: ", "not an image", "nonsense"}, [&] { p.apply(sample, 0); });
}

// If the last op on a field scales bytes, the reader of the batch may do that instead, with equal
// values and equal draws.
TEST(Pipeline, ScalingMayBeLeftOut) {
  const Spec spec{{"image", FieldSpec::array(device::DType::u8, {9, 11, 3})},
                  {"texts", FieldSpec::list_of_texts()}};
  const char* text =
      R"(flip_lr | resize(7) | value_range(-1, 1) | choice(inkey="texts", outkey="text") | lower() | keep("image", "text"))";
  Pipeline whole(text, spec, {}, 5), left(text, spec, {}, 5);
  const std::optional<ByteScale> scale = left.byte_scale("image");
  ASSERT_TRUE(scale.has_value());
  EXPECT_TRUE((*scale == ByteScale{0, 255, -1, 2}));
  left.leave_bytes("image");
  EXPECT_EQ(text_of(left.spec().at("image")), "u8 [7,7,3]");
  EXPECT_EQ(text_of(whole.spec().at("image")), "f32 [7,7,3]");
  for (int64_t position = 0; position < 20; ++position) {
    Sample a, b;
    Array image(device::DType::u8, {9, 11, 3});
    for (int64_t i = 0; i < image.count(); ++i) image.u8()[i] = uint8_t(37 * i + position);
    a["image"] = image;
    a["texts"] = Texts{"One", "Two", "Three"};
    b = a;
    whole.apply(a, position);
    left.apply(b, position);
    EXPECT_EQ(std::get<std::string>(a.at("text")), std::get<std::string>(b.at("text")))
        << "the draws differ";
    const Array &floats = std::get<Array>(a.at("image")), &bytes = std::get<Array>(b.at("image"));
    ASSERT_EQ(floats.count(), bytes.count());
    for (int64_t i = 0; i < bytes.count(); ++i) {
      const volatile float part = (float(bytes.u8()[i]) - scale->low) / scale->width,
                           moved = part * scale->to_width;
      ASSERT_EQ(floats.f32()[i], scale->to_low + moved);
    }
  }
  for (const char* other :
       {"resize(7)", "value_range(-1, 1) | flip_lr", "value_range(-1, 1, clip_values=True)",
        "value_range(0, 1) | value_range(-1, 1)", "value_range(-1, 1, in_max=[1, 2, 3])",
        "value_range(-1, 1, outkey=\"other\")", "vgg_value_range(outkey=\"other\")",
        "value_range(-1, 1) | copy(inkey=\"image\", outkey=\"again\")"})
    EXPECT_FALSE(Pipeline(other, spec, {}).byte_scale("image").has_value()) << other;
  EXPECT_FALSE(
      Pipeline("value_range(-1, 1) | drop(\"image\")", spec, {}).byte_scale("image").has_value());
}

}  // namespace
}  // namespace data
