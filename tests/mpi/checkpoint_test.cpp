// SPDX-License-Identifier: Apache-2.0
// Checkpoints over ranks: mpirun -np 1..4 checkpoint_test [PART]. Every group size up to the number
// of ranks saves, and every group size reads, with several ways of cutting tensors among the ranks.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "checkpoint_rig.hpp"
#include "job/run_dir.hpp"

namespace {

using namespace tests;
using shard::TensorSlice;

void every_split_to_every_split(CheckpointTest& t) {
  std::string reference;
  for (int n = 1; n <= t.world.size(); ++n)
    for (Cut from : kCuts) {
      std::string directory = t.fresh(fmt::format("split_{}_{}", n, int(from)).c_str());
      t.with(n, [&](comm::Comm& c) { t.save(c, directory, 7, from); });
      // The same state gives the same file, whoever wrote it.
      std::string file = io::read_file(directory + "/0000000007.h5");
      if (reference.empty()) reference = file;
      EXPECT(file == reference, "{} ranks write another file", n);
      for (int m = 1; m <= t.world.size(); ++m)
        for (Cut to : kCuts) t.with(m, [&](comm::Comm& c) { t.restore(c, directory, 7, to); });
    }
  std::string directory = t.fresh("split_serial");
  if (t.world.rank() == 0) {
    auto self = comm::make_plan_comm(1);
    t.save(*self, directory, 7);
    EXPECT(io::read_file(directory + "/0000000007.h5") == reference);
    t.restore(*self, directory, 7, Cut::small_pieces);
  }
}

void which_file(CheckpointTest& t) {
  std::string directory = t.fresh("which");
  t.with(t.world.size(), [&](comm::Comm& c) {
    EXPECT(!t.restore(c, directory, -1));
    t.refused(c, base::Exit::checkpoint, {"must", "no checkpoint"},
              [&] { t.restore(c, directory, 0, Cut::even, "must"); });
    for (int64_t step : {100, 200, 300}) t.save(c, directory, step);
    t.on_first(c, [&] {
      for (const char* name :
           {"notes.txt", "0000000400.h5.tmp", "500.h5", "0000000600.h5x", "latest"})
        io::write_file_atomically(directory + "/" + name, "junk", false);
    });
    t.refused(c, base::Exit::checkpoint, {"\"150\"", "100"},
              [&] { t.restore(c, directory, 0, Cut::even, "150"); });
    EXPECT(!io::exists(directory + "/0000000400.h5.tmp") && io::exists(directory + "/500.h5"));
    c.barrier();
    t.restore(c, directory, 300, Cut::even, "must");
    c.barrier();
    auto restored = t.restore(c, directory, 200, Cut::even, "200");
    EXPECT(restored->file == "0000000200.h5" && restored->refused.empty());
    t.restore(c, directory, 300);
    c.barrier();
    t.save(c, directory, 250);  // the run went back to step 200, so file 300 is abandoned
    EXPECT(io::exists(directory + "/abandoned/0000000300.h5") &&
           !io::exists(directory + "/0000000300.h5"));
    t.restore(c, directory, 250);
    c.barrier();
    EXPECT(!t.restore(c, directory, -1, Cut::even, "never"));
    t.save(c, directory, 50);
    EXPECT(checkpoint::candidates(directory).size() == 1 &&
           io::exists(directory + "/abandoned/0000000100.h5"));
  });
}

void structure(CheckpointTest& t) {
  std::string directory = t.fresh("structure");
  t.with(t.world.size(), [&](comm::Comm& c) {
    t.save(c, directory, 1);
    t.save(c, directory, 2);
    auto with_change = [&](const std::vector<std::string>& words,
                           const std::function<void(std::vector<TensorSlice>&)>& change) {
      t.refused(c, base::Exit::checkpoint, words, [&] {
        Owner owner(Cut::even, c.rank(), c.size(), 0, false);
        change(owner.state.tensors);
        checkpoint::restore(c, directory, owner.state, options());
      });
    };
    with_change({"0000000002.h5 is intact", "only in the file: /params/encoder/bias f32[1003]"},
                [](auto& list) { list.erase(list.begin() + 1); });
    with_change({"missing in the file: /params/new f32[4]"}, [](auto& list) {
      list.push_back({"/params/new", DType::f32, {4}, {}, true});
    });
    with_change({"/params/encoder/bias: the file has f32[1003], this run f32[1004]"},
                [](auto& list) { list[1].shape = {1004}; });
    with_change({"/optimizer/half: the file has f16[7, 5], this run bf16[7, 5]"},
                [](auto& list) { list[7].type = DType::bf16; });
    with_change({"/params/one_block: the file has f32[512, 512], this run f32[262144]",
                 "only in the file: /optimizer/count"},
                [](auto& list) {
                  list[2].shape = {262144};
                  list.erase(list.begin() + 5);
                });
  });
}

void retention(CheckpointTest& t) {
  std::string directory = t.fresh("retention");
  t.with(t.world.size(), [&](comm::Comm& c) {
    auto steps = [&] {
      c.barrier();
      std::vector<int64_t> found;
      for (const auto& f : checkpoint::candidates(directory)) found.push_back(f.step);
      c.barrier();
      return found;
    };
    for (int64_t step = 1; step <= 7; ++step) {
      Owner owner(Cut::even, c.rank(), c.size(), step, true);
      auto o = options("auto", 2);
      o.keep_every_steps = 3;
      checkpoint::save(c, directory, owner.state, o);
    }
    EXPECT(steps() == (std::vector<int64_t>{7, 6, 3}));
    // A damaged newer file does not count, and is not removed.
    t.on_first(c, [&] { io::write_file_atomically(directory + "/0000000007.h5", "junk", false); });
    t.save(c, directory, 8, Cut::even, 2);
    EXPECT(steps() == (std::vector<int64_t>{8, 7, 6}));
    t.restore(c, directory, 8);
    // Saving a step again replaces its file.
    t.on_first(c, [&] { io::write_file_atomically(directory + "/0000000009.h5", "junk", false); });
    t.save(c, directory, 9, Cut::uneven, 1);
    EXPECT(steps() == (std::vector<int64_t>{9, 7}));
    t.restore(c, directory, 9);
  });
}

// Training goes on, and changes everything, while the file is written.
void beside_training(CheckpointTest& t) {
  for (int n = 1; n <= t.world.size(); ++n) {
    std::string directory = t.fresh(fmt::format("beside_{}", n).c_str());
    t.with(n, [&](comm::Comm& c) {
      auto o = options("auto", 2);
      checkpoint::Saver saver(c, directory, o);
      for (int64_t step = 1; step <= 4; ++step) {
        Owner owner(Cut::uneven, c.rank(), c.size(), step, true);
        if (step == 1) EXPECT(saver.stage(owner.state) > 0, "no staging copy");
        saver.begin(owner.state, step >= 3 ? 3 : -1);
        for (auto& tensor : owner.state.tensors)
          for (auto& part : tensor.parts)
            std::fill_n(static_cast<char*>(part.data),
                        (part.end - part.begin) * device::size_of(tensor.type), '\x5a');
        std::optional<checkpoint::Saved> saved;
        while (step % 2 && !saved) saved = saver.poll();
        if (!saved) saved = saver.finish();
        EXPECT(saved->error.empty() && saved->step == step && !saver.pending(), "{}", saved->error);
        EXPECT(saved->held_s <= saved->seconds, "held {} of {} s", saved->held_s, saved->seconds);
        t.restore(c, directory, step);
      }
      c.barrier();
      EXPECT(io::read_file(directory + "/best.h5") == io::read_file(directory + "/0000000003.h5"),
             "best is not step 3");
      c.barrier();
      // Without memory for a copy, the save blocks all ranks. Nothing else changes.
      o.staging_mb = 0;
      checkpoint::Saver slow(c, directory, o);
      Owner owner(Cut::even, c.rank(), c.size(), 9, true);
      EXPECT(slow.stage(owner.state) == 0, "staged");
      slow.begin(owner.state);
      std::optional<checkpoint::Saved> saved = slow.poll();
      EXPECT(saved && saved->error.empty(), "one poll is enough when nothing is staged");
      t.restore(c, directory, 9);
    });
  }
}

void run_directory(CheckpointTest& t) {
  std::string path = t.root + "/a/b/run", file = t.root + "/a_file";
  t.on_first(t.world, [&] { io::write_file_atomically(file, ""); });
  t.refused(t.world, base::Exit::config, {"run.dir", file},
            [&] { job::RunDirectory directory(t.world, file + "/run"); });
  auto attempt_by_another_process = [&](bool expected) {
    t.world.barrier();
    if (t.world.rank() == 0) {
      pid_t child = ::fork();
      if (child == 0) {
        auto self = comm::make_plan_comm(1);
        try {
          job::RunDirectory directory(*self, path);
          ::_exit(0);  // dies while it holds the lock
        } catch (const base::Error& e) {
          bool named = std::string(e.what()).find(fmt::format(":{} since 20", ::getppid())) !=
                       std::string::npos;
          ::_exit(named && e.code() == base::Exit::config ? 1 : 2);
        }
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == (expected ? 0 : 1), "{}", status);
    }
    t.world.barrier();
  };
  {
    job::RunDirectory directory(t.world, path);
    EXPECT(io::is_directory(directory.checkpoints()) && io::is_directory(directory.logs()));
    attempt_by_another_process(false);
  }
  attempt_by_another_process(true);
  job::RunDirectory again(t.world, path);  // the dead process left no lock
}

int run(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  base::set_rank(world.rank(), world.size());
  std::string only = argc > 1 ? argv[1] : "";
  char pattern[] = "/tmp/checkpoint_test_XXXXXX";
  const char* given = std::getenv("TMPDIR");
  std::string root = given && *given ? std::string(given) + "/checkpoint_test_XXXXXX" : pattern;
  if (world.rank() == 0 && !::mkdtemp(root.data())) return 1;
  root = world.broadcast_text(root, 0);
  CheckpointTest test{session, world, root};
  const std::pair<const char*, void (*)(CheckpointTest&)> tests[] = {
      {"splits", every_split_to_every_split},
      {"damage", check_damage},
      {"which", which_file},
      {"structure", structure},
      {"retention", retention},
      {"failures", check_failing_calls},
      {"beside_training", beside_training},
      {"coverage", check_coverage},
      {"drivers", check_drivers},
      {"mpio_beside_training", check_mpio_beside_training},
      {"mpio_harm", check_mpio_harm},
      {"run_directory", run_directory}};
  for (const auto& [name, run] : tests) {
    if (!only.empty() && only != name) continue;
    try {
      run(test);
      world.barrier();
      if (world.rank() == 0) std::printf("ok %s\n", name);
    } catch (const std::exception& e) {
      throw std::runtime_error(fmt::format("{}: {}", name, e.what()));
    }
  }
  if (world.rank() == 0) {
    std::string command = "rm -rf '" + root + "'";
    if (std::system(command.c_str()) != 0) std::printf("%s stays\n", root.c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
