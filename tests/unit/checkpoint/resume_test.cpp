// SPDX-License-Identifier: Apache-2.0
// Tests which checkpoint checkpoint.resume chooses when a job script repeats its command: a return
// to an earlier step is done once, by the attempt that follows the others.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/checkpoint.hpp"

namespace {

class Resume : public testing::Test {
 protected:
  Resume() : directory_(testing::TempDir() + fmt::format("trainer_resume_{}", ::getpid())) {}
  ~Resume() override { std::filesystem::remove_all(directory_); }

  // A state of one tensor, written by an attempt with this checkpoint.resume.
  void save(int64_t step, const std::string& resume) {
    float value = float(step);
    checkpoint::CheckpointOptions options;
    options.keep_last = 99;
    std::filesystem::create_directories(directory_);
    checkpoint::save(*comm_, directory_, state(step, value, resume), options);
  }
  // Returns the step from which a run with this checkpoint.resume goes on; -1 if it begins anew.
  int64_t resumed(const std::string& resume) {
    float value = -1;
    checkpoint::State target = state(0, value, "");
    checkpoint::CheckpointOptions options;
    options.resume = resume;
    const auto restored = checkpoint::restore(*comm_, directory_, target, options);
    if (!restored) return -1;
    EXPECT_EQ(restored->step, target.step);
    EXPECT_EQ(value, float(target.step));
    return restored->step;
  }
  void damage(int64_t step) {
    const std::string path = fmt::format("{}/{:010}.h5", directory_, step);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  }

  std::string directory_;
  std::unique_ptr<comm::Comm> comm_ = comm::make_plan_comm(1);

 private:
  static checkpoint::State state(int64_t step, float& value, const std::string& resume) {
    checkpoint::State s;
    s.step = step;
    s.tensors.push_back({"/params/x", device::DType::f32, {1}, {{0, 1, &value}}, true});
    s.texts[checkpoint::kResumed] = resume;
    return s;
  }
};

TEST_F(Resume, AReturnIsCarriedOutOnce) {
  for (const auto& [resume, back] : {std::pair{"6", 6}, {"-2", 6}, {"never", -1}}) {
    SCOPED_TRACE(resume);
    std::filesystem::remove_all(directory_);
    save(6, "auto");
    save(10, "auto");
    EXPECT_EQ(resumed(resume), back);
    save(12, resume);
    EXPECT_EQ(resumed(resume), 12) << "the same command again";
    save(13, resume);
    EXPECT_EQ(resumed(resume), 13);
  }
}

// The newest file decides. An older one says nothing about the attempts since then.
TEST_F(Resume, AnotherAttemptBetweenMakesItAnew) {
  save(6, "auto");
  save(12, "6");
  save(14, "auto");
  EXPECT_EQ(resumed("auto"), 14);
  EXPECT_EQ(resumed("6"), 6);
  EXPECT_EQ(resumed("12"), 12);
  EXPECT_EQ(resumed("never"), -1);
  save(16, "never");
  EXPECT_EQ(resumed("6"), 6);
  EXPECT_EQ(resumed("never"), 16);
  save(18, "-1");
  EXPECT_EQ(resumed("-2"), 16);
  EXPECT_EQ(resumed("never"), -1);
}

// A damaged file does not count, so the previous file decides.
TEST_F(Resume, DamagedFilesAreNotAsked) {
  save(6, "auto");
  save(12, "6");
  save(14, "auto");
  damage(14);
  EXPECT_EQ(resumed("6"), 12);
  save(16, "6");
  save(18, "6");
  damage(18);
  EXPECT_EQ(resumed("6"), 16);
}

}  // namespace
