// SPDX-License-Identifier: Apache-2.0
// Tests preprocessing and tokenizing against arrays recorded from the published pipeline.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cmath>
#include <set>

#include "data/ops/pipeline.hpp"
#include "support.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

const std::string kGolden = tests::source_file("tests/golden");

std::string text_attribute(hid_t set, const char* name) {
  hid_t attribute = H5Aopen(set, name, H5P_DEFAULT), type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  char* value = nullptr;
  EXPECT_GE(H5Aread(attribute, type, &value), 0) << name;
  std::string out = value ? value : "";
  H5free_memory(value);
  H5Tclose(type);
  H5Aclose(attribute);
  return out;
}

double number_attribute(hid_t set, const char* name) {
  double value = 0;
  hid_t attribute = H5Aopen(set, name, H5P_DEFAULT);
  EXPECT_GE(H5Aread(attribute, H5T_NATIVE_DOUBLE, &value), 0) << name;
  H5Aclose(attribute);
  return value;
}

std::vector<int64_t> shape_of(hid_t set) {
  hid_t space = H5Dget_space(set);
  std::vector<hsize_t> dims(size_t(H5Sget_simple_extent_ndims(space)));
  H5Sget_simple_extent_dims(space, dims.data(), nullptr);
  H5Sclose(space);
  return {dims.begin(), dims.end()};
}

std::vector<std::string> sets_of(hid_t file) {
  std::vector<std::string> names;
  H5Literate(
      file, H5_INDEX_NAME, H5_ITER_INC, nullptr,
      [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->push_back(name);
        return 0;
      },
      &names);
  return names;
}

TEST(Golden, Preprocess) {
  hid_t file = H5Fopen((kGolden + "/preprocess.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  std::set<std::string> run;
  for (const std::string& name : sets_of(file)) {
    SCOPED_TRACE(name);
    hid_t set = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
    std::string pp = text_attribute(set, "pp"), image = text_attribute(set, "file");
    Pipeline pipeline(pp, {{"image", FieldSpec::encoded()}}, {});
    Sample sample{{"image", test::bytes_of(test::read_file(kGolden + "/images/" + image))}};
    pipeline.apply(sample, 0);
    const Array& ours = std::get<Array>(sample.at("image"));
    EXPECT_EQ(mismatch(pipeline.spec().at("image"), sample.at("image")), "");
    ASSERT_EQ(ours.shape, shape_of(set));
    std::vector<float> expected(size_t(ours.count()));
    H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, expected.data());
    double worst = 0;
    for (int64_t i = 0; i < ours.count(); ++i)
      worst = std::max(worst, std::abs(double(ours.type == device::DType::u8 ? float(ours.u8()[i])
                                                                             : ours.f32()[i]) -
                                       double(expected[size_t(i)])));
    double tolerance = number_attribute(set, "tol");
    EXPECT_LE(worst, tolerance) << pp;
    // The recorded tolerance allows a grey level for sums in another order. This code uses the
    // published order.
    EXPECT_EQ(worst, 0) << pp;
    run.insert(name);
    H5Dclose(set);
  }
  H5Fclose(file);
  EXPECT_EQ(run.size(), 42u);  // every recorded set, none left out
}

std::vector<std::string> texts_of(hid_t file) {
  hid_t set = H5Dopen2(file, "text", H5P_DEFAULT), type = H5Tcopy(H5T_C_S1),
        space = H5Dget_space(set);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  std::vector<char*> raw(size_t(shape_of(set)[0]));
  EXPECT_GE(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data()), 0);
  std::vector<std::string> out(raw.begin(), raw.end());
  H5Dvlen_reclaim(type, space, H5P_DEFAULT, raw.data());
  H5Sclose(space);
  H5Tclose(type);
  H5Dclose(set);
  return out;
}

Tokenizers golden_tokenizers() {
  std::map<std::string, std::shared_ptr<const TokenizerKindOptions>> models;
  for (std::string name : {"tokenizer/unigram.model", "tokenizer/bpe.model"}) {
    auto options = std::make_shared<SentencepieceOptions>();
    options->path = kGolden + "/" + name;
    models[name] = options;
  }
  return Tokenizers(std::move(models));
}

TEST(Golden, Tokenizer) {
  hid_t file = H5Fopen((kGolden + "/tokenizer.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  std::vector<std::string> texts = texts_of(file);
  ASSERT_EQ(texts.size(), 52u);
  Tokenizers tokenizers = golden_tokenizers();
  int run = 0;
  for (const std::string& name : sets_of(file)) {
    if (name == "text") continue;
    hid_t set = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
    std::string pp = text_attribute(set, "pp");
    Pipeline pipeline(pp, {{"text", FieldSpec::characters()}}, {.tokenizers = &tokenizers});
    int64_t length = shape_of(set)[1];
    EXPECT_EQ(pipeline.spec().at("labels").shape, (std::vector<int64_t>{length}));
    std::vector<int32_t> expected(texts.size() * size_t(length));
    H5Dread(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, expected.data());
    for (size_t i = 0; i < texts.size(); ++i) {
      Sample sample{{"text", texts[i]}};
      pipeline.apply(sample, 0);
      const int32_t* ours = std::get<Array>(sample.at("labels")).i32();
      std::vector<int32_t> got(ours, ours + length),
          want(&expected[i * size_t(length)], &expected[(i + 1) * size_t(length)]);
      EXPECT_EQ(got, want) << pp << "\n  " << texts[i];
    }
    H5Dclose(set);
    ++run;
  }
  H5Fclose(file);
  EXPECT_EQ(run, 9);
}

TEST(Tokenize, CountsCutCaptions) {
  Tokenizers tokenizers = golden_tokenizers();
  Pipeline pipeline("tokenize('tokenizer/unigram.model', max_len=5, eos='sticky')",
                    {{"text", FieldSpec::characters()}}, {.tokenizers = &tokenizers});
  EXPECT_EQ(pipeline.spec().at("labels").limit, 168);
  for (std::string text : {"x", "a quiet green boat resting beside the market square", "",
                           "two apple trees and a frozen lake"}) {
    Sample sample{{"text", text}};
    pipeline.apply(sample, 0);
  }
  EXPECT_EQ(pipeline.counts(),
            (std::map<std::string, int64_t>{
                {"labels.captions", 4}, {"labels.captions_cut", 2}, {"labels.captions_empty", 1}}));
}

TEST(Tokenize, DecodesAndKnowsItsPieces) {
  std::shared_ptr<const Tokenizer> t = golden_tokenizers().get("tokenizer/unigram.model");
  EXPECT_EQ(t->vocab_size(), 168);
  EXPECT_EQ(t->pad_id(), 0);
  EXPECT_EQ(t->end_id(), 1);
  EXPECT_EQ(t->piece_id("<unk>"), 2);
  EXPECT_EQ(t->piece_id("no such piece"), std::nullopt);
  std::vector<int32_t> ids;
  t->encode("a blue boat", ids);
  EXPECT_EQ(t->decode(ids), "a blue boat");
  test::expect_error(base::Exit::data, {"[0, 168)"}, [&] { t->decode(std::vector<int32_t>{168}); });
}

TEST(Tokenize, BadModels) {
  test::TemporaryDirectory dir;
  SentencepieceOptions options;
  options.path = dir / "none.model";
  test::expect_error(base::Exit::data, {"none.model", "no such file"}, [&] { options.open(); });
  test::write_file(options.path, "not a model at all");
  test::expect_error(base::Exit::data, {"none.model", "not a SentencePiece model"},
                     [&] { options.open(); });
}

}  // namespace
}  // namespace data
