// SPDX-License-Identifier: Apache-2.0
#include "host/threads.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace host {
namespace {

std::set<int> cores(int begin, int end) {
  std::set<int> all;
  for (int i = begin; i < end; ++i) all.insert(i);
  return all;
}

// Returns `ranks` on one host of `node` cores. Rank r is bound to `each` cores from r * each on.
std::vector<RankCores> bound(const std::string& host, int ranks, int each, int node, int threads) {
  std::vector<RankCores> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back({host, cores(r * each, (r + 1) * each), node, threads});
  return all;
}
std::vector<RankCores> unbound(int ranks, int node, int threads) {
  return std::vector<RankCores>(size_t(ranks), RankCores{"a", cores(0, node), node, threads});
}

// Returns all lines of advice, joined.
std::string advice(const std::vector<RankCores>& ranks) {
  std::string text;
  for (const std::string& line : binding_advice(ranks)) text += (text.empty() ? "" : "\n") + line;
  return text;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(Cores, AreCountedOnce) {
  const std::filesystem::path sysfs = std::filesystem::path(testing::TempDir()) / "cores_test";
  auto siblings = [&](int cpu, const std::string& list) {
    const auto folder = sysfs / ("cpu" + std::to_string(cpu)) / "topology";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "thread_siblings_list") << list << "\n";
  };
  for (int cpu : {0, 4}) siblings(cpu, "0,4");
  for (int cpu : {2, 3}) siblings(cpu, "2-3");
  siblings(1, "1");
  EXPECT_EQ(cores_of({0, 1, 2, 3, 4}, sysfs), (std::set<int>{0, 1, 2}));
  EXPECT_EQ(cores_of({3, 4}, sysfs), (std::set<int>{0, 2}));
  EXPECT_EQ(cores_of({0, 4, 7, 8}, sysfs), (std::set<int>{0, 7, 8}))
      << "cores 7 and 8 have no entry";
  std::filesystem::remove_all(sysfs);
}

TEST(Threads, AnOmpNumThreadsThatIsNotUsedIsNamed) {
  for (const char* fits : {static_cast<const char*>(nullptr), "", "2", " 2", "2,1"})
    EXPECT_EQ(omp_threads_advice(fits, 2), "");
  EXPECT_EQ(omp_threads_advice("8", 2),
            "OMP_NUM_THREADS=\"8\" is not used: run.threads sets the threads of a rank (here 2)");
  for (const char* nonsense : {"abc", "2x", "0", "-1", "1e1", ",2"})
    EXPECT_EQ(omp_threads_advice(nonsense, 2),
              fmt::format("OMP_NUM_THREADS=\"{}\" is no number of threads, and not used: "
                          "run.threads sets the threads of a rank (here 2)",
                          nonsense));
}

TEST(BindingAdvice, SaysNothingWhereEachRankHasItsCores) {
  EXPECT_EQ(advice(bound("a", 4, 4, 16, 4)), "");
  EXPECT_EQ(advice(bound("a", 2, 1, 2, 1)), "");
  EXPECT_EQ(advice(unbound(1, 16, 16)), "");
}

TEST(BindingAdvice, CoresThatStayIdle) {
  EXPECT_EQ(advice(bound("a", 2, 1, 16, 1)),
            "a: 2 ranks of 1 thread: bound to 2 of 16 cores, the others stay idle; mpirun --map-by "
            "slot:PE=8 --bind-to core uses 16 of them");
}

TEST(BindingAdvice, MoreThreadsThanCores) {
  std::string text = advice(bound("a", 2, 1, 16, 8));
  EXPECT_TRUE(
      has(text,
          "2 ranks of 8 threads: on only 2 of 16 cores; mpirun --map-by slot:PE=8 --bind-to core"))
      << text;
  text = advice(unbound(4, 2, 1));
  EXPECT_TRUE(has(text, "on 2 cores, so threads wait for each other")) << text;
}

TEST(BindingAdvice, NotBound) {
  std::string text = advice(unbound(4, 16, 4));
  EXPECT_TRUE(has(
      text, "not bound, they may move about 16 cores; mpirun --map-by slot:PE=4 --bind-to core"))
      << text;
}

TEST(BindingAdvice, HostsThatAreAlikeAreToldOnce) {
  std::vector<RankCores> all = bound("a", 2, 1, 16, 1), more = bound("b", 2, 1, 16, 1);
  all.insert(all.end(), more.begin(), more.end());
  std::string text = advice(all);
  EXPECT_TRUE(text.starts_with("a and 1 more: 2 ranks of 1 thread: bound to 2 of 16") &&
              !has(text, "\n"))
      << text;
}

}  // namespace
}  // namespace host
