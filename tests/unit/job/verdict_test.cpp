// SPDX-License-Identifier: Apache-2.0
// Tests which rank a job without progress waits for.
#include "job/verdict.hpp"

#include <gtest/gtest.h>

namespace {

using job::Flight;
using job::Standing;

const job::OpenSpan kStep{"step 12", false, 1}, kWait{"wait for an exchange", true, 1};

// A rank in an exchange: its main thread waits, and call `call` has not ended.
Flight waiting(uint64_t call, const std::string& text = "all_reduce of fsdp, f32 x 8") {
  Flight f;
  f.step = 12;
  f.phase = "train";
  f.exchanges = call;
  f.last = {call, text, 1, false};
  f.threads = {{"main", {kStep, kWait}}, {"loader 0", {}}};
  return f;
}
Flight computing(uint64_t call) {
  Flight f = waiting(call);
  f.threads[0].open = {kStep, {"gemm", false, 1}};
  f.last.ended = true;
  return f;
}
std::vector<Standing> ranks(std::vector<Flight> flights) {
  std::vector<Standing> out;
  for (size_t r = 0; r < flights.size(); ++r)
    out.push_back({int(r), "n" + std::to_string(r), flights[r], 'S', true});
  return out;
}
bool has(const job::Verdict& v, const std::string& part) {
  return v.text.find(part) != v.text.npos;
}

TEST(Verdict, TheRankThatComputesIsNamed) {
  const job::Verdict v = job::find_culprit(ranks({waiting(8), computing(7), waiting(8)}), 30);
  EXPECT_EQ(v.rank, 1);
  EXPECT_EQ(v.host, "n1");
  EXPECT_TRUE(has(v, "step 12 > gemm")) << v.text;
  EXPECT_TRUE(has(v, "ranks 0, 2 wait in all_reduce of fsdp")) << v.text;
}

TEST(Verdict, AStoppedRankIsNamedWhateverTheOthersDo) {
  std::vector<Standing> all = ranks({computing(7), waiting(8), waiting(8)});
  all[2].state = 'T';
  all[2].answers = false;
  const job::Verdict v = job::find_culprit(all, 30);
  EXPECT_EQ(v.rank, 2);
  EXPECT_TRUE(has(v, "is stopped")) << v.text;
}

TEST(Verdict, AStoppedRankIsWaitedForInACallBeforeTheNewestOne) {
  Flight f = waiting(8);
  f.oldest = {7, "all_gather of fsdp, f32 x 4", 1, false};
  f.last.ended = true;
  std::vector<Standing> all = ranks({f, waiting(8)});
  all[1].state = 'T';
  const job::Verdict v = job::find_culprit(all, 30);
  EXPECT_TRUE(has(v, "; rank 0 waits in all_gather of fsdp, f32 x 4")) << v.text;
}

TEST(Verdict, AnEndedProcessIsNamed) {
  std::vector<Standing> all = ranks({waiting(8), waiting(8)});
  all[1].state = 0;
  EXPECT_TRUE(has(job::find_culprit(all, 30), "rank 1 (n1, phase train, step 12) has ended"));
}

TEST(Verdict, AThreadThatReadsOrSavesIsNamedWhileItsMainThreadWaits) {
  Flight reads = waiting(8);
  reads.threads[0].open = {kStep, {"wait for a batch", true, 1}};
  reads.threads[1].open = {{"load a sample 17", false, 1}};
  job::Verdict v = job::find_culprit(ranks({waiting(9), reads}), 30);
  EXPECT_EQ(v.rank, 1);
  EXPECT_TRUE(has(v, "loader 0: load a sample 17")) << v.text;
}

TEST(Verdict, OfBusyThreadsTheLastToBeginIsNamed) {
  Flight f = waiting(8);
  f.threads = {{"main", {kWait}},
               {"worker", {{"write a checkpoint", false, 5}}},
               {"sync", {{"sync a checkpoint", false, 9}}},
               {"loader 0", {{"load a sample 3", false, 7}}}};
  EXPECT_EQ(job::busy_thread(f), "sync: sync a checkpoint");
}

TEST(Verdict, OfTwoThatWorkTheOneBehindIsNamed) {
  EXPECT_EQ(job::find_culprit(ranks({computing(9), waiting(9), computing(8)}), 30).rank, 2);
}

TEST(Verdict, ARankWithoutSpansIsBusyInItsPhase) {
  Flight bare = computing(3);
  bare.phase = "setup";
  bare.threads[0].open.clear();
  const job::Verdict v = job::find_culprit(ranks({waiting(4), bare}), 30);
  EXPECT_EQ(v.rank, 1);
  EXPECT_TRUE(has(v, "phase setup")) << v.text;
}

TEST(Verdict, DifferentExchangesNameTheRankThatIsAlone) {
  const job::Verdict v = job::find_culprit(
      ranks({waiting(8), waiting(8, "all_gather of fsdp, f32 x 8"), waiting(8)}), 30);
  EXPECT_EQ(v.rank, 1);
  EXPECT_TRUE(has(v, "different exchanges")) << v.text;
  EXPECT_TRUE(has(v, "rank 1: all_gather")) << v.text;
}

TEST(Verdict, ASilentRankOfAnotherNodeIsNamed) {
  std::vector<Standing> all = ranks({waiting(8), waiting(8)});
  all[1].state = '?';
  all[1].answers = false;
  EXPECT_EQ(job::find_culprit(all, 30).rank, 1);
  all[1].flight.reset();
  EXPECT_EQ(job::find_culprit(all, 30).rank, 1);
}

TEST(Verdict, IfAllWaitInOneExchangeNobodyIsNamed) {
  const job::Verdict v = job::find_culprit(ranks({waiting(8), waiting(8)}), 30);
  EXPECT_EQ(v.rank, -1);
  EXPECT_TRUE(has(v, "all ranks wait in all_reduce")) << v.text;
}

// A rank that polls in its newest call. Its calls are numbered from `first`.
Flight calls(uint64_t first, std::vector<std::string> texts) {
  Flight f = waiting(first + texts.size() - 1, texts.back());
  for (size_t i = 0; i < texts.size(); ++i)
    f.calls.push_back({first + i, texts[i], 1, i + 1 < texts.size()});
  return f;
}

TEST(Verdict, ARankThatIsStuckInACallIsNamed) {
  std::vector<Flight> flights = {waiting(8), waiting(8), waiting(8)};
  for (Flight& f : flights) f.main_ran_ppm = 30'000;
  flights[2].main_ran_ppm = 30;
  const job::Verdict v = job::find_culprit(ranks(flights), 30);
  EXPECT_EQ(v.rank, 2);
  EXPECT_TRUE(has(v, "has not come back from its call for 30 s: all_reduce of fsdp")) << v.text;
  flights[0].main_ran_ppm = 30;  // with two resting ranks, no rank is named
  EXPECT_EQ(job::find_culprit(ranks(flights), 30).rank, -1);
}

TEST(Verdict, ARankThatLeftACallInWhichOthersWaitIsNamed) {
  const Flight in = calls(5, {"min of world", "all_gather of fsdp"});
  const Flight ahead = calls(5, {"min of world", "all_gather of fsdp", "max of world"});
  job::Verdict v = job::find_culprit(ranks({in, ahead, in}), 30);
  EXPECT_EQ(v.rank, 1);
  EXPECT_TRUE(has(v, "has left call 6, all_gather of fsdp, in which ranks 0, 2 still wait"))
      << v.text;
  EXPECT_EQ(job::find_culprit(ranks({in, ahead}), 30).rank, 1);
  v = job::find_culprit(ranks({ahead, ahead, in}), 30);
  EXPECT_EQ(v.rank, 2);
  EXPECT_TRUE(has(v, "still waits in call 6, all_gather of fsdp")) << v.text;
}

TEST(Verdict, OfTwoRanksTheOneThatDepartsFromItsStepsIsNamed) {
  const std::vector<std::string> step = {"all_gather of fsdp", "reduce_scatter of fsdp",
                                         "max of world"};
  std::vector<std::string> good = step, skips = step;
  good.insert(good.end(), {step[0], step[1]});
  skips.insert(skips.end(), {step[0], step[2]});
  for (const bool first : {true, false}) {
    const job::Verdict v = job::find_culprit(
        ranks({calls(1, first ? skips : good), calls(1, first ? good : skips)}), 30);
    EXPECT_EQ(v.rank, first ? 0 : 1) << v.text;
    EXPECT_TRUE(has(v, "different exchanges at call 5")) << v.text;
  }
}

TEST(Verdict, TheFirstCallThatAllKnowAndThatDiffersIsNamed) {
  const Flight a = calls(4, {"min of world", "all_reduce of fsdp", "barrier of world"});
  Flight b = calls(4, {"min of world", "all_gather of fsdp", "max of world"});
  const Flight late = calls(5, {"all_reduce of fsdp", "barrier of world"});
  job::Verdict v = job::find_unlike(ranks({a, b, late}));
  EXPECT_EQ(v.rank, 1);
  EXPECT_TRUE(has(v,
                  "different exchanges at call 5; rank 1: all_gather of fsdp; ranks 0, 2: "
                  "all_reduce of fsdp; all have called min of world before"))
      << v.text;
  EXPECT_EQ(job::find_unlike(ranks({a, a, late})).rank, -1);
  // A record that is being written has no text yet.
  b = a;
  b.calls[1].text = "";
  EXPECT_EQ(job::find_unlike(ranks({a, b, late})).rank, -1);
}

TEST(Verdict, ARankToWhichABroadcastHasNotComeIsNotBlamed) {
  const Flight in = calls(5, {"min of world", "broadcast_text of world"});
  const Flight ahead = calls(5, {"min of world", "broadcast_text of world", "max of world"});
  job::Verdict v = job::find_culprit(ranks({ahead, ahead, in}), 30);
  EXPECT_EQ(v.rank, -1);
  EXPECT_TRUE(has(v, "rank 2 waits in broadcast_text of world; ranks 0, 1 wait in max of world"))
      << v.text;
  EXPECT_EQ(job::find_culprit(ranks({ahead, in, in}), 30).rank, 0) << "it alone has left";
}

TEST(Verdict, ALaterCallMayEndBeforeAnEarlierOne) {
  Flight in = calls(5, {"reduce_scatter of fsdp", "reduce_scatter of fsdp", "all_gather of fsdp"});
  in.calls[0].ended = in.calls[1].ended = false;
  Flight left = in;
  left.calls[1].ended = true;
  const job::Verdict v = job::find_parted(ranks({in, left, in}));
  EXPECT_EQ(v.rank, 1);
  EXPECT_TRUE(has(v, "has left call 6, reduce_scatter of fsdp, in which ranks 0, 2 still wait"))
      << v.text;
}

TEST(Verdict, UnlikeCallsCountMoreThanWhatRanksDoNow) {
  Flight other = calls(5, {"reduce_scatter of fsdp", "all_gather of fsdp"});
  const Flight usual = calls(5, {"all_gather of fsdp", "reduce_scatter of fsdp"});
  Flight busy = usual;
  busy.threads[0].open = {kStep, {"gemm", false, 1}};
  EXPECT_EQ(job::find_culprit(ranks({busy, usual, other}), 30).rank, 2);
}

}  // namespace
