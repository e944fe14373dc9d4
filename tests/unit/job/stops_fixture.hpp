// SPDX-License-Identifier: Apache-2.0
// A run whose clock, scheduler and other rank the test controls, for tests of stops and time
// limits.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "job/stops.hpp"
#include "tests/unit/silent_comm.hpp"

namespace job {

inline constexpr double kBegin_s = 1000;  // start of the program, on the test's clock
inline constexpr double kHour_s = 3600;

// Rank `rank` of two. The test sets the values of the other rank.
class Pair : public SilentComm {
 public:
  explicit Pair(int rank) : SilentComm(2, rank) {}
  int64_t max(int64_t value) override { return std::max(value, int64_t(other)); }
  int64_t max(int64_t value, bool& of_all_alike) override {
    of_all_alike = alike;
    return max(value);
  }
  using SilentComm::max;
  std::vector<std::string> gather_text(const std::string& text) override {
    return rank_ == 0 ? std::vector<std::string>{text, other_text}
                      : std::vector<std::string>{other_text, text};
  }

  StopReason other = StopReason::none;
  bool alike = true;  // the calls of both ranks
  std::string other_text;
};

// Gives the present answer of a scheduler.
struct Answers : Scheduler {
  explicit Answers(std::function<Answer()> given) : give(std::move(given)) {}
  Answer latest() const override { return give(); }
  Answer first(double) const override { return give(); }
  std::function<Answer()> give;
};

struct StopsTest : testing::Test {
  std::string folder = "/tmp/stops_test_XXXXXX";
  double now = kBegin_s;
  LimitOptions options;
  Pair world{0};
  Scheduler::Answer answer;  // used if wall_time = "auto"
  std::unique_ptr<Stops> stops;

  StopsTest() {
    if (!::mkdtemp(folder.data())) std::abort();
    options.wall_time = "none";
    options.signals = {};
  }
  ~StopsTest() override { std::filesystem::remove_all(folder); }

  Outside outside() {
    return {.now_s = [this] { return now; },
            .ask = [this] { return std::make_unique<Answers>([this] { return answer; }); }};
  }
  Stops& begin() {
    stops = std::make_unique<Stops>(world, options, folder, kBegin_s, outside());
    stops->describe();  // reads the scheduler's first answer
    stops->started(0);
    return *stops;
  }
  void file(const std::string& name) { std::ofstream(folder + "/" + name) << ""; }
  bool there(const std::string& name) { return std::filesystem::exists(folder + "/" + name); }
  // Advances the clock by two seconds, because files are checked once a second.
  StopReason next(const Outlook& outlook = {}) {
    now += 2;
    return stops->agree(outlook);
  }
  void answers(double end_s, double limit_s = 0, const std::string& source = "slurm") {
    answer = {.number = answer.number + 1, .end_s = end_s, .limit_s = limit_s, .source = source};
  }
  // Returns the agreed reason of a new run that has `left_s` seconds left.
  StopReason with_left(double left_s, const Outlook& outlook) {
    now = kBegin_s;
    begin();
    now = kBegin_s + seconds_of(options.wall_time) - left_s;
    return stops->agree(outlook);
  }
  // The signal stays noted for the rest of this process. Runs whose deck does not name it ignore
  // it.
  static void raise_usr2() {
    catch_stop_signals({"USR2"});
    std::raise(SIGUSR2);
  }
  static int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
};

}  // namespace job
