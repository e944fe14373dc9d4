// SPDX-License-Identifier: Apache-2.0
// logs/memory.txt: what uses the memory of each rank at chosen steps (log.memory_steps).
#include <algorithm>
#include <map>
#include <utility>

#include "base/process_memory.hpp"
#include "base/text.hpp"
#include "device/gpu.hpp"
#include "host/node_memory.hpp"
#include "host/surroundings.hpp"
#include "io/waiting.hpp"
#include "train/attempt.hpp"

namespace train {
namespace {

constexpr const char* kFile = "/logs/memory.txt";

// Returns one line "NAME BYTES" for each known number about this rank's memory.
std::string memory_of_rank(const Attempt& attempt) {
  std::string out;
  auto put = [&](const std::string& name, int64_t bytes) {
    out += fmt::format("{} {}\n", name, bytes);
  };
  for (const auto& [category, entry] : attempt.engine().ledger().entries()) {
    put("buffers." + category, entry.now);
    if (entry.peak != entry.now) put("buffers." + category + ".peak", entry.peak);
  }
  const base::ProcessMemory m = base::process_memory();
  put("process.resident", m.resident);
  put("process.resident.peak", m.peak);
  put("process.anonymous", m.anonymous);
  put("process.files", m.file);
  put("process.shared", m.shared);
  put("process.swapped", m.swapped);
  put("node.available", host::node_memory().available_kib << 10);
  if (const int64_t used = host::group_memory_bytes(); used > 0) put("group.used", used);
  if (attempt.job.device().kind == device::Kind::cuda)
    put("gpu.used", int64_t(device::gpu_memory_used_bytes()));
  return out;
}

// Returns a table with rank 0's bytes, and the most of any rank.
std::string table_of(const std::vector<std::string>& ranks) {
  std::map<std::string, std::pair<int64_t, size_t>> most;
  std::map<std::string, int64_t> first;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const std::string& line : base::split(ranks[rank], '\n')) {
      const size_t blank = line.rfind(' ');
      if (blank == line.npos) continue;
      const std::string name = line.substr(0, blank);
      const int64_t bytes = std::stoll(line.substr(blank));
      if (rank == 0) first[name] = bytes;
      if (const auto [at, fresh] = most.try_emplace(name, bytes, rank);
          !fresh && at->second.first < bytes)
        at->second = {bytes, rank};
    }
  std::string out;
  for (const auto& [name, most_of] : most)
    out += fmt::format("  {:<40} {:>14.1f} {:>14.1f} {:>8}\n", name, double(first[name]) / 0x1p20,
                       double(most_of.first) / 0x1p20, most_of.second);
  return out;
}

class MemoryLog : public Observer {
 public:
  explicit MemoryLog(const Attempt& attempt)
      : attempt_(attempt), lines_(attempt.recipe.run.dir + kFile) {}

  void settled(int64_t step, const step::StepReport& /*report*/, bool /*skipped*/) override {
    if (!attempt_.recipe.log.wants_memory(step)) return;
    const std::vector<std::string> ranks = attempt_.world().gather_text(memory_of_rank(attempt_));
    if (!attempt_.leads()) return;
    lines_.append(fmt::format("step {} of attempt {}, MiB\n  {:<40} {:>14} {:>14} {:>8}\n{}", step,
                              attempt_.state.progress.attempts, "", "rank 0", "the most", "of rank",
                              table_of(ranks)));
  }

 private:
  const Attempt& attempt_;
  io::WaitingLines lines_;
};

}  // namespace

ObserverRow memory_log_row() {
  return {"memory_log", [](const Attempt& attempt) -> std::unique_ptr<Observer> {
            if (attempt.recipe.log.memory_steps.empty()) return nullptr;
            return std::make_unique<MemoryLog>(attempt);
          }};
}

}  // namespace train
