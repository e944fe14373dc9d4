// SPDX-License-Identifier: Apache-2.0
// Runs every file of the corpus through its target:   fuzz_replay CORPUS   (CORPUS/TARGET/FILE)
// It needs no fuzzer, so every compiler tries the inputs of earlier findings.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "targets.hpp"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_replay CORPUS\n");
    return 2;
  }
  int inputs = 0, findings = 0;
  const std::pair<const char*, void (*)(std::string_view)> targets[] = {
      {"deck", fuzz::deck},       {"preprocess", fuzz::preprocess}, {"tar", fuzz::tar},
      {"weights", fuzz::weights}, {"image", fuzz::image},           {"tokenizer", fuzz::tokenizer}};
  for (auto [name, target] : targets) {
    int of_target = 0;
    for (const auto& entry : fs::directory_iterator(fs::path(argv[1]) / name)) {
      std::ifstream in(entry.path(), std::ios::binary);
      std::string input{std::istreambuf_iterator<char>(in), {}};
      ++of_target;
      try {
        fuzz::run(target, input);
      } catch (const std::exception& e) {
        std::printf("%s: %s\n", entry.path().c_str(), e.what());
        ++findings;
      }
    }
    if (of_target == 0) {
      std::printf("no inputs for %s\n", name);
      return 1;
    }
    inputs += of_target;
  }
  std::printf("%d inputs, %d findings\n", inputs, findings);
  return findings > 0;
}
