// SPDX-License-Identifier: Apache-2.0
// The fits of evaluators, and the metrics of captions, have the same bits on every CPU. A run shows
// only how many images a fit classifies correctly, and its captions share few words with their
// references. A changed rounding leaves both alone, so the numbers themselves are recorded. After a
// change of bits, record them again:
//   TRAINER_RECORD=1 build/tests/test_eval --gtest_filter='PortableFits.*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <span>
#include <string>

#include "base/hash.hpp"
#include "base/random.hpp"
#include "eval/captions/caption_metrics.hpp"
#include "eval/features/neighbours.hpp"
#include "eval/features/rank_method.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/linear_svm.hpp"
#include "eval/fits/logistic.hpp"
#include "eval/fits/symmetric.hpp"
#include "kernels/instruction_choice.hpp"
#include "tests/unit/recorded.hpp"

namespace eval {
namespace {

constexpr int64_t kRows = 41, kFeatures = 11, kClasses = 3, kTested = 7;

// Numbers that need no function of a library. Rows of a class are alike.
std::vector<float> made_up(const std::string& name, int64_t rows) {
  const base::Stream stream(48, name), centres(48, "centres");
  std::vector<float> out;
  for (int64_t i = 0; i < rows * kFeatures; ++i) {
    const auto centre = uint64_t(i / kFeatures % kClasses * kFeatures + i % kFeatures);
    out.push_back(float(int64_t(stream.bits(uint64_t(i)) % 2001) +
                        int64_t(centres.bits(centre) % 1001) - 1500) /
                  700);
  }
  return out;
}

std::string digest_of(const std::vector<double>& values) {
  return fmt::format("{:016x}", base::xxh3(values.data(), values.size() * sizeof(double)));
}

std::string made_up_caption(int64_t number) {
  const base::Stream stream(48, "captions");
  const auto first = uint64_t(number) * 16;
  std::string out;
  for (uint64_t i = 0; i < 3 + stream.bits(first) % 9; ++i)
    out += fmt::format("{}w{}", i ? " " : "", stream.bits(first + 1 + i) % 5);
  return out;
}

std::string digest_of_caption_metrics() {
  std::vector<std::string> candidates;
  std::vector<std::vector<std::string>> references;
  for (int64_t i = 0; i < 40; ++i) {
    candidates.push_back(made_up_caption(4 * i));
    references.push_back({made_up_caption(4 * i + 1), made_up_caption(4 * i + 2)});
    if (i % 2) references.back().push_back(made_up_caption(4 * i + 3));
  }
  const CaptionMetrics metrics = tokenized_caption_metrics(candidates, references);
  std::vector<double> values;
  auto add = [&](const CaptionScores& s) {
    values.insert(values.end(), s.bleu.begin(), s.bleu.end());
    values.insert(values.end(), {s.rouge_l, s.cider_d});
  };
  add(metrics.set);
  for (const CaptionScores& s : metrics.examples) add(s);
  return digest_of(values);
}

std::map<std::string, std::string> digests(int threads) {
  const std::vector<float> train = made_up("train", kRows), test = made_up("test", kTested);
  LabelledRows rows{train.data(), kFeatures, {}, kClasses};
  for (int64_t i = 0; i < kRows; ++i) rows.labels.push_back(int32_t(i % kClasses));
  std::map<std::string, std::string> out;

  for (int64_t shots : {2, 10}) {  // fewer rows than features, and more
    const auto probes = fit_probes(rows, first_of_each(permuted_rows(rows, 3), shots), {0.5, 300});
    for (const LinearProbe& probe : probes) {
      std::vector<double> values = probe.weights, scores;
      probe.score(test.data(), scores);
      values.insert(values.end(), scores.begin(), scores.end());
      out[fmt::format("least_squares_{}_{}", shots, &probe - probes.data())] = digest_of(values);
    }
  }

  const LogisticProbe logistic = fit_logistic(rows, 0.3, threads);
  out["logistic"] = digest_of(logistic.weights);

  std::vector<int64_t> all;
  std::vector<char> shows;
  for (int64_t i = 0; i < kRows; ++i) {
    all.push_back(i);
    shows.push_back(rows.labels[size_t(i)] == 1);
  }
  const std::vector<double> x = svm_rows(train.data(), kRows, kFeatures);
  out["svm"] = digest_of(fit_svm(x, kFeatures + 1, all, shows, 0.7));

  for (bool normalise : {false, true}) {
    std::vector<double> values;
    for (const auto& near :
         NeighbourSearch(rows, normalise).find(test.data(), kTested, 9, threads)) {
      for (const Neighbour& one : near) values.push_back(one.similarity);
      for (double score : vote(rows, near, 9, 0.07)) values.push_back(score);
    }
    out[normalise ? "neighbours_by_cosine" : "neighbours"] = digest_of(values);
  }

  std::vector<double> products(size_t(kFeatures * kFeatures), 0.0);
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t f = 0; f < kFeatures; ++f)
      add_scaled(products.data() + f * kFeatures, double(train[size_t(i * kFeatures + f)]),
                 train.data() + i * kFeatures, kFeatures);
  std::vector<double> factor = products;
  EXPECT_TRUE(factorise(factor, kFeatures));
  out["factor"] = digest_of(factor);
  std::vector<double> values = symmetric_eigenvalues(products, kFeatures, threads);
  for (size_t n = 1; n <= size_t(kFeatures); ++n)
    values.push_back(effective_rank(std::span(values).first(n)));
  out["eigenvalues"] = digest_of(values);
  out["caption_metrics"] = digest_of_caption_metrics();
  return out;
}

TEST(PortableFits, HaveTheRecordedBits) {
  const bool before = kernels::bits_are_portable();
  kernels::choose_instructions(kernels::Instructions::automatic, true);
  const std::string path = tests::source_file("tests/recorded/fits.txt");
  if (const char* record = std::getenv("TRAINER_RECORD"); record && *record) {
    std::ofstream file(path);
    for (const auto& [name, digest] : digests(1)) file << name << " " << digest << "\n";
  }
  std::map<std::string, std::string> recorded;
  std::ifstream file(path);
  for (std::string name, digest; file >> name >> digest;) recorded[name] = digest;
  for (int threads : {1, 3}) {
    const auto found = digests(threads);
    EXPECT_EQ(recorded.size(), found.size());
    for (const auto& [name, digest] : found)
      EXPECT_EQ(digest, recorded[name]) << name << ", threads " << threads;
  }
  kernels::choose_instructions(kernels::Instructions::automatic, before);
}

}  // namespace
}  // namespace eval
