// SPDX-License-Identifier: Apache-2.0
// Tests parts of a source: the requested number of samples, equal on all ranks, and no sample in
// two parts.
#include "data/stream/subset.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support.hpp"

namespace data {
namespace {

class Numbers : public Source {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("n:{}", index); }
  std::string summary() const override { return "numbers"; }
  Sample read(int64_t index) const override {
    Array a(device::DType::i32, {1});
    a.i32()[0] = int32_t(index);
    return {{"x", std::move(a)}};
  }

 private:
  int64_t size_;
};

std::vector<int64_t> members(int64_t size, int64_t limit, int64_t skip, uint64_t seed = 0) {
  std::unique_ptr<Source> part = subset_of(std::make_unique<Numbers>(size), limit, skip, seed);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < part->size(); ++i) {
    Sample sample = part->read(i);
    out.push_back(std::get<Array>(sample.at("x")).i32()[0]);
    EXPECT_EQ(part->key(i), fmt::format("n:{}", out.back()));
  }
  return out;
}

TEST(Subset, PartsAreDisjointAndCoverAll) {
  std::vector<int64_t> first = members(100, 30, 0), second = members(100, 20, 30),
                       rest = members(100, 0, 50);
  EXPECT_EQ(first.size(), 30u);
  EXPECT_EQ(second.size(), 20u);
  EXPECT_EQ(rest.size(), 50u);
  std::set<int64_t> all;
  for (auto* part : {&first, &second, &rest}) {
    EXPECT_TRUE(std::is_sorted(part->begin(), part->end()));
    all.insert(part->begin(), part->end());
  }
  EXPECT_EQ(all.size(), 100u);
  EXPECT_EQ(members(100, 30, 0), first);
  EXPECT_NE(members(100, 30, 0, 1), first);
  std::vector<int64_t> head(30);
  for (int64_t i = 0; i < 30; ++i) head[size_t(i)] = i;
  EXPECT_NE(first, head) << "a part is drawn, not a prefix";
  EXPECT_EQ(members(7, 0, 0).size(), 7u);
}

// A changed part would move samples of the validation set into training.
TEST(Subset, FixedForever) {
  using Indices = std::vector<int64_t>;
  EXPECT_EQ(members(40, 6, 0), (Indices{3, 4, 5, 10, 14, 26}));
  EXPECT_EQ(members(40, 6, 6), (Indices{2, 9, 20, 23, 24, 27}));
  EXPECT_EQ(members(40, 6, 0, 5), (Indices{6, 14, 16, 18, 21, 29}));
}

TEST(Subset, Refusals) {
  for (auto part : {std::pair{101, 0}, {1, 100}, {0, 100}, {51, 50}})
    test::expect_error(base::Exit::data, {"the source has 100 samples"},
                       [&] { members(100, part.first, part.second); });
}

TEST(Subset, FingerprintTellsPartsApart) {
  auto print = [](int64_t limit, int64_t skip) {
    return subset_of(std::make_unique<Numbers>(50), limit, skip, 0)->fingerprint();
  };
  EXPECT_EQ(print(10, 0), print(10, 0));
  EXPECT_NE(print(10, 0), print(10, 10));
}

}  // namespace
}  // namespace data
