// SPDX-License-Identifier: Apache-2.0
// Schedules have the same bits on every CPU. The recorded runs have few steps, in which a changed
// rounding may move no value. After a change of bits, the digests that the test prints belong here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/hash.hpp"
#include "kernels/instruction_choice.hpp"
#include "optim/schedule.hpp"

namespace optim {
namespace {

struct Recorded {
  const char* kind;
  int64_t warmup, cooldown;
  uint64_t digest;
};
const std::vector<Recorded> kRecorded = {
    {"constant", 37, 53, 0xf34ec28708ae68b9},  {"linear", 37, 0, 0x5bda60f17aed8981},
    {"polynomial", 0, 53, 0x740c70e07430ae64}, {"cosine", 37, 0, 0x6df3f0cde18b5d6c},
    {"cosine", 0, 53, 0x6dfed99d79222e93},     {"rsqrt", 37, 53, 0x82001aed3accf285},
};

TEST(PortableSchedules, HaveTheRecordedBits) {
  const bool before = kernels::bits_are_portable();
  kernels::choose_instructions(kernels::Instructions::automatic, true);
  for (const Recorded& r : kRecorded) {
    ScheduleOptions options;
    options.kind = r.kind;
    options.mult = 0.7;
    options.warmup = {config::Duration::Unit::steps, double(r.warmup)};
    options.cooldown = {config::Duration::Unit::steps, double(r.cooldown)};
    options.shape = schedule_rows().at(r.kind).make_options();
    if (auto* p = dynamic_cast<PolynomialShape*>(options.shape.get())) {
      p->power = 1.7;
      p->end = 0.03;
    }
    if (auto* p = dynamic_cast<RsqrtShape*>(options.shape.get()))
      p->timescale = {config::Duration::Unit::steps, 91};
    const Schedule schedule = options.make({1013, 64, 0}, "s");
    std::vector<float> values;
    for (int64_t step = 0; step < 1013; ++step) values.push_back(schedule.at(step));
    const uint64_t digest = base::xxh3(values.data(), values.size() * sizeof(float));
    EXPECT_EQ(digest, r.digest) << fmt::format("{} {} {}: 0x{:016x}", r.kind, r.warmup, r.cooldown,
                                               digest);
  }
  kernels::choose_instructions(kernels::Instructions::automatic, before);
}

}  // namespace
}  // namespace optim
