// SPDX-License-Identifier: Apache-2.0
#include "data/stream/loader.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "data/sources/synthetic.hpp"
#include "data/sources/webdataset.hpp"
#include "support.hpp"
#include "tests/unit/recorded.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

// Sample i is the number i. The reading time differs from sample to sample.
class Numbers : public Source {
 public:
  explicit Numbers(int64_t size, int64_t most_us = 0) : size_(size), most_us_(most_us) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("numbers:{}", index); }
  std::string summary() const override { return ""; }
  Sample read(int64_t index) const override {
    ++reads;
    if (most_us_) std::this_thread::sleep_for(std::chrono::microseconds(index * 7919 % most_us_));
    if (bad.contains(index)) base::fail(Exit::data, "sample {} is broken", index);
    Array a(device::DType::i32, {2});
    a.i32()[0] = int32_t(index);
    a.i32()[1] = -int32_t(index);
    return {{"x", std::move(a)}};
  }
  static Spec spec() { return {{"x", FieldSpec::array(device::DType::i32, {2})}}; }

  std::set<int64_t> bad;
  mutable std::atomic<int64_t> reads{0};

 private:
  int64_t size_, most_us_;
};

struct LoaderTest : testing::Test {
  Numbers* source = nullptr;
  std::unique_ptr<Dataset> dataset;

  void make(int64_t size, int64_t most_us = 0) {
    auto s = std::make_unique<Numbers>(size, most_us);
    source = s.get();
    dataset = std::make_unique<Dataset>("train", std::move(s), Pipeline("", Numbers::spec(), {}));
  }
  static LoaderOptions options(int64_t threads, int64_t prefetch = 3) {
    LoaderOptions o;
    o.threads = threads;
    o.prefetch = prefetch;
    return o;
  }
  // Returns the plan of rank `rank` of `ranks`: its slice of each global batch.
  static LoaderPlan plan(int64_t batch, int64_t first, int64_t end, int64_t rank = 0,
                         int64_t ranks = 1) {
    LoaderPlan p;
    p.positions = [=](int64_t number) {
      std::vector<int64_t> out;
      for (int64_t i = 0; i < batch; ++i) out.push_back((number * ranks + rank) * batch + i);
      return out;
    };
    p.first = first;
    p.end = end;
    return p;
  }
};

TEST_F(LoaderTest, SameBatchesForAnyThreads) {
  make(100, 300);
  Order order(Shuffle::exact, 100, 9);
  for (int64_t threads : {1, 4}) {
    for (int64_t prefetch : {1, 5}) {
      Loader loader(*dataset, order, options(threads, prefetch), plan(7, 3, 33, 1, 2));
      for (int64_t number = 3; number < 33; ++number) {
        ASSERT_TRUE(loader.has_next());
        BatchPtr batch = loader.next();
        ASSERT_EQ(batch->number, number);
        ASSERT_EQ(batch->size(), 7);
        EXPECT_EQ(batch->array("x").shape, (std::vector<int64_t>{7, 2}));
        for (int64_t i = 0; i < 7; ++i) {
          int64_t position = (number * 2 + 1) * 7 + i, index = order.index(position);
          EXPECT_EQ(batch->positions[size_t(i)], position);
          EXPECT_EQ(batch->indices[size_t(i)], index);
          EXPECT_EQ(batch->mask.u8()[i], 1);
          EXPECT_EQ(batch->view("x").i32()[2 * i], index);
          EXPECT_EQ(batch->view("x").i32()[2 * i + 1], -index);
        }
      }
      EXPECT_FALSE(loader.has_next());
      EXPECT_GE(loader.waited_s(), 0);
      expect_error(Exit::internal, {"ends at 33"}, [&] { loader.next(); });
    }
  }
}

TEST_F(LoaderTest, EvaluationPadsTheLastBatch) {
  make(10);
  // 10 samples have 16 places: two of the third batch and all of the fourth are padding.
  LoaderPlan p = plan(4, 0, 4);
  p.examples = 10;
  Loader loader(*dataset, Order(Shuffle::none, 10, 0), options(2), p);
  int64_t seen = 0;
  while (loader.has_next()) {
    BatchPtr batch = loader.next();
    for (int64_t i = 0; i < 4; ++i) {
      int64_t position = batch->number * 4 + i;
      bool real = position < 10;
      EXPECT_EQ(batch->mask.u8()[i], real);
      EXPECT_EQ(batch->indices[size_t(i)], real ? position : -1);
      EXPECT_EQ(batch->array("x").i32()[2 * i + 1], real ? -position : 0);
      seen += real;
    }
  }
  EXPECT_EQ(seen, 10);
}

TEST_F(LoaderTest, BatchesOfAnySize) {
  make(50);
  LoaderPlan p;
  p.positions = [](int64_t number) { return std::vector<int64_t>(size_t(number % 4), number); };
  p.end = 20;
  Loader loader(*dataset, Order(Shuffle::none, 50, 0), options(3), p);
  for (int64_t number = 0; number < 20; ++number) {
    BatchPtr batch = loader.next();
    EXPECT_EQ(batch->array("x").shape[0], number % 4);
    for (int64_t i = 0; i < number % 4; ++i) EXPECT_EQ(batch->array("x").i32()[2 * i], number);
  }
}

TEST_F(LoaderTest, TheFirstBadRowIsReported) {
  for (int64_t threads : {1, 4}) {
    make(100, 200);
    source->bad = {23, 25, 31};
    Loader loader(*dataset, Order(Shuffle::none, 100, 0), options(threads, 4), plan(10, 0, 10));
    for (int number = 0; number < 2; ++number) EXPECT_EQ(loader.next()->number, number);
    for (int again = 0; again < 2; ++again)
      expect_error(Exit::data, {"data.train: numbers:23: sample 23 is broken"},
                   [&] { loader.next(); });
  }
}

TEST_F(LoaderTest, ErrorsOfThePlan) {
  make(10);
  LoaderPlan p;
  p.positions = [](int64_t number) -> std::vector<int64_t> {
    if (number == 2) base::fail(Exit::internal, "no batch {}", number);
    return {number};
  };
  p.end = 5;
  Loader loader(*dataset, Order(Shuffle::none, 10, 0), options(2), p);
  loader.next();
  loader.next();
  expect_error(Exit::internal, {"no batch 2"}, [&] { loader.next(); });
}

TEST_F(LoaderTest, DestroyedAtAnyMoment) {
  make(1000, 2000);
  for (int round = 0; round < 30; ++round) {
    Loader loader(*dataset, Order(Shuffle::none, 1000, 0), options(4), plan(8, 0, 1000));
    for (int i = 0; i < round % 3; ++i) loader.next();
    if (round % 4 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(round));
  }
}

TEST_F(LoaderTest, ABatchOutlivesItsLoader) {
  make(10);
  BatchPtr batch;
  {
    Loader loader(*dataset, Order(Shuffle::none, 10, 0), options(1), plan(3, 0, 3));
    batch = loader.next();
  }
  EXPECT_EQ(batch->array("x").i32()[4], 2);
}

TEST_F(LoaderTest, PrefetchIsBounded) {
  make(1000);
  Loader loader(*dataset, Order(Shuffle::none, 1000, 0), options(2, 3), plan(5, 0, 200));
  auto settle = [&] {
    while (loader.ready() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  settle();
  EXPECT_EQ(loader.ready(), 3);
  EXPECT_EQ(source->reads, 15);
  loader.next();
  settle();
  EXPECT_EQ(source->reads, 20);
}

// In steady state the loader requests no large block from the system, whichever thread decodes.
TEST_F(LoaderTest, BuffersAreRecycled) {
  SyntheticOptions o;
  o.examples = 64;
  o.image_size = 48;
  o.seq_len = 24;
  o.vocab_size = 100;
  Dataset images("train", o.open({}), Pipeline("", o.spec(), {}));
  Loader loader(images, Order(Shuffle::exact, 64, 0), options(3, 2), plan(16, 0, 300));
  for (int i = 0; i < 50; ++i) loader.next();
  int64_t before = blocks_from_system();
  BatchPtr held;
  for (int i = 0; i < 200; ++i) held = loader.next();
  // One batch of three arrays more than after the warm-up may be alive. 3,200 samples and 200
  // batches passed through.
  EXPECT_LE(blocks_from_system() - before, 12);
}

// An op that writes into its row of the batch gives the result that it gives elsewhere. This also
// holds if another op changes the row later.
TEST_F(LoaderTest, OpsWriteIntoTheBatch) {
  SyntheticOptions o;
  o.examples = 12;
  o.image_size = 8;
  o.seq_len = 4;
  o.vocab_size = 100;
  for (const char* ops :
       {"value_range(0, 3, -1, 1)", "value_range(0, 3, -1, 1) | flip_lr",
        "value_range(0, 3, -1, 1) | value_range(-5, 0, 0, 3)", "flip_lr | value_range(0, 3, -1, 1)",
        "value_range(0, 3, -1, 1) | copy('image', 'other') | value_range(1, 2, key='other')",
        "copy('image', 'other') | value_range(1, 2, inkey='other', outkey='image')"}) {
    SCOPED_TRACE(ops);
    Dataset set("train", o.open({}), Pipeline(ops, o.spec(), {}));
    Loader loader(set, Order(Shuffle::none, 12, 0), options(2), plan(4, 0, 3));
    for (int64_t first = 0; first < 12; first += 4) {
      BatchPtr batch = loader.next();
      for (auto& [field, array] : batch->arrays)
        for (int64_t i = 0; i < 4; ++i) {
          Sample expected = set.get(first + i, first + i);
          const Array& one = std::get<Array>(expected.at(field));
          EXPECT_EQ(std::memcmp(array.bytes.data() + size_t(i) * one.bytes.size(), one.bytes.data(),
                                one.bytes.size()),
                    0)
              << field << " of " << first + i;
        }
    }
  }
  // An op may use the place of a field once, and only for an array that fits.
  Array row(device::DType::f32, {8, 8, 3}), in(device::DType::f32, {8, 8, 3});
  Places places{{"image", {row.bytes.data(), row.bytes.size()}}};
  OpContext context{.stream = base::Stream(1, "test"), .position = 0, .places = &places};
  EXPECT_EQ(array_for(context, "image", device::DType::f32, {8, 8, 3}, in).bytes.data(),
            row.bytes.data());
  EXPECT_NE(array_for(context, "image", device::DType::f32, {8, 8, 3}, row).bytes.data(),
            row.bytes.data());
  EXPECT_NE(array_for(context, "image", device::DType::f32, {8, 8, 2}, in).bytes.data(),
            row.bytes.data());
  EXPECT_NE(array_for(context, "other", device::DType::f32, {8, 8, 3}, in).bytes.data(),
            row.bytes.data());
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Real files of many sizes pass all parts of a run's loader for 20 epochs. After two epochs memory
// must not grow.
TEST_F(LoaderTest, MemoryStaysFlat) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  test::TemporaryDirectory dir;
  test::TarText tar;
  constexpr int64_t kSize = 480;
  const char* images[] = {"a_420_61x47.jpg", "b_444_40x56.jpg", "d_progressive_50x50.jpg",
                          "e_rgb_37x53.png", "g_rgba_24x24.png"};
  for (int64_t i = 0; i < kSize; ++i)
    tar.add(fmt::format("{}.img", i),
            test::read_file(
                fmt::format("{}/images/{}", tests::source_file("tests/golden"), images[i % 5])))
        .add(fmt::format("{}.txt", i), std::string(size_t(i * 7 % 300), 'a'));
  test::write_file(dir / "s.tar", tar.end());
  WebdatasetOptions o;
  o.path = dir / "s.tar";
  o.fields = {{"image", "img"}, {"text", "txt"}};
  Tokenizers tokenizers({{"b", tokenizer_rows().at("bytes").make_options()}});
  Dataset set("train", o.open({}),
              Pipeline("decode | inception_crop(48) | flip_lr | value_range | tokenize('b', "
                       "max_len=64, inkey='text', outkey='labels') | keep('image', 'labels')",
                       o.spec(), {.tokenizers = &tokenizers}));
  constexpr int64_t kBatches = kSize / 16;
  Loader loader(set, Order(Shuffle::exact, kSize, 0), options(3, 3), plan(16, 0, 20 * kBatches));
  int64_t warm = 0;
  for (int64_t i = 0; i < 20 * kBatches; ++i) {
    if (i == 2 * kBatches) warm = resident_bytes();
    loader.next();
  }
  // 8,640 samples passed; a leak of a tenth of a small image in each would be 6 MiB.
  EXPECT_LT(resident_bytes() - warm, 2 << 20);
}

TEST_F(LoaderTest, WhatCannotBeStacked) {
  auto bad = [](const char* pp, std::vector<std::string> parts) {
    Spec files{{"image", FieldSpec::encoded()}, {"text", FieldSpec::characters()}};
    expect_error(Exit::config, parts, [&] { check_batchable(Pipeline(pp, files, {}).spec()); });
  };
  bad("decode | resize(4)", {"'text' is text", "tokenize it", "keep"});
  bad("keep('image')", {"'image' is encoded bytes", "decode and resize"});
  bad("decode | keep('image')", {"'image' is u8 [?,?,3]", "resize it"});
  EXPECT_NO_THROW(check_batchable(Numbers::spec()));
}

TEST_F(LoaderTest, ASampleUnlikeItsSpec) {
  make(10);
  Dataset other("val", std::make_unique<Numbers>(10),
                Pipeline("", {{"x", FieldSpec::array(device::DType::i32, {3})}}, {}));
  expect_error(Exit::data, {"data.val: numbers:4: field 'x' is i32 [2], expected i32 [3]"},
               [&] { other.get(4, 0); });
}

}  // namespace
}  // namespace data
