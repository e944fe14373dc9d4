// SPDX-License-Identifier: Apache-2.0
// Reads whole files of weights, good and bad ones.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/weight_file.hpp"
#include "weight_files.hpp"

namespace tests {

class WeightFileTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "trainer_weights_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    std::string command = "rm -rf '" + directory_ + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  std::string file(const std::string& name, const std::string& bytes) {
    std::string path = directory_ + "/" + name;
    tests::write(path, bytes);
    return path;
  }
  // Reads the whole file, in pieces of `piece` elements.
  static std::vector<std::pair<std::string, std::vector<float>>> read_all(const std::string& path,
                                                                          int64_t piece = 5) {
    std::vector<std::pair<std::string, std::vector<float>>> out;
    auto weights = checkpoint::open_weights(path);
    for (size_t i = 0; i < weights->tensors().size(); ++i) {
      const checkpoint::FileTensor& t = weights->tensors()[i];
      if (!t.type) continue;
      std::vector<float> values(size_t(t.count()));
      weights->begin(i);
      for (int64_t at = 0; at < t.count(); at += piece)
        weights->read(values.data() + at, std::min(piece, t.count() - at));
      out.emplace_back(t.name, values);
    }
    return out;
  }
  // Returns the reason that opening or reading the file is refused, or "".
  static std::string problem(const std::string& path) {
    try {
      read_all(path);
      return "";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::checkpoint) << e.what();
      EXPECT_EQ(std::string(e.what()).find(path), 0u) << e.what();
      return e.what();
    }
  }
  void refused(const std::string& name, const std::string& bytes, const std::string& fragment) {
    std::string text = problem(file(name, bytes));
    EXPECT_NE(text.find(fragment), text.npos) << "'" << fragment << "' is not in '" << text << "'";
  }
  std::string directory_;
};

}  // namespace tests
