// SPDX-License-Identifier: Apache-2.0
// Tests parts of a source: the requested number of samples, equal on all ranks, and no sample in
// two parts.
#include "data/sources/subset.hpp"

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

Classes no_classes(const Source&) {
  ADD_FAILURE() << "classes are read for a part of the whole set";
  return {};
}

std::vector<int64_t> members_of(const Source& part) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < part.size(); ++i) {
    Sample sample = part.read(i);
    out.push_back(std::get<Array>(sample.at("x")).i32()[0]);
    EXPECT_EQ(part.key(i), fmt::format("n:{}", out.back()));
    EXPECT_EQ(std::get<Array>(part.field(i, "x")).i32()[0], out.back());
  }
  return out;
}
std::vector<int64_t> members(int64_t size, int64_t limit, int64_t skip, int64_t seed = 0) {
  return members_of(*subset_of(std::make_unique<Numbers>(size),
                               {.limit = limit, .skip = skip, .seed = seed}, no_classes));
}

// Sample i of `size` is of class i % 3 if i < 12, else of class 3.
Classes few_classes(const Source& source) {
  Classes out{.names = {"a", "b", "c", "d"}, .sizes = {0, 0, 0, 0}, .of_sample = {}};
  for (int64_t i = 0; i < source.size(); ++i) {
    out.of_sample.push_back(i < 12 ? int32_t(i % 3) : 3);
    ++out.sizes[size_t(out.of_sample.back())];
  }
  return out;
}
std::vector<int64_t> by_class(Part part, int64_t size = 40) {
  part.per_class = true;
  return members_of(*subset_of(std::make_unique<Numbers>(size), part, few_classes));
}
std::vector<int64_t> sizes_of(const std::vector<int64_t>& members) {
  std::vector<int64_t> sizes(4);
  for (int64_t i : members) ++sizes[i < 12 ? size_t(i % 3) : 3];
  return sizes;
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

TEST(Subset, FractionsAreDisjointAndCoverAll) {
  auto part = [](double fraction, double skip) {
    return members_of(*subset_of(std::make_unique<Numbers>(101),
                                 {.fraction = fraction, .skip_fraction = skip}, no_classes));
  };
  const std::vector<int64_t> first = part(0.3, 0), second = part(0.2, 0.3), rest = part(0, 0.5);
  EXPECT_EQ(first.size(), 30u);
  EXPECT_EQ(second.size(), 21u);
  EXPECT_EQ(first, members(101, 30, 0)) << "a fraction is a limit";
  std::set<int64_t> all;
  for (auto* one : {&first, &second, &rest}) all.insert(one->begin(), one->end());
  EXPECT_EQ(all.size(), 101u);
  EXPECT_EQ(first.size() + second.size() + rest.size(), 101u);
  test::expect_error(base::Exit::data, {"none of 101 samples"}, [&] { part(0.001, 0); });
}

TEST(Subset, EquallyManyOfEachClass) {
  const std::vector<int64_t> first = by_class({.limit = 2}),
                             second = by_class({.limit = 1, .skip = 2});
  EXPECT_EQ(sizes_of(first), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(sizes_of(second), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
  EXPECT_NE(first, by_class({.limit = 2, .seed = 1}));
  std::set<int64_t> both(first.begin(), first.end());
  both.insert(second.begin(), second.end());
  EXPECT_EQ(both.size(), 12u);
  EXPECT_EQ(sizes_of(by_class({.skip = 1})), (std::vector<int64_t>{3, 3, 3, 27}));
  test::expect_error(base::Exit::data, {"limit = 3, skip = 2", "class 'a' has 4 samples"},
                     [&] { by_class({.limit = 3, .skip = 2}); });
}

// Parts of each class keep the shares of the classes, and together they are the whole set.
TEST(Subset, FractionsOfEachClass) {
  const std::vector<int64_t> first = by_class({.fraction = 0.25}),
                             rest = by_class({.skip_fraction = 0.25});
  EXPECT_EQ(sizes_of(first), (std::vector<int64_t>{1, 1, 1, 7}));
  EXPECT_EQ(sizes_of(rest), (std::vector<int64_t>{3, 3, 3, 21}));
  std::set<int64_t> all(first.begin(), first.end());
  all.insert(rest.begin(), rest.end());
  EXPECT_EQ(all.size(), 40u);
}

// A changed part would move samples of the validation set into training.
TEST(Subset, ClassesFixedForever) {
  EXPECT_EQ(by_class({.limit = 1}), (std::vector<int64_t>{3, 4, 5, 14}));
}

TEST(Subset, FingerprintTellsPartsApart) {
  auto print = [](int64_t limit, int64_t skip) {
    return subset_of(std::make_unique<Numbers>(50), {.limit = limit, .skip = skip}, no_classes)
        ->fingerprint();
  };
  EXPECT_EQ(print(10, 0), print(10, 0));
  EXPECT_NE(print(10, 0), print(10, 10));
}

}  // namespace
}  // namespace data
