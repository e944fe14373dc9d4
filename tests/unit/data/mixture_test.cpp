// SPDX-License-Identifier: Apache-2.0
// Tests mixtures by weight: proportions, spread, and the streams of their data sets.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <set>

#include "data/sources/synthetic.hpp"
#include "data/stream/loader.hpp"
#include "support.hpp"

namespace data {
namespace {

using base::Exit;
using test::expect_error;

std::vector<int64_t> counts_in(const Proportions& p, int64_t first, int64_t count) {
  std::vector<int64_t> out(size_t(p.parts()));
  for (int64_t i = 0; i < count; ++i) ++out[size_t(p.at(first + i).part)];
  return out;
}

struct Case {
  std::map<std::string, double> weights;
  int64_t period;
  std::vector<int64_t> counts;
};
const Case kCases[] = {
    {{{"a", 5}}, 1, {1}},
    {{{"a", 1}, {"b", 3}}, 4, {1, 3}},
    {{{"a", 1}, {"b", 2}}, 3, {1, 2}},
    {{{"a", 0.1}, {"b", 0.2}, {"c", 0.7}}, 10, {1, 2, 7}},
    {{{"a", 1}, {"b", 9999}}, 10'000, {1, 9999}},
    {{{"a", 1}, {"b", std::sqrt(2.0)}, {"c", M_PI}}, 10'000, {1800, 2545, 5655}},
};

TEST(Proportions, ExactInEveryWindow) {
  for (const Case& c : kCases) {
    Proportions p(c.weights);
    ASSERT_EQ(p.period(), c.period);
    for (int64_t first : {int64_t{0}, int64_t{1}, int64_t{7}, 8'192'000'000'001})
      EXPECT_EQ(counts_in(p, first, c.period), c.counts) << first;
    // Shares are rounded by largest remainders, so none differs from the exact share by a whole
    // example.
    double sum = 0;
    for (auto& [name, w] : c.weights) sum += w;
    int part = 0;
    for (auto& [name, w] : c.weights)
      EXPECT_LT(std::abs(double(p.count(part++)) - w / sum * double(c.period)), 1);
  }
}

// Records the orders, because another order would change every mixture that is resumed. The i-th
// example of data set j has the position (i + 1/2) / n_j. Equal positions follow the order of the
// names (mutant D4).
TEST(Proportions, RecordedOrders) {
  auto order = [](const std::map<std::string, double>& weights) {
    Proportions p(weights);
    std::string out;
    for (int64_t i = 0; i < p.period(); ++i) out += "abcd"[p.at(i).part];
    return out;
  };
  EXPECT_EQ(order({{"a", 1}, {"b", 3}}), "babb");
  EXPECT_EQ(order({{"a", 3}, {"b", 1}}), "aaba");
  EXPECT_EQ(order({{"a", 1}, {"b", 2}}), "bab");
  EXPECT_EQ(order({{"a", 2}, {"b", 2}, {"c", 2}}), "abc");
  EXPECT_EQ(order({{"a", 2}, {"b", 3}}), "babab");
  EXPECT_EQ(order({{"a", 0.1}, {"b", 0.2}, {"c", 0.7}}), "ccbcaccbcc");
}

// After any number of examples each data set is less than one example away from its share, and two
// data sets at most half.
TEST(Proportions, SpreadEvenly) {
  for (const Case& c : kCases) {
    Proportions p(c.weights);
    std::vector<int64_t> seen(size_t(p.parts()));
    for (int64_t i = 0; i < 2 * c.period; ++i) {
      Proportions::Place place = p.at(i);
      ASSERT_EQ(place.position, seen[size_t(place.part)]++) << "each stream is read without a gap";
      for (int k = 0; k < p.parts(); ++k) {
        double due = double(i + 1) * double(p.count(k)) / double(c.period);
        ASSERT_LT(std::abs(double(seen[size_t(k)]) - due), p.parts() < 3 ? 0.5 + 1e-9 : 1) << i;
        ASSERT_EQ(p.seen(k, i + 1), seen[size_t(k)]);
      }
    }
  }
}

TEST(Proportions, FarPositionsCostNothing) {
  Proportions p({{"a", 1}, {"b", std::sqrt(2.0)}});
  // Other programs on the machine disturb a try, but not each of them.
  std::chrono::steady_clock::duration took[2] = {std::chrono::hours(1), std::chrono::hours(1)};
  for (int round = 0; round < 100 && (round < 3 || took[1] > 3 * took[0]); ++round)
    for (int far = 0; far < 2; ++far) {
      int64_t first = far ? 1'000'000 * int64_t{8192} : 0;
      auto begin = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < 10'000; ++i) {
        Proportions::Place place = p.at(first + i);
        ASSERT_EQ(place.position, p.seen(place.part, first + i));
      }
      took[far] = std::min(took[far], std::chrono::steady_clock::now() - begin);
    }
  EXPECT_LE(took[1], 3 * took[0]);
}

TEST(Proportions, TooSmallAShare) {
  expect_error(Exit::config, {"\"b\"", "1 in 10,000", "leave it out"}, [] {
    Proportions({{"a", 1}, {"b", 1e-5}});
  });
}

std::shared_ptr<const Dataset> synthetic(const std::string& name, int64_t examples,
                                         int64_t image = 4, int64_t length = 6) {
  SyntheticOptions o;
  o.examples = examples;
  o.image_size = image;
  o.seq_len = length;
  o.vocab_size = 50;
  o.seed = examples;
  return std::make_shared<Dataset>(name, o.open({}), Pipeline("", o.spec(), {}));
}

Mixture::Part part(std::shared_ptr<const Dataset> set, Shuffle shuffle = Shuffle::exact) {
  return {set, Order(shuffle, set->size(), 1, {4, 2}, set->name())};
}

TEST(Mixture, EachDataSetHasItsOwnEpochs) {
  Mixture mixture(
      {{"a", part(synthetic("a", 10))}, {"b", part(synthetic("b", 30), Shuffle::blocks)}},
      {{"a", 1}, {"b", 1}});
  EXPECT_EQ(mixture.size(), 40);
  EXPECT_EQ(mixture.name(), "a + b");
  EXPECT_EQ(mixture.seen(0, 60), 30);
  std::vector<std::vector<int64_t>> streams(2);
  for (int64_t i = 0; i < 60; ++i) {
    Mixture::Item item = mixture.at(i);
    streams[size_t(item.part)].push_back(item.index);
  }
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    auto begin = streams[0].begin() + epoch * 10;
    EXPECT_EQ(std::set<int64_t>(begin, begin + 10).size(), 10u);
  }
  EXPECT_EQ(std::set<int64_t>(streams[1].begin(), streams[1].end()).size(), 30u);
}

TEST(Mixture, EndsBeforeADataSetBeginsAnew) {
  for (const double weight : {1.0, 2.0, 7.0}) {
    Mixture mixture({{"a", part(synthetic("a", 10))}, {"b", part(synthetic("b", 30))}},
                    {{"a", 1}, {"b", weight}});
    std::set<std::pair<int, int64_t>> seen;
    int64_t position = 0;
    auto fresh = [&] {
      const Mixture::Item item = mixture.at(position);
      return seen.emplace(item.part, item.index).second;
    };
    while (fresh()) ++position;
    EXPECT_EQ(mixture.end(), position) << weight;
  }
  const auto set = synthetic("a", 10);
  EXPECT_EQ(Mixture(*set, Order(Shuffle::exact, 10, 1)).end(), 10);
}

TEST(Mixture, SetsOfOneSizeDoNotRunInStep) {
  Mixture mixture({{"a", part(synthetic("a", 100))}, {"b", part(synthetic("b", 100))}},
                  {{"a", 1}, {"b", 1}});
  int same = 0;
  for (int64_t i = 0; i < 200; i += 2) same += mixture.at(i).index == mixture.at(i + 1).index;
  EXPECT_LT(same, 10);
}

TEST(Mixture, SpecsMustAgree) {
  expect_error(Exit::config, {"[data.a]", "[data.b]", "'labels'", "[6]", "[7]"}, [] {
    Mixture({{"a", part(synthetic("a", 10))}, {"b", part(synthetic("b", 10, 4, 7))}},
            {{"a", 1}, {"b", 1}});
  });
  Spec one{{"x", FieldSpec::characters()}},
      more{{"x", FieldSpec::characters()}, {"y", FieldSpec::encoded()}};
  EXPECT_EQ(spec_difference(one, one), "");
  EXPECT_NE(spec_difference(one, more).find("'y' is missing in the first"), std::string::npos);
  EXPECT_NE(spec_difference(more, one).find("missing in the second"), std::string::npos);
}

// Through the loader, a row holds the sample that the mixture names, also after a start in the
// middle.
TEST(Mixture, ThroughTheLoader) {
  std::map<std::string, Mixture::Part> parts{{"a", part(synthetic("a", 7))},
                                             {"b", part(synthetic("b", 23))}};
  Mixture mixture(parts, {{"a", 1}, {"b", 3}});
  LoaderOptions options;
  options.threads = 2;
  auto plan = [](int64_t first, int64_t end) {
    LoaderPlan p;
    p.positions = [](int64_t number) {
      std::vector<int64_t> out;
      for (int64_t i = 0; i < 5; ++i) out.push_back(number * 5 + i);
      return out;
    };
    p.first = first;
    p.end = end;
    return p;
  };
  for (int64_t first : {int64_t{0}, int64_t{13}, int64_t{1'000'000}}) {
    Loader loader(mixture, options, plan(first, first + 10));
    while (loader.has_next()) {
      BatchPtr batch = loader.next();
      for (int64_t i = 0; i < 5; ++i) {
        Mixture::Item item = mixture.at(batch->positions[size_t(i)]);
        EXPECT_EQ(batch->parts[size_t(i)], item.part);
        EXPECT_EQ(batch->indices[size_t(i)], item.index);
        Sample sample = mixture.dataset(item.part).get(item.index, 0);
        const Array& labels = std::get<Array>(sample.at("labels"));
        for (int64_t l = 0; l < 6; ++l)
          EXPECT_EQ(batch->array("labels").i32()[6 * i + l], labels.i32()[l]);
      }
    }
  }
}

}  // namespace
}  // namespace data
