// SPDX-License-Identifier: Apache-2.0
// Tests which lines of the log are written: levels of components, and the first or some of many.
#include <gtest/gtest.h>

#include <string>

#include "base/log_components.hpp"
#include "base/log_limits.hpp"

namespace {

using base::log::Component;
using base::log::Level;

TEST(LogComponents, HaveLevelsOfTheirOwn) {
  base::log::set_level(Component::eval, Level::debug);
  base::log::set_level(Component::data, Level::warning);
  auto levels = [](Component component) {
    std::string text;
    for (const auto& [name, level] : base::log::kLevelNames)
      if (base::log::writes(component, level)) text += std::string(name) + " ";
    return text;
  };
  EXPECT_EQ(levels(Component::run), "warning info ");
  EXPECT_EQ(levels(Component::eval), "warning info debug ");
  EXPECT_EQ(levels(Component::data), "warning ");
  testing::internal::CaptureStdout();
  base::log::info(Component::data, "data {}", 1);
  base::log::info(Component::eval, "eval {}", 2);
  base::log::debug(Component::eval, "seen {}", 3);
  base::log::trace(Component::eval, "not seen {}", 4);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "eval 2\nlevel=debug component=eval step=0 seen 3\n");
  base::log::set_level({}, Level::trace);
  EXPECT_EQ(levels(Component::data), "warning info debug trace ");
  base::log::set_level({}, Level::info);
}

template <class Limit>
std::string chosen(Limit& limit, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += limit.now() ? '1' : '0';
  return out;
}

TEST(LogLimits, ChooseSomeOfManyLines) {
  base::log::FirstN first(2);
  EXPECT_EQ(chosen(first, 5), "11000");
  base::log::EveryN every(3);
  EXPECT_EQ(chosen(every, 8), "10010010");
  base::log::EverySeconds minute(60);
  std::string out;
  for (const double clock_s : {0.0, 59.0, 60.0, 61.0, 119.0, 125.0})
    out += minute.at(clock_s) ? '1' : '0';
  EXPECT_EQ(out, "101001");
}

}  // namespace
