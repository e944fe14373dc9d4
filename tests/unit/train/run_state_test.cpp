// SPDX-License-Identifier: Apache-2.0
// Tests the state that checkpoints hold besides tensors. Every member survives, under the names of
// older checkpoints. A run continues from the state and goes back to it.
#include "train/run_state.hpp"

#include <gtest/gtest.h>

#include "train/continuation.hpp"

namespace train {
namespace {

RunState tracking() {
  RunState s;
  s.best = Tracker("best", {"val", "loss", true});
  s.patience = Tracker("early_stop", {"val", "score", false});
  s.global_batch = 32;
  return s;
}

// Returns a state whose members all differ from their defaults and from each other.
RunState full() {
  RunState s = tracking();
  s.step = 7;
  Progress& p = s.progress;
  p.times = {1.5, 2.5, 3.5, 4.5, 5.5};
  p.core_s = 6.5;
  p.save_s = 7.5;
  p.attempts = 3;
  p.bad_samples = 11;
  p.skipped_steps = 12;
  p.overflowed_steps = 13;
  p.skipped_examples = 14;
  p.stream_offset = -15;
  p.seen_offset = 16;
  p.stream_before = 19;
  p.device_times.use("NVIDIA H100 80GB HBM3", 0.125);
  p.device_times.add(8);
  p.device_times.use("cpu", 1);
  p.device_times.add(5.5);
  s.best.update("val", {{"loss", 0.25}}, 5);
  s.patience.update("val", {{"score", 0.75}}, 4);
  s.patience.update("val", {{"score", 0.5}}, 6);
  s.epoch_means.add({0.125, 0.5}, 24);
  s.losses.add(8, {0.375, 0.625});
  s.uptime_s = 17.5;
  s.loss_scale = {1024, 18};
  s.origin = "branch of a";
  s.data = "train 40 samples";
  s.classes = "cat\ndog";
  s.tokenizers = "words 0123456789abcdef\n";
  s.resume = "must";
  s.restart_data = true;
  s.deck = "format = 1";
  s.name = "name";
  s.notes = "notes";
  s.version = "0.1.0";
  return s;
}

const std::map<std::string, double> kNumbers = {{"setup_s", 1.5},
                                                {"training_s", 2.5},
                                                {"evaluation_s", 3.5},
                                                {"checkpoint_s", 4.5},
                                                {"redone_s", 5.5},
                                                {"core_s", 6.5},
                                                {"save_s", 7.5},
                                                {"attempts", 3},
                                                {"bad_samples", 11},
                                                {"skipped_steps", 12},
                                                {"overflowed_steps", 13},
                                                {"skipped_examples", 14},
                                                {"stream_offset", -15},
                                                {"seen_offset", 16},
                                                {"best_value", 0.25},
                                                {"best_step", 5},
                                                {"best_waiting", 0},
                                                {"early_stop_value", 0.75},
                                                {"early_stop_step", 4},
                                                {"early_stop_waiting", 1},
                                                {"epoch_examples", 24},
                                                {"epoch_columns", 2},
                                                {"epoch_sum0", 0.125},
                                                {"epoch_sum1", 0.5},
                                                {"uptime_s", 17.5},
                                                {"loss_scale", 1024},
                                                {"loss_scale_updates", 18},
                                                {"global_batch", 32},
                                                {"stream_before", 19},
                                                {"restart_data", 1},
                                                {"losses_from", 8},
                                                {"losses_hash_low", 2036558021},
                                                {"losses_hash_high", 1778582549}};
const std::map<std::string, std::string> kTexts = {
    {"origin", "branch of a"}, {"data", "train 40 samples"},
    {"resume", "must"},        {"deck", "format = 1"},
    {"run", "name"},           {"notes", "notes"},
    {"classes", "cat\ndog"},   {"tokenizers", "words 0123456789abcdef\n"},

    {"version", "0.1.0"},      {"device_s", "1 NVIDIA H100 80GB HBM3\n5.5 cpu\n"}};

TEST(RunState, CheckpointsHoldEveryMemberUnderItsName) {
  const checkpoint::State saved = full().to_checkpoint({});
  EXPECT_EQ(saved.step, 7);
  EXPECT_EQ(saved.numbers, kNumbers);
  EXPECT_EQ(saved.texts, kTexts);
}

TEST(RunState, EveryMemberIsRestored) {
  checkpoint::State saved;
  saved.step = 7;
  saved.numbers = kNumbers;
  saved.texts = kTexts;
  RunState read = tracking().read(saved);
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.progress.attempts, 3);
  EXPECT_EQ(read.progress.stream_offset, -15);
  EXPECT_EQ(read.best.value(), 0.25);
  EXPECT_EQ(read.patience.waiting(), 1);
  EXPECT_EQ(read.loss_scale->updates, 18);
  EXPECT_EQ(read.origin, "branch of a");
  // Writing the state that was read must give the saved members.
  const checkpoint::State again = read.to_checkpoint({});
  EXPECT_EQ(again.numbers, kNumbers);
  EXPECT_EQ(again.texts, kTexts);
}

// An attribute of HDF5 has at most 64 KiB.
TEST(RunState, LongListsOfClassesHaveSeveralMembers) {
  RunState state;
  for (int i = 0; i < 21841; ++i) state.classes += fmt::format("{}n{:08}\u00e9", i ? "\n" : "", i);
  const checkpoint::State saved = state.to_checkpoint({});
  EXPECT_EQ(saved.texts.count("classes"), 1u);
  EXPECT_EQ(saved.texts.count("classes_6"), 1u);
  EXPECT_EQ(saved.texts.count("classes_7"), 0u);
  for (const auto& [name, text] : saved.texts) EXPECT_LE(text.size(), 50000u) << name;
  EXPECT_EQ(RunState().read(saved).classes, state.classes);
  EXPECT_TRUE(base::is_utf8(saved.texts.at("classes")));
  EXPECT_EQ(RunState().to_checkpoint({}).texts.count("classes"), 0u);
  // A run whose sets have no list now keeps the one that it had.
  RunState now;
  now.continue_from(state, 1);
  EXPECT_EQ(now.classes, state.classes);
}

TEST(RunState, ACheckpointMayLackMembers) {
  RunState configured = tracking();
  configured.best.update("val", {{"loss", 1}}, 3);
  const RunState read = configured.read(checkpoint::State{});
  EXPECT_FALSE(read.best.has_value());  // the deck tracked nothing
  EXPECT_FALSE(read.loss_scale);
  EXPECT_EQ(read.global_batch, 0);
  EXPECT_EQ(read.origin, "random");
  // A deck that tracks nothing and scales no loss saves no such members.
  RunState plain;
  const checkpoint::State saved = plain.to_checkpoint({});
  EXPECT_FALSE(saved.numbers.contains("best_value"));
  EXPECT_FALSE(saved.numbers.contains("loss_scale"));
  EXPECT_EQ(saved.numbers.size(), 21u);
}

TEST(RunState, GoesOnAndKeepsWhatTheStartHasCost) {
  RunState now = tracking();
  now.progress.add(&Progress::Times::setup, 2, 4);
  now.continue_from(full(), 4);
  EXPECT_EQ(now.step, 7);
  EXPECT_EQ(now.progress.attempts, 4);
  EXPECT_EQ(now.progress.times.setup, 1.5 + 2);
  EXPECT_EQ(now.progress.core_s, 6.5 + 2 * 4);
  EXPECT_EQ(now.progress.device_times.seconds(),
            (std::map<std::string, double>{{"NVIDIA H100 80GB HBM3", 1}, {"cpu", 5.5 + 2 * 4}}));
  EXPECT_EQ(now.progress.times.training, 2.5);
  EXPECT_EQ(now.progress.stream_offset, -15);  // the batch is the same
  EXPECT_EQ(now.best.step(), 5);
  EXPECT_EQ(now.epoch_means.examples(), 24);
  EXPECT_EQ(now.patience.waiting(), 1);
  EXPECT_EQ(now.origin, "branch of a");
  EXPECT_EQ(now.data, "");  // belongs to this attempt, not to the checkpoint
}

// With another batch size, the stream of examples and the count of examples continue where they
// were.
TEST(RunState, AnotherBatchGoesOnAtTheSameExample) {
  RunState now = tracking();
  now.global_batch = 8;
  const RunState saved = full();
  now.continue_from(saved, 1);
  EXPECT_EQ(now.progress.stream_offset + now.step * 8,
            saved.progress.stream_offset + saved.step * 32);
  EXPECT_EQ(now.examples_seen(now.step), saved.examples_seen(saved.step));
}

TEST(RunState, DataBeginAnewOnce) {
  RunState now = tracking();
  now.restart_data = true;
  RunState saved = full();
  saved.restart_data = false;  // saved by an attempt that had not restarted the data
  const int64_t before = saved.position(), seen = saved.examples_seen(saved.step);
  EXPECT_EQ(before, 7 * 32 - 15);
  now.continue_from(saved, 1);
  EXPECT_EQ(now.position(), 0);
  EXPECT_EQ(now.progress.stream_before, 19 + before);
  EXPECT_EQ(now.examples_seen(now.step), seen);  // counts go on
  // The same command again, from a checkpoint of that attempt.
  RunState next = tracking();
  next.restart_data = true;
  now.step += 2;
  next.continue_from(next.read(now.to_checkpoint({})), 1);
  EXPECT_EQ(next.position(), 2 * 32);
  EXPECT_EQ(next.progress.stream_before, 19 + before);
  // A rewind to a checkpoint from before the restart of the data keeps the new order.
  EXPECT_EQ(next.go_back(saved, 9), 2 * 32);
  EXPECT_EQ(next.position(), 2 * 32);
}

TEST(RunState, AFileMayHaveNoPositionOfTheData) {
  RunState now = tracking();
  checkpoint::State file = full().to_checkpoint({});
  EXPECT_EQ(position_problem(now.read(file), now, "a.h5"), "");
  file.numbers.erase("stream_offset");
  const RunState saved = now.read(file);
  now.continue_from(saved, 1);
  const std::string problem = position_problem(saved, now, "a.h5");
  for (const char* part :
       {"a.h5 has no position of the data", "at example 224 ", "restart_data=true"})
    EXPECT_NE(problem.find(part), problem.npos) << problem;
}

TEST(RunState, GoesBackAndLeavesExamplesOut) {
  RunState now = full();
  now.step = 12;
  now.progress.times.training += 10;
  now.progress.core_s += 40;
  now.progress.skipped_examples = 100;
  now.progress.attempts = 5;
  const Progress before = now.progress;
  EXPECT_EQ(now.go_back(full(), 11), (11 - 7) * 32);
  EXPECT_EQ(now.step, 7);
  EXPECT_EQ(now.progress.times.total(), before.times.total());  // no second is lost
  EXPECT_EQ(now.progress.times.redone, 5.5 + 10);
  EXPECT_EQ(now.progress.times.training, 2.5);
  EXPECT_EQ(now.progress.core_s, before.core_s);
  EXPECT_EQ(now.progress.device_times.seconds(), before.device_times.seconds());
  EXPECT_EQ(now.progress.attempts, 6);
  EXPECT_EQ(now.progress.skipped_examples, 100 + 128);
  EXPECT_EQ(now.progress.stream_offset, -15 + 128);
  EXPECT_EQ(now.progress.seen_offset, 16);  // skipped examples were not seen
}

// The steps of an epoch, cut by a checkpoint and then by a rewind, give the means of one run.
TEST(EpochMeans, GoOnFromACheckpoint) {
  const models::Measure accuracy{"accuracy", "1", "", 1}, of_rows{"row_loss", "1", "", 0, 1};
  RunState whole, cut;
  for (int64_t step = 0; step < 5; ++step)
    whole.epoch_means.add({0.1 * double(step + 1), 0.3 * double(step + 2)}, 8);
  for (int64_t step = 0; step < 5; ++step) {
    cut.epoch_means.add({0.1 * double(step + 1), 0.3 * double(step + 2)}, 8);
    RunState next;
    next.continue_from(next.read(cut.to_checkpoint({})), 1);
    cut = next;
    if (step < 4) cut.epoch_means.add({9, 9}, 8);  // a step that the rewind undoes
    if (step < 4) cut.go_back(next, 9);
  }
  EXPECT_EQ(cut.epoch_means.examples(), 40);
  EXPECT_EQ(cut.epoch_means.mean(accuracy), whole.epoch_means.mean(accuracy));
  EXPECT_EQ(cut.epoch_means.mean(of_rows), whole.epoch_means.mean(of_rows));
  EXPECT_NEAR(cut.epoch_means.mean(accuracy), 0.3 * 20 / 40, 1e-15);
  cut.epoch_means.clear();
  EXPECT_EQ(cut.to_checkpoint({}).numbers.count("epoch_sum0"), 0u);
}

TEST(Pace, TheFirstTwoStepsAreNotTimed) {
  Pace pace;
  for (double s : {9.0, 8.0}) pace.step_done(s, 10);
  EXPECT_FALSE(pace.timed());
  EXPECT_EQ(pace.mean_step_s(), 8);
  pace.step_done(1, 10);
  pace.step_done(3, 10);
  EXPECT_TRUE(pace.timed());
  EXPECT_EQ(pace.mean_step_s(), 2);
  EXPECT_EQ(pace.slowest_step_s(), 3);
  EXPECT_EQ(pace.examples_per_s(), 5);
}

}  // namespace
}  // namespace train
