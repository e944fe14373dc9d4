// SPDX-License-Identifier: Apache-2.0
// The vector loops have the same bits with each instruction set and each compiler. Portable tables
// must reproduce recorded digests (loop_digests.hpp). After a change of bits, record them again:
//   TRAINER_RECORD=1 build/tests/test_kernels --gtest_filter='PortableLoops.*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "base/elementary.hpp"
#include "kernels/cpu/scalar_log.hpp"
#include "kernels/gemm.hpp"
#include "kernels/instruction_choice.hpp"
#include "loop_digests.hpp"
#include "tests/unit/recorded.hpp"

namespace kernels {
namespace {

using Texts = std::map<std::string, std::string>;  // digest of each loop

Texts texts_of(const VectorTable& table) {
  Texts out;
  for (const auto& [name, digest] : digests::digests_of(table))
    out[name] = fmt::format("{:016x}", digest.value());
  return out;
}

const std::string kRecorded = tests::source_file("tests/recorded/loops.txt");

Texts recorded() {
  Texts out;
  std::ifstream file(kRecorded);
  for (std::string line; std::getline(file, line);) {
    const size_t gap = line.rfind(' ');
    out[line.substr(0, gap)] = line.substr(gap + 1);
  }
  return out;
}

void expect_equal(const Texts& found, const Texts& wanted, const std::string& what) {
  std::string differ;
  for (const auto& [name, digest] : wanted)
    if (!found.contains(name) || found.at(name) != digest) differ += "\n  " + name;
  EXPECT_TRUE(differ.empty()) << what << " differ in" << differ;
  EXPECT_EQ(found.size(), wanted.size()) << what << " have other loops";
}

void expect_recorded(const VectorTable& table) {
  expect_equal(texts_of(table), recorded(),
               std::string("recorded digests and the loops of table ") + table.name);
}

TEST(PortableLoops, InPlainCpp) {
  if (const char* record = std::getenv("TRAINER_RECORD"); record && *record) {
    std::ofstream file(kRecorded);
    for (const auto& [name, digest] : texts_of(kGenericWideTable))
      file << name << " " << digest << "\n";
  }
  expect_recorded(kGenericWideTable);
}

#ifdef __x86_64__
TEST(PortableLoops, WithAvx2) { expect_recorded(kAvx2WideTable); }

TEST(PortableLoops, WithAvx512) {
  const VectorTable& widest = *portable_vector_tables().back();
  if (&widest != &kAvx512PortableTable) GTEST_SKIP() << "this CPU has no AVX-512";
  expect_recorded(widest);
}

TEST(GenericLoops, EqualThoseForAvx2) {
  expect_equal(texts_of(kGenericTable), texts_of(kAvx2Table), "generic and AVX2 loops");
}
#endif

TEST(PortableLoops, AreChosen) {
  const VectorTable& before = vector_table();
  choose_instructions(Instructions::automatic, true);
  EXPECT_EQ(&vector_table(), portable_vector_tables().back());
  EXPECT_FALSE(vector_table().pairs);
  EXPECT_FALSE(bf16_is_native());
  EXPECT_EQ(&base::math::functions(), &base::math::kOwn);
  choose_instructions(Instructions::automatic, false);
  EXPECT_EQ(&vector_table(), &before);
  EXPECT_EQ(&base::math::functions(), &base::math::kLibrary);
}

TEST(PortableLoops, LogarithmsOfSums) {
  EXPECT_EQ(log_of<Log::own>(1), 0);
  EXPECT_EQ(log_of<Log::own>(2), base::own_log(2));
  EXPECT_EQ(log_of<Log::own>(0), -INFINITY);
  EXPECT_EQ(log_of<Log::own>(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(log_of<Log::own>(-1)) && std::isnan(log_of<Log::own>(NAN)));
}

}  // namespace
}  // namespace kernels
