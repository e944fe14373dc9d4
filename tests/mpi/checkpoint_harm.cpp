// SPDX-License-Identifier: Apache-2.0
// Checkpoints that come to harm: damaged and cut files, file-system calls that fail, states that
// lack a part.
#include <atomic>
#include <cerrno>

#include "checkpoint_rig.hpp"

namespace tests {
namespace {

std::atomic<int64_t> fail_at{-1};  // counted by the thread that saves
void failing_call(int64_t, const char* call, const std::string& path) {
  if (fail_at >= 0 && fail_at-- == 0)
    throw io::Failure(fmt::format("{}: cannot {}: injected", path, call), ENOSPC);
}

}  // namespace

// Changes one byte or cuts the file, in many places. Each restore must name the damage and use the
// previous file.
void check_damage(CheckpointTest& t) {
  std::string directory = t.fresh(t.io.mpio ? "damage_mpio" : "damage");
  t.with(t.world.size(), [&](comm::Comm& c) {
    t.save(c, directory, 10);
    t.save(c, directory, 20);
    std::string older = directory + "/0000000010.h5", newer = directory + "/0000000020.h5",
                good = io::read_file(newer);
    checkpoint::Manifest m = checkpoint::inspect(newer, 20);
    c.barrier();  // everybody has read the good file before rank 0 damages it
    auto try_with = [&](const std::string& content, const std::string& word) {
      t.on_first(c, [&] { io::write_file_atomically(newer, content, false); });
      auto restored = t.restore(c, directory, 10, Cut::uneven);
      EXPECT(restored->refused.size() == 1 && restored->refused[0].find(word) != std::string::npos,
             "'{}' is not in '{}'", word, restored->refused[0]);
      EXPECT(restored->refused[0].find("0000000020.h5") != std::string::npos);
      EXPECT(io::exists(newer));  // restoring changes nothing
      c.barrier();
    };
    auto flip = [&](int64_t at, const std::string& word) {
      std::string bad = good;
      bad[size_t(at)] = char(bad[size_t(at)] ^ 0x10);
      try_with(bad, word);
    };
    flip(3, "does not begin");
    flip(80, "header");
    flip(checkpoint::kUserBlock + 8, "structure");
    flip(checkpoint::kUserBlock + 2000, "structure");
    for (const checkpoint::Entry& e : m.layout.entries)
      if (e.bytes) {
        flip(e.offset, e.name);
        flip(e.offset + e.bytes - 1, e.name);
      }
    flip(m.layout.tensor_sums, "checksum");
    flip(m.layout.block_sums + 8, "checksum");
    for (size_t length :
         {size_t(0), size_t(100), size_t(4096), size_t(5000), good.size() / 2, good.size() - 1})
      try_with(good.substr(0, length), "cut");
    try_with(good + "x", "were written");
    try_with(std::string(good.size(), '\0'), "never finished");
    // Without any valid file: an error, never a fresh start, and no file changes.
    t.on_first(c, [&] {
      io::write_file_atomically(newer, good.substr(0, 9000), false);
      std::string bad = io::read_file(older);
      bad[size_t(m.layout.entries[3].offset)] ^= 1;
      io::write_file_atomically(older, bad, false);
    });
    t.refused(c, base::Exit::checkpoint,
              {"none is valid", "0000000020.h5: it is cut", "0000000010.h5", "damaged"},
              [&] { t.restore(c, directory, 0); });
    EXPECT(io::exists(newer) && io::exists(older));
    t.refused(c, base::Exit::checkpoint, {"none is valid"},
              [&] { t.restore(c, directory, 0, Cut::even, "20"); });
    c.barrier();
    // A flip in the padding between datasets changes nothing.
    t.on_first(c, [&] {
      std::string padded = good;
      for (auto [begin, end] : m.layout.gaps()) padded[size_t(begin)] = 1;
      io::write_file_atomically(newer, padded, false);
    });
    t.restore(c, directory, 20);
  });
}

// If any file-system call of a rank fails, every rank reports it, the older file stays, nothing
// hangs, and the next save works.
void check_failing_calls(CheckpointTest& t) {
  std::string directory = t.fresh(t.io.mpio ? "failures_mpio" : "failures");
  t.with(t.world.size(), [&](comm::Comm& c) {
    t.save(c, directory, 1);
    io::set_call_hook(failing_call);
    for (int victim = 0; victim < c.size(); ++victim) {
      int64_t failed = 0;
      for (int64_t call = 0;; ++call) {
        Owner owner(Cut::uneven, c.rank(), c.size(), 2, true);
        owner.state.io = t.io;
        std::string error;
        fail_at = c.rank() == victim ? call : -1;
        try {
          checkpoint::save(c, directory, owner.state, options());
        } catch (const base::Error& e) {
          error = e.what();
          EXPECT(e.code() == base::Exit::checkpoint, "{}", error);
        }
        bool over = c.min(int64_t(c.rank() != victim || fail_at >= 0));
        fail_at = -1;
        for (const std::string& other : c.gather_text(error))
          EXPECT(other == error, "{} / {}", other, error);
        if (over) {
          EXPECT(error.empty(), "{}", error);
          break;
        }
        ++failed;
        if (!error.empty())
          EXPECT(error.find("injected") != error.npos && error.find("Older") != error.npos, "{}",
                 error);
        bool there = io::exists(directory + "/0000000002.h5");
        c.barrier();
        if (!error.empty() && !there) t.restore(c, directory, 1);
        c.barrier();
        t.on_first(c, [&] { io::remove_file(directory + "/0000000002.h5"); });
      }
      EXPECT(failed > 5);
      t.restore(c, directory, 2);
      c.barrier();
      t.on_first(c, [&] { io::remove_file(directory + "/0000000002.h5"); });
    }
    io::set_call_hook(nullptr);
  });
}

void check_coverage(CheckpointTest& t) {
  std::string directory = t.fresh("coverage");
  t.with(t.world.size(), [&](comm::Comm& c) {
    auto broken = [&](const std::vector<std::string>& words,
                      const std::function<void(checkpoint::State&)>& change) {
      t.refused(c, base::Exit::internal, words, [&] {
        Owner owner(Cut::even, c.rank(), c.size(), 3, true);
        change(owner.state);
        checkpoint::save(c, directory, owner.state, options());
      });
    };
    broken({"/params/encoder/bias", "no rank writes its bytes [0, 4012)"},
           [](checkpoint::State& s) { s.tensors[1].writes = false; });
    broken({"/params/encoder/kernel", "no rank writes"}, [&](checkpoint::State& s) {
      if (c.rank() == c.size() - 1) s.tensors[0].parts[0].end -= 1;
    });
    if (c.size() > 1) {
      broken({"/params/one_block", "the ranges before end at"}, [&](checkpoint::State& s) {
        if (c.rank() == 1) s.tensors[2].parts[0].begin -= 1;
      });
      broken({"different lists of tensors"}, [&](checkpoint::State& s) {
        if (c.rank() == 1) s.tensors.pop_back();
      });
    }
    EXPECT(io::list_directory(directory).empty());
  });
}

}  // namespace tests
