// SPDX-License-Identifier: Apache-2.0
// Own elementary functions beside those of the C library in long double, and their bits.
#include "base/elementary.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/random.hpp"

namespace base::math {
namespace {

constexpr int64_t kDraws = 20000;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kMost = INFINITY;

struct Inputs {
  double x, y = 0;
};

// Draws whose bits need no function of the C library.
struct Draw {
  int64_t index;

  double share(uint64_t which) const {  // in [0, 1)
    return Stream(48, "elementary").sub(which).uniform64(uint64_t(index));
  }
  double within(double low, double high) const { return low + (high - low) * share(0); }
  // A normal number from 2^low to 2^high.
  double of_size(int low, int high) const {
    return std::ldexp(1 + share(0), low + int(index) % (high - low));
  }
  double sign() const { return index / 2 % 2 ? -1 : 1; }
};

struct Function {
  std::string name;
  uint64_t digest;
  double (*own)(Inputs);
  long double (*exact)(Inputs);
  Inputs (*draw)(Draw);
};

#define FUNCTION(name) \
  [](Inputs i) { return kOwn.name(i.x); }, [](Inputs i) { return std::name((long double)(i.x)); }
#define POWER                                  \
  [](Inputs i) { return kOwn.pow(i.x, i.y); }, \
      [](Inputs i) { return std::pow((long double)(i.x), (long double)(i.y)); }
#define DRAW(...) [](Draw d) { return Inputs{__VA_ARGS__}; }

// After a change of bits, the digests that the test prints belong here.
const std::vector<Function> kFunctions = {
    {"exp", 0x6ac80dae4f6d591b, FUNCTION(exp), DRAW(d.within(-750, 710))},
    {"exp of small", 0x93d3531195d0594d, FUNCTION(exp), DRAW(d.within(-2, 2))},
    {"log", 0x0b96a9f07389f18b, FUNCTION(log), DRAW(d.of_size(-1070, 1023))},
    {"log near 1", 0x3fd7694a960827b4, FUNCTION(log), DRAW(d.within(0.5, 2))},
    {"log1p", 0xdb740af9868e429f, FUNCTION(log1p), DRAW(d.of_size(-100, 100))},
    {"log1p of negative", 0x9315e0dc98a278ca, FUNCTION(log1p), DRAW(-d.of_size(-80, 0) / 2)},
    {"pow", 0x257b90287ba08f97, POWER, DRAW(d.of_size(-300, 300), 4 * d.share(1) - 2)},
    {"pow near 1", 0xeb26aa3b49252c03, POWER, DRAW(d.within(0.9, 1.1), 6e3 * d.share(1))},
    {"pow of whole", 0x888276c0ac315b37, POWER, DRAW(-d.within(0, 9), double(d.index % 90))},
    {"sin", 0x1f19353697f4bad8, FUNCTION(sin), DRAW(d.within(-10, 10))},
    {"sin of any", 0xc477b61a720bf437, FUNCTION(sin), DRAW(d.sign() * d.of_size(-99, 1023))},
    {"cos", 0x8fa0a7e38ef75954, FUNCTION(cos), DRAW(d.within(-10, 10))},
    {"cos of any", 0x48018ad08186d7c5, FUNCTION(cos), DRAW(d.sign() * d.of_size(-99, 1023))},
    {"erf", 0x0e84d3ce592c47db, FUNCTION(erf), DRAW(d.within(-6.5, 6.5))},
    {"erf of small", 0x0407ff3b5f86b82c, FUNCTION(erf), DRAW(d.sign() * d.of_size(-300, 0))},
    {"erfc", 0x78127e6092493d93, FUNCTION(erfc), DRAW(d.within(-6.5, 28))},
    {"erfc of small", 0x1ee8e6545f233ff6, FUNCTION(erfc), DRAW(d.within(-1, 2))},
};

// Returns the error in units of the last place of the exact value's double.
double units(double found, long double exact) {
  const double near = std::abs(double(exact)), unit = std::nextafter(near, kMost) - near;
  if (found == double(exact)) return 0;
  return double(std::abs((long double)found - exact)) / unit;
}

TEST(OwnElementary, AreWithinTwoUnitsOfTheLibrary) {
  for (const Function& f : kFunctions) {
    double worst = 0;
    Inputs at{};
    for (int64_t i = 0; i < kDraws; ++i) {
      const Inputs in = f.draw({i});
      if (const double error = units(f.own(in), f.exact(in)); !(error <= worst)) {
        worst = error;
        at = in;
      }
    }
    EXPECT_LE(worst, 2) << f.name << "(" << at.x << ", " << at.y << ") in units in the last place";
  }
}

TEST(OwnElementary, HaveRecordedBits) {
  for (const Function& f : kFunctions) {
    std::vector<double> values;
    for (int64_t i = 0; i < kDraws; ++i) values.push_back(f.own(f.draw({i})));
    const uint64_t digest = xxh3(values.data(), values.size() * sizeof(double));
    EXPECT_EQ(digest, f.digest) << fmt::format("{}: 0x{:016x}", f.name, digest);
  }
}

// Equal values with equal signs of zeros, or two NaNs.
void expect_same(double found, double wanted, const std::string& what) {
  const bool same = std::isnan(wanted)
                        ? std::isnan(found)
                        : found == wanted && std::signbit(found) == std::signbit(wanted);
  EXPECT_TRUE(same) << what << " = " << found << " instead of " << wanted;
}

const double kSpecial[] = {0.0,
                           -0.0,
                           1,
                           -1,
                           0.5,
                           -0.5,
                           2,
                           -2,
                           3,
                           -3,
                           2.5,
                           -2.5,
                           kMost,
                           -kMost,
                           kNan,
                           0x1p53,
                           0x1p54,
                           1e308,
                           -1e308,
                           5e-324,
                           1e-310,
                           1 - 0x1p-53,
                           1 + 0x1p-52,
                           -1 + 0x1p-53,
                           -1 - 0x1p-52,
                           710,
                           -746,
                           1e4};

TEST(OwnElementary, TreatSpecialValuesAsTheLibraryDoes) {
  for (double x : kSpecial) {
    auto compare = [&](const char* name, double found, double wanted) {
      if (std::isfinite(wanted) && wanted != 0)
        EXPECT_LE(units(found, wanted), 2) << name << "(" << x << ") = " << found;
      else
        expect_same(found, wanted, fmt::format("{}({})", name, x));
    };
    compare("exp", kOwn.exp(x), std::exp(x));
    compare("log", kOwn.log(x), std::log(x));
    compare("log1p", kOwn.log1p(x), std::log1p(x));
    compare("sin", kOwn.sin(x), std::sin(x));
    compare("cos", kOwn.cos(x), std::cos(x));
    compare("erf", kOwn.erf(x), std::erf(x));
    compare("erfc", kOwn.erfc(x), std::erfc(x));
    for (double y : kSpecial)
      compare(fmt::format("pow of y = {} and x = ", y).c_str(), kOwn.pow(x, y), std::pow(x, y));
  }
}

TEST(OwnElementary, AreExactWhereTheResultIs) {
  double power = 1;
  for (int n = 0; n <= 22; ++n, power *= 10) EXPECT_EQ(kOwn.pow(10, n), power);
  for (int n = -1074; n < 1024; ++n) EXPECT_EQ(kOwn.pow(2, n), std::ldexp(1.0, n));
  EXPECT_EQ(kOwn.pow(81, 0.25), 3);
  EXPECT_EQ(kOwn.exp(0), 1);
  EXPECT_EQ(kOwn.cos(0), 1);
}

// All floats whose last 13 bits are 0, or any one number: all sizes, signs, infinities and NaNs.
TEST(OwnElementary, GiveManyFloatsTheBitsOfEach) {
  constexpr uint32_t kStep = 1 << 13;
  for (uint32_t low : {0u, 1u, 4711u}) {
    std::vector<float> x, y((uint64_t{1} << 32) / kStep);
    for (size_t i = 0; i < y.size(); ++i)
      x.push_back(std::bit_cast<float>(uint32_t(i) * kStep | low));
    auto compare = [&](const char* name, auto many, float (*one)(float)) {
      many(y.data(), x.data(), int64_t(x.size()));
      for (size_t i = 0; i < y.size(); ++i) {
        const float alone = one(x[i]);
        ASSERT_TRUE(std::bit_cast<uint32_t>(y[i]) == std::bit_cast<uint32_t>(alone) ||
                    (std::isnan(y[i]) && std::isnan(alone)))
            << name << "(" << x[i] << ") = " << y[i] << " instead of " << alone;
      }
    };
    compare("exp", kOwn.exp_of_floats, kOwn.float_exp);
    compare("erf", kOwn.erf_of_floats, kOwn.float_erf);
    compare("library's exp", kLibrary.exp_of_floats, kLibrary.float_exp);
    compare("library's erf", kLibrary.erf_of_floats, kLibrary.float_erf);
  }
}

TEST(Elementary, AreTheLibrarysUnlessOwnOnesAreChosen) {
  volatile double x = 0.7, y = 2.3;  // so that no compiler computes them
  volatile float f = 0.7f;
  EXPECT_EQ(&functions(), &kLibrary);
  EXPECT_EQ(math::exp(x), std::exp(x));
  EXPECT_EQ(math::log(x), std::log(x));
  EXPECT_EQ(math::log1p(x), std::log1p(x));
  EXPECT_EQ(math::pow(x, y), std::pow(x, y));
  EXPECT_EQ(math::sin(x), std::sin(x));
  EXPECT_EQ(math::cos(x), std::cos(x));
  EXPECT_EQ(math::erf(x), std::erf(x));
  EXPECT_EQ(math::erfc(x), std::erfc(x));
  EXPECT_EQ(math::exp(f), std::exp(f));
  EXPECT_EQ(math::log(f), std::log(f));
  EXPECT_EQ(math::sin(f), std::sin(f));
  EXPECT_EQ(math::erf(f), std::erf(f));
  use_own(true);
  EXPECT_EQ(math::exp(x), kOwn.exp(x));
  EXPECT_EQ(math::log(x), kOwn.log(x));
  EXPECT_EQ(math::log1p(x), kOwn.log1p(x));
  EXPECT_EQ(math::pow(x, y), kOwn.pow(x, y));
  EXPECT_EQ(math::sin(x), kOwn.sin(x));
  EXPECT_EQ(math::cos(x), kOwn.cos(x));
  EXPECT_EQ(math::erf(x), kOwn.erf(x));
  EXPECT_EQ(math::erfc(x), kOwn.erfc(x));
  EXPECT_EQ(math::exp(f), float(kOwn.exp(double(f))));
  EXPECT_EQ(math::log(f), float(kOwn.log(double(f))));
  EXPECT_EQ(math::sin(f), float(kOwn.sin(double(f))));
  EXPECT_EQ(math::erf(f), float(kOwn.erf(double(f))));
  use_own(false);
}

}  // namespace
}  // namespace base::math
