// SPDX-License-Identifier: Apache-2.0
// Tests broken samples: the substitutes, the reports, and the cases that must stay errors.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "data/stream/loader.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

// Sample i is the number i. A broken sample is at fault itself. For a lost sample the file system
// fails.
class Fragile : public Source {
 public:
  Fragile(int64_t size, std::set<int64_t> broken, std::set<int64_t> lost)
      : size_(size), broken_(std::move(broken)), lost_(std::move(lost)) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("shard.tar:{}", index); }
  std::string summary() const override { return ""; }
  Sample read(int64_t index) const override {
    if (broken_.contains(index)) base::fail(Exit::data, "not a number");
    if (lost_.contains(index)) throw Unreadable("input/output error");
    Array a(device::DType::i32, {1});
    a.i32()[0] = int32_t(index);
    return {{"x", std::move(a)}};
  }

 private:
  int64_t size_;
  std::set<int64_t> broken_, lost_;
};

Dataset fragile(int64_t size, std::set<int64_t> broken, std::set<int64_t> lost = {}) {
  return Dataset("train", std::make_unique<Fragile>(size, std::move(broken), std::move(lost)),
                 Pipeline("", {{"x", FieldSpec::array(device::DType::i32, {1})}}, {}));
}

TEST(BadSample, TheNextGoodOneStandsIn) {
  Dataset set = fragile(20, {3, 4, 5, 19});
  SampleOrSubstitute got = get_or_substitute(set, 2, 0);
  EXPECT_EQ(got.index, 2);
  EXPECT_TRUE(got.bad.empty());
  got = get_or_substitute(set, 3, 0);  // 3 + 1 and 3 + 2 are broken too
  EXPECT_EQ(got.index, 7);
  EXPECT_EQ(std::get<Array>(got.sample.at("x")).i32()[0], 7);
  ASSERT_EQ(got.bad.size(), 3u);
  EXPECT_EQ(got.bad[0].dataset, "train");
  EXPECT_EQ(got.bad[0].key, "shard.tar:3");
  EXPECT_EQ(got.bad[0].why, "not a number");
  EXPECT_EQ(got.bad[2].key, "shard.tar:5");
  EXPECT_EQ(get_or_substitute(set, 19, 0).index, 0);  // around the end
}

// In a small set distances wrap around. A remaining good sample is found, and no sample is tried
// twice.
TEST(BadSample, SmallSets) {
  Dataset set = fragile(8, {0, 1, 2, 4});
  EXPECT_EQ(get_or_substitute(set, 0, 0).index, 3);
  Dataset last = fragile(8, {0, 1, 2, 3, 4, 5, 7});
  SampleOrSubstitute got = get_or_substitute(last, 0, 0);
  EXPECT_EQ(got.index, 6);
  std::set<std::string> tried;
  for (const BadSample& b : got.bad) EXPECT_TRUE(tried.insert(b.key).second) << b.key;
  expect_error(Exit::data, {"none of its 2 substitutes"}, [&] {
    get_or_substitute(fragile(3, {0, 1, 2}), 0, 0);
  });
  expect_error(Exit::data, {"none of its 0 substitutes"},
               [&] { get_or_substitute(fragile(1, {0}), 0, 0); });
}

// The 16 distances are tried in this order.
TEST(BadSample, DistancesArePowersOfTwo) {
  constexpr int64_t kSize = 100'003, kFirst = 99'990;
  std::set<int64_t> broken{kFirst};
  for (int power = 0; power < 16; ++power) {
    int64_t other = (kFirst + (int64_t{1} << power)) % kSize;
    EXPECT_EQ(get_or_substitute(fragile(kSize, broken), kFirst, 0).index, other);
    broken.insert(other);
  }
  // 5 + 1, 5 + 2, 5 + 4 are broken
  SampleOrSubstitute small = get_or_substitute(fragile(7, {5, 6, 0, 2}), 5, 0);
  EXPECT_EQ(small.index, 1) << "then the nearest sample that was not tried";
}

TEST(BadSample, ValuesBeyondTheLimitAreTheSamplesFault) {
  Dataset set("train", std::make_unique<Fragile>(20, std::set<int64_t>{}, std::set<int64_t>{}),
              Pipeline("", {{"x", FieldSpec::array(device::DType::i32, {1})}}, {}),
              {{"x", {12, "model.vocab_size"}}});
  EXPECT_EQ(get_or_substitute(set, 11, 0).index, 11);
  EXPECT_EQ(get_or_substitute(set, 12, 0).index, 0);  // 12 + 8; 13, 14 and 16 are too large as well
  SampleOrSubstitute got = get_or_substitute(set, 13, 0);
  EXPECT_EQ(got.index, 1);  // 13 + 8
  EXPECT_EQ(got.bad[0].key, "shard.tar:13");
  EXPECT_EQ(got.bad[0].why, "field 'x' holds 13, which is not in [0, 12) (model.vocab_size)");
}

TEST(BadSample, NegativeIdsAreTheSamplesFault) {
  struct Shifted : Fragile {
    Shifted() : Fragile(4, {}, {}) {}
    Sample read(int64_t index) const override {
      Sample sample = Fragile::read(index);
      --std::get<Array>(sample.at("x")).i32()[0];
      return sample;
    }
  };
  Dataset set("train", std::make_unique<Shifted>(),
              Pipeline("", {{"x", FieldSpec::array(device::DType::i32, {1})}}, {}),
              {{"x", {12, "model.vocab_size"}}});
  SampleOrSubstitute got = get_or_substitute(set, 0, 0);
  EXPECT_EQ(got.index, 1);
  ASSERT_EQ(got.bad.size(), 1u);
  EXPECT_EQ(got.bad[0].why, "field 'x' holds -1, which is not in [0, 12) (model.vocab_size)");
}

// A loss that is not finite would end the run later, and name no sample.
TEST(BadSample, NumbersThatAreNotFiniteAreTheSamplesFault) {
  struct Floats : Fragile {
    Floats() : Fragile(4, {}, {}) {}
    Sample read(int64_t index) const override {
      Array a(device::DType::f32, {2, 3});
      std::fill_n(a.f32(), 6, 1.0f);
      if (index == 0) a.f32()[4] = std::numeric_limits<float>::quiet_NaN();
      if (index == 1) a.f32()[0] = -std::numeric_limits<float>::infinity();
      if (index == 2) a.f32()[5] = std::numeric_limits<float>::max();
      return {{"x", std::move(a)}};
    }
  };
  const Spec spec{{"x", FieldSpec::array(device::DType::f32, {2, 3})}};
  Dataset set("train", std::make_unique<Floats>(), Pipeline("", spec, {}));
  expect_error(Exit::data,
               {"data.train: shard.tar:0: field 'x' holds nan at element 4 of 6; all elements must "
                "be finite"},
               [&] { set.get(0, 0); });
  const SampleOrSubstitute got = get_or_substitute(set, 0, 0);
  EXPECT_EQ(got.index, 2);
  EXPECT_EQ(got.bad[1].why, "field 'x' holds -inf at element 0 of 6; all elements must be finite");
  // An op may leave the numbers of its type.
  Dataset scaled("train", std::make_unique<Floats>(),
                 Pipeline("value_range(0, 1000, in_max=1, key=\"x\")", spec, {}));
  expect_error(Exit::data, {"shard.tar:2: field 'x' holds inf at element 5 of 6"},
               [&] { scaled.get(2, 0); });
  EXPECT_EQ(std::get<Array>(scaled.get(3, 0).at("x")).f32()[0], 1000);
}

TEST(BadSample, OneLineWhateverTheFileHolds) {
  EXPECT_EQ(base::one_line("broken PNG"), "broken PNG");
  EXPECT_EQ(base::one_line("a\tb\nc\x7f"), "a\\x09b\\x0ac\\x7f");
  EXPECT_EQ(base::one_line("K\xc3\xa4se \xe2\x82\xac \xf0\x9f\x98\x80"),
            "K\xc3\xa4se \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(base::one_line("not \xb7 UTF-8 \xc3\xa4"), "not \\xb7 UTF-8 \\xc3\\xa4");
  EXPECT_EQ(base::one_line("half \xe2\x82"), "half \\xe2\\x82");
  EXPECT_EQ(base::one_line("abcdef", 3), "abc");
  EXPECT_EQ(base::one_line("ab\xe2\x82\xac", 4), "ab");
  EXPECT_EQ(base::one_line("\xbf\xbf\xbf\xbf", 2), "");
}

TEST(BadSample, TriesAreBounded) {
  std::set<int64_t> all;
  for (int64_t i = 0; i < 100; ++i) all.insert(i);
  Dataset set = fragile(100, all);
  expect_error(Exit::data,
               {"data.train", "shard.tar:7: not a number", "16 substitutes", "shard.tar:8"},
               [&] { get_or_substitute(set, 7, 0); });
}

TEST(BadSample, FileSystemErrorsStayErrors) {
  Dataset set = fragile(20, {3}, {4});
  expect_error(Exit::data, {"data.train", "shard.tar:4", "input/output error"},
               [&] { get_or_substitute(set, 4, 0); });
  expect_error(Exit::data, {"shard.tar:4", "input/output error"},
               [&] { get_or_substitute(set, 3, 0); });
}

LoaderPlan plan(int64_t rank, int64_t ranks, int64_t batch, int64_t end) {
  LoaderPlan p;
  p.positions = [=](int64_t number) {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < batch / ranks; ++i)
      out.push_back(number * batch + rank * (batch / ranks) + i);
    return out;
  };
  p.end = end;
  return p;
}

// Every rank count sees the same values at the same positions and reports the same samples. Batches
// stay whole.
TEST(BadSample, SameOnAnyRankCount) {
  Dataset set = fragile(60, {0, 1, 2, 30, 31, 59});
  std::vector<std::vector<int32_t>> streams;
  for (int64_t ranks : {1, 2, 3}) {
    std::vector<int32_t> stream(120);
    int64_t replaced = 0;
    std::set<std::string> keys;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      LoaderOptions options;
      options.threads = 3;
      options.substitutes = true;
      options.log = std::make_shared<BadSampleLog>();
      Loader loader(set, Order(Shuffle::exact, 60, 4), options, plan(rank, ranks, 12, 10));
      while (loader.has_next()) {
        BatchPtr batch = loader.next();
        ASSERT_EQ(batch->size(), 12 / ranks);
        for (int64_t i = 0; i < batch->size(); ++i) {
          EXPECT_EQ(batch->mask.u8()[i], 1);
          EXPECT_EQ(batch->indices[size_t(i)], batch->array("x").i32()[i]);
          stream[size_t(batch->positions[size_t(i)])] = batch->array("x").i32()[i];
        }
      }
      replaced += options.log->replaced;
      for (const BadSample& b : options.log->found) keys.insert(b.key);
    }
    EXPECT_EQ(replaced, 2 * 6) << "two epochs of six broken samples";
    EXPECT_EQ(keys.size(), 6u);
    streams.push_back(stream);
  }
  EXPECT_EQ(streams[0], streams[1]);
  EXPECT_EQ(streams[0], streams[2]);
}

TEST(BadSample, ReadAheadIsNotReported) {
  Dataset set = fragile(60, {10});
  LoaderOptions options;
  options.threads = 2;
  options.prefetch = 8;
  options.substitutes = true;
  options.log = std::make_shared<BadSampleLog>();
  Loader loader(set, Order(Shuffle::none, 60, 0), options, plan(0, 1, 4, 15));
  loader.next();
  loader.next();
  EXPECT_EQ(options.log->replaced, 0);
  EXPECT_EQ(loader.next()->array("x").i32()[2], 11);
  EXPECT_EQ(options.log->replaced, 1);
}

TEST(BadSample, ErrorSaysTheWayOut) {
  Dataset set = fragile(60, {10});
  Loader loader(set, Order(Shuffle::none, 60, 0), LoaderOptions(), plan(0, 1, 4, 15));
  loader.next();
  loader.next();
  expect_error(Exit::data,
               {"data.train: shard.tar:10: not a number", "loader.on_bad_sample = \"substitute\""},
               [&] { loader.next(); });
}

}  // namespace
}  // namespace data
