// SPDX-License-Identifier: Apache-2.0
// Tests the verdict on slow ranks over windows that a seeded simulator makes, and over windows
// recorded from runs. No clock is read.
#include "records/slow_rank.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "base/names.hpp"
#include "base/text.hpp"
#include "io/files.hpp"
#include "tests/unit/recorded.hpp"

namespace {
using records::SlowPhase;
using records::SlowVerdict;
using records::Window;

// Makes the windows of ranks that meet in every step. The work of each rank varies from step to
// step, and a slow rank has more of it.
class Ranks {
 public:
  Ranks(uint64_t seed, int ranks, int per_host, double noise)
      : random_(seed), noise_(noise), bias_(size_t(ranks)), held_(size_t(ranks)) {
    for (int r = 0; r < ranks; ++r) hosts_.push_back(fmt::format("node{}", r / per_host));
    step_s_ = std::exp(uniform(std::log(0.02), std::log(5)));
    for (double& b : bias_) b = uniform(-0.02, 0.02);  // no two machines are equally fast
  }
  const std::vector<std::string>& hosts() const { return hosts_; }
  double step_s() const { return step_s_; }
  std::mt19937_64& random() { return random_; }

  // What holds a rank up in a window. `alike`: every rank.
  struct Trouble {
    int rank = -1;
    SlowPhase phase = SlowPhase::none;
    double per_step_s = 0;
    bool memory = false, in_waits = false, whole_host = false, alike = false;
  };
  Window next(const Trouble& trouble) {
    const size_t n = hosts_.size();
    Window window{.steps = std::uniform_int_distribution<int64_t>(8, 40)(random_),
                  .seconds = 0,
                  .of_rank = std::vector<records::RankWindow>(n)};
    for (int64_t i = 0; i < window.steps; ++i) {
      std::vector<double> work(n);
      for (size_t r = 0; r < n; ++r) {
        const double data_s = 0.05 * step_s_ * std::exp(normal(0.3)),
                     begin_s = 0.01 * step_s_ * std::exp(normal(0.2));
        window.of_rank[r].data_s += data_s;
        window.of_rank[r].begin_s += begin_s;
        work[r] = data_s + begin_s + step_s_ * std::max(0.3, 1 + bias_[r] + normal(noise_));
        if (is_hit(trouble, r)) work[r] += held_[r] = hold(trouble, window.of_rank[r]);
      }
      const double step_s = *std::max_element(work.begin(), work.end()) + 0.05 * step_s_;
      window.seconds += step_s;
      for (size_t r = 0; r < n; ++r) {
        window.of_rank[r].wait_s += step_s - work[r];
        if (trouble.in_waits && is_hit(trouble, r)) window.of_rank[r].wait_s += held_[r];
      }
    }
    for (records::RankWindow& r : window.of_rank) {
      r.stolen_s += 0.01 * window.seconds * uniform(0, 1);
      r.longest_s = std::max(r.longest_s, 0.02 * uniform(0, 1));
    }
    return window;
  }

 private:
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  double normal(double deviation) {
    return std::normal_distribution<double>(0, deviation)(random_);
  }
  bool is_hit(const Trouble& trouble, size_t rank) const {
    if (trouble.alike) return true;
    if (trouble.rank < 0) return false;
    return int(rank) == trouble.rank ||
           (trouble.whole_host && hosts_[rank] == hosts_[size_t(trouble.rank)]);
  }
  // Returns the additional work of a step, and counts it where the rank's counters would.
  double hold(const Trouble& trouble, records::RankWindow& counts) {
    const double more = trouble.per_step_s * uniform(0.8, 1.2);
    switch (trouble.phase) {
      case SlowPhase::input:
        counts.data_s += more;
        break;
      case SlowPhase::exchange:
        counts.begin_s += more;
        break;
      case SlowPhase::saving:
        counts.sync_s += more;
        counts.longest_s = std::max(counts.longest_s, more);
        break;
      case SlowPhase::machine:
        (trouble.memory ? counts.memory_s : counts.stolen_s) += more * uniform(0.7, 1.1);
        // A rank without CPU or memory also waits for its data.
        if (!trouble.in_waits) counts.data_s += 0.3 * more;
        break;
      default:
        break;
    }
    return more;
  }

  std::mt19937_64 random_;
  double noise_, step_s_;
  std::vector<double> bias_, held_;
  std::vector<std::string> hosts_;
};

// The verdict on the newest window as a reader sees it.
std::string text_of(const SlowVerdict& v) {
  return fmt::format("{} rank {} on \"{}\"{}", base::name_of(records::kSlowPhaseNames, v.phase),
                     v.rank, v.host, v.chronic ? " chronic" : "");
}

SlowVerdict judged(const std::vector<Window>& windows, const std::vector<std::string>& hosts) {
  const size_t kept = std::min(windows.size(), records::kWindowsJudged);
  return records::judge(std::span(windows).last(kept), hosts);
}

constexpr SlowPhase kPhases[] = {SlowPhase::input, SlowPhase::computing, SlowPhase::exchange,
                                 SlowPhase::saving, SlowPhase::machine};

// Over 50 runs of 24 windows with 2 to 64 ranks, at least 99 % of the verdicts are right: nobody is
// slow, one rank in all windows, one rank in one window, one rank from the middle on, all alike.
TEST(SlowRank, ThousandSimulatedWindows) {
  int windows = 0;
  std::vector<std::string> wrong;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(1000 + seed);
    auto below = [&](uint64_t n) { return random() % n; };
    const int n = std::vector{2, 3, 4, 8, 64}[below(5)];
    const double noise = std::vector{0.01, 0.05, 0.15}[below(3)];
    Ranks ranks(seed, n, std::vector{1, 2, 8}[below(3)], noise);
    const char* const kind = std::vector{"nobody", "always", "once", "begins", "alike"}[seed % 5];
    Ranks::Trouble trouble{.rank = int(below(uint64_t(n))),
                           .phase = kPhases[below(std::size(kPhases))],
                           .per_step_s = ranks.step_s() * std::vector{0.4, 1.0, 3.0}[below(3)],
                           .memory = below(2) == 0,
                           .in_waits = false,
                           .whole_host = false,
                           .alike = false};
    // Much of the time that a rank without CPU loses is within its waits.
    if (trouble.phase == SlowPhase::machine && !trouble.memory) trouble.in_waits = below(2) == 0;
    if (kind == std::string("alike")) {
      trouble.alike = true;
      trouble.in_waits = false;
      trouble.phase = SlowPhase::saving;
    }
    std::vector<Window> seen;
    int slow_so_far = 0;
    for (int w = 0; w < 24; ++w) {
      const bool slow = kind == std::string("always") || kind == std::string("alike") ||
                        (kind == std::string("once") && w == 12) ||
                        (kind == std::string("begins") && w >= 10);
      seen.push_back(ranks.next(slow ? trouble : Ranks::Trouble{}));
      slow_so_far += slow;
      const SlowVerdict v = judged(seen, ranks.hosts());
      bool right = v.phase == (slow ? trouble.phase : SlowPhase::none);
      if (slow && !trouble.alike) {
        right = right && v.rank == trouble.rank && v.host == ranks.hosts()[size_t(trouble.rank)];
        right = right && std::abs(v.step_s - v.without_s - trouble.per_step_s) <
                             0.25 * trouble.per_step_s + 0.6 * noise * ranks.step_s();
        // Between the two limits, either verdict is right.
        if (slow_so_far >= 8 || (slow_so_far >= 4 && w < 8)) right = right && v.chronic;
        if (slow_so_far < 4) right = right && !v.chronic;
      } else {
        right = right && v.rank == -1 && !v.chronic;
      }
      ++windows;
      if (!right)
        wrong.push_back(fmt::format(
            "seed {} window {} of {} ranks, {}, noise {}: {} of rank {} by {:.2f} of {:.2f} s, not "
            "{} ({:.2f} -> {:.2f} s)",
            seed, w, n, kind, noise,
            slow ? base::name_of(records::kSlowPhaseNames, trouble.phase) : "none", trouble.rank,
            trouble.per_step_s, ranks.step_s(), text_of(v), v.step_s, v.without_s));
    }
  }
  EXPECT_GE(windows, 1000);
  EXPECT_LE(double(wrong.size()), 0.01 * windows) << base::join(wrong, "\n");
}

// With several slow ranks on one node, the node is named, and the rest of its ranks are counted.
TEST(SlowRank, WholeHost) {
  Ranks ranks(7, 16, 4, 0.02);
  std::vector<Window> seen;
  SlowVerdict v;
  for (int w = 0; w < 8; ++w) {
    seen.push_back(ranks.next({.rank = 9,
                               .phase = SlowPhase::machine,
                               .per_step_s = ranks.step_s(),
                               .memory = false,
                               .in_waits = false,
                               .whole_host = true,
                               .alike = false}));
    v = judged(seen, ranks.hosts());
    EXPECT_EQ(v.host, "node2") << text_of(v);
    EXPECT_EQ(v.also, 3);
    EXPECT_EQ(v.phase, SlowPhase::machine);
  }
  EXPECT_TRUE(v.chronic);
  EXPECT_NEAR(v.step_s - v.without_s, ranks.step_s(), 0.3 * ranks.step_s());
}

// Steps that vary much on all ranks name nobody.
TEST(SlowRank, NoiseIsNobody) {
  int named = 0, windows = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Ranks ranks(seed, std::vector{2, 3, 4, 16}[seed % 4], 1, 0.6);
    std::vector<Window> seen;
    for (int w = 0; w < 24; ++w, ++windows) {
      seen.push_back(ranks.next({}));
      named += judged(seen, ranks.hosts()).rank >= 0;
    }
  }
  EXPECT_LE(named, 0.02 * windows) << "of " << windows;
}

// A rank that is slow in every second window is named in these, and is not chronic.
TEST(SlowRank, EverySecondWindow) {
  Ranks ranks(5, 8, 4, 0.02);
  std::vector<Window> seen;
  for (int w = 0; w < 20; ++w) {
    const Ranks::Trouble trouble{
        .rank = 6, .phase = SlowPhase::input, .per_step_s = ranks.step_s()};
    seen.push_back(ranks.next(w % 2 ? trouble : Ranks::Trouble{}));
    const SlowVerdict v = judged(seen, ranks.hosts());
    EXPECT_EQ(v.rank, w % 2 ? 6 : -1) << w;
    EXPECT_FALSE(v.chronic) << w;
  }
}

// A single fast rank does not make the other ranks slow.
TEST(SlowRank, MostRanksSetThePace) {
  const std::vector<std::string> hosts(4, "node");
  std::vector<Window> seen;
  for (int w = 0; w < 10; ++w) {
    Window window{.steps = 10, .seconds = 10, .of_rank = std::vector<records::RankWindow>(4)};
    window.of_rank[2].wait_s = 5;
    seen.push_back(window);
    EXPECT_EQ(text_of(judged(seen, hosts)), "none rank -1 on \"\"");
  }
}

TEST(SlowRank, NothingToJudge) {
  EXPECT_EQ(records::judge({}, {}).rank, -1);
  const std::vector<Window> alone{{.steps = 3, .seconds = 6, .of_rank = {{.wait_s = 0}}}};
  const SlowVerdict v = judged(alone, {"node"});
  EXPECT_EQ(v.phase, SlowPhase::none);
  EXPECT_EQ(v.step_s, 2);
}

// Windows that rank 0 logged at level debug in runs of this program:
//   run NAME RANKS PHASE RANK      what was done to the run; "none -1": nothing
//   window steps=N s=SECONDS VALUES...   the values of RankWindow of each rank
TEST(SlowRank, RecordedWindows) {
  const std::string text = io::read_file(tests::source_file("tests/data/slow_windows.txt"));
  std::string name, phase;
  int rank = -1, windows = 0, runs = 0;
  std::vector<std::string> hosts, wrong;
  std::vector<Window> seen;
  for (const std::string& line : base::split(text, '\n')) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "run") {
      int ranks = 0;
      words >> name >> ranks >> phase >> rank;
      hosts.assign(size_t(ranks), "node");
      seen.clear();
      ++runs;
    } else if (word == "window") {
      Window window;
      ASSERT_EQ(std::sscanf(line.c_str(), "window steps=%ld s=%lf", &window.steps, &window.seconds),
                2)
          << line;
      words >> word >> word;
      while (words >> word) {
        records::RankWindow r;
        ASSERT_EQ(std::sscanf(word.c_str(), "%lf,%lf,%lf,%lf,%lf,%lf,%lf", &r.wait_s, &r.data_s,
                              &r.begin_s, &r.sync_s, &r.longest_s, &r.stolen_s, &r.memory_s),
                  7)
            << line;
        window.of_rank.push_back(r);
      }
      ASSERT_EQ(window.of_rank.size(), hosts.size()) << line;
      seen.push_back(window);
      const SlowVerdict v = judged(seen, hosts);
      ++windows;
      if (v.rank != rank || phase != base::name_of(records::kSlowPhaseNames, v.phase))
        wrong.push_back(fmt::format("{}: {}", name, text_of(v)));
    }
  }
  EXPECT_GE(runs, 4);
  EXPECT_LE(double(wrong.size()), 0.01 * windows) << base::join(wrong, "\n");
}

}  // namespace
