// SPDX-License-Identifier: Apache-2.0
// Checkpoints over ranks: mpirun -np 1..4 checkpoint_test. Every group size up to the number of
// ranks saves, every group size reads, with several ways of cutting tensors among the ranks; files
// are damaged, cut, left half done. Ends with 0 or a message.
#include "checkpoint/checkpoint.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../unit/checkpoint/made_state.hpp"
#include "job/run_dir.hpp"
#include "ranks.hpp"
#include "records/metrics.hpp"

namespace {

using checkpoint::State;
using shard::TensorSlice;

#define EXPECT(condition, ...)                                                               \
  do {                                                                                       \
    if (!(condition))                                                                        \
      throw std::runtime_error(                                                              \
          fmt::format("line {}: {} {}", __LINE__, #condition, fmt::format("" __VA_ARGS__))); \
  } while (0)

using namespace tests;

checkpoint::CheckpointOptions options(const std::string& resume = "auto", int64_t keep_last = 100) {
  checkpoint::CheckpointOptions o;
  o.resume = resume;
  o.keep_last = keep_last;
  return o;
}

struct Test {
  comm::Session& session;
  comm::Comm& world;
  std::string root;

  std::string fresh(const char* name) {
    std::string directory = root + "/" + name;
    if (world.rank() == 0) io::make_directories(directory);
    world.barrier();
    return directory;
  }
  // Runs work on the first `ranks` ranks with their own communicator.
  void with(int ranks, const std::function<void(comm::Comm&)>& work) {
    bool inside = world.rank() < ranks;
    auto group = session.split(inside ? 0 : 1, world.rank(), comm::SumOrder::library);
    std::string problem;
    try {
      if (inside) work(*group);
    } catch (const std::exception& e) {
      problem = e.what();
    }
    group.reset();
    auto problems = world.gather_text(problem);
    for (size_t r = 0; r < problems.size(); ++r)
      if (!problems[r].empty())
        throw std::runtime_error(
            fmt::format("{} of {} ranks, rank {}: {}", ranks, world.size(), r, problems[r]));
  }
  void save(comm::Comm& c, const std::string& directory, int64_t step, Cut how = Cut::even,
            int64_t keep_last = 100) {
    Owner owner(how, c.rank(), c.size(), step, true);
    if (c.rank() != 0) {
      owner.state.numbers["train_s"] = -1;
      owner.state.texts["name"] = "another rank's";
    }
    checkpoint::save(c, directory, owner.state, options("auto", keep_last));
  }
  std::optional<checkpoint::Restored> restore(comm::Comm& c, const std::string& directory,
                                              int64_t expected, Cut how = Cut::even,
                                              const std::string& resume = "auto") {
    Owner owner(how, c.rank(), c.size(), 0, false);
    auto restored = checkpoint::restore(c, directory, owner.state, options(resume));
    EXPECT(bool(restored) == (expected >= 0));
    if (restored) EXPECT(owner.problem(expected).empty(), "{}", owner.problem(expected));
    return restored;
  }
  // Every rank gets an error of this exit code whose text has all the words.
  template <class Work>
  void refused(comm::Comm& c, base::Exit code, const std::vector<std::string>& words, Work work) {
    std::string text;
    try {
      work();
    } catch (const base::Error& e) {
      text = e.what();
      EXPECT(e.code() == code, "exit {}: {}", int(e.code()), text);
    }
    EXPECT(!text.empty(), "no error");
    for (const std::string& word : words)
      EXPECT(text.find(word) != text.npos, "'{}' is not in '{}'", word, text);
    for (const std::string& other : c.gather_text(text))  // failed checks name the rank
      EXPECT(other == text || code == base::Exit::internal, "ranks disagree: {} / {}", other, text);
  }
  void on_first(comm::Comm& c, const std::function<void()>& work) {
    if (c.rank() == 0) work();
    c.barrier();
  }
};

// ---------------------------------------------------------------- what is tested

void every_split_to_every_split(Test& t) {
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

// One byte changed, or the file cut, at places that must all be noticed by name; then the file
// before is used.
void damage(Test& t) {
  std::string directory = t.fresh("damage");
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
    // Nothing valid at all: an error, never a fresh start, and nothing is touched.
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

void which_file(Test& t) {
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
    t.save(c, directory, 250);  // the run went back to 200: 300 is of a past that did not happen
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

void structure(Test& t) {
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

void retention(Test& t) {
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
    // A damaged newer one neither counts nor goes.
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

// A rank that fails at any of its file-system calls: every rank says so, the older file stays,
// nothing hangs, the next save works.
std::atomic<int64_t> fail_at{-1};  // counted by the thread that saves
void failing_call(int64_t, const char* call, const std::string& path) {
  if (fail_at >= 0 && fail_at-- == 0)
    throw io::Failure(fmt::format("{}: cannot {}: injected", path, call), ENOSPC);
}
void failures(Test& t) {
  std::string directory = t.fresh("failures");
  t.with(t.world.size(), [&](comm::Comm& c) {
    t.save(c, directory, 1);
    io::set_call_hook(failing_call);
    for (int victim = 0; victim < c.size(); ++victim) {
      int64_t failed = 0;
      for (int64_t call = 0;; ++call) {
        Owner owner(Cut::uneven, c.rank(), c.size(), 2, true);
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

// Training goes on, and changes everything, while the file is written.
void beside_training(Test& t) {
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
        int64_t polls = 0;
        if (step % 2)
          while (!(saved = saver.poll())) ++polls;
        else
          saved = saver.finish();
        EXPECT(saved->error.empty() && saved->step == step && !saver.pending(), "{}", saved->error);
        EXPECT(saved->held_s <= saved->seconds, "held {} of {} s", saved->held_s, saved->seconds);
        t.restore(c, directory, step);
      }
      c.barrier();
      EXPECT(io::read_file(directory + "/best.h5") == io::read_file(directory + "/0000000003.h5"),
             "best is not step 3");
      c.barrier();
      // Too small a copy: the save holds everybody, and nothing else changes.
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

void coverage(Test& t) {
  std::string directory = t.fresh("coverage");
  t.with(t.world.size(), [&](comm::Comm& c) {
    auto broken = [&](const std::vector<std::string>& words,
                      const std::function<void(State&)>& change) {
      t.refused(c, base::Exit::internal, words, [&] {
        Owner owner(Cut::even, c.rank(), c.size(), 3, true);
        change(owner.state);
        checkpoint::save(c, directory, owner.state, options());
      });
    };
    broken({"/params/encoder/bias", "no rank writes its bytes [0, 4012)"},
           [](State& s) { s.tensors[1].writes = false; });
    broken({"/params/encoder/kernel", "no rank writes"}, [&](State& s) {
      if (c.rank() == c.size() - 1) s.tensors[0].parts[0].end -= 1;
    });
    if (c.size() > 1) {
      broken({"/params/one_block", "the ranges before end at"}, [&](State& s) {
        if (c.rank() == 1) s.tensors[2].parts[0].begin -= 1;
      });
      broken({"different lists of tensors"}, [&](State& s) {
        if (c.rank() == 1) s.tensors.pop_back();
      });
    }
    EXPECT(io::list_directory(directory).empty());
  });
}

// ---------------------------------------------------------------- what a run keeps beside its
// checkpoints

// A killed writer, a torn line, a run that goes back: curves stay single-valued, nothing is lost,
// both files agree.
void metrics(Test& t) {
  std::string directory = t.fresh("metrics");
  if (t.world.rank() != 0) {
    records::Metrics silent(directory, 0, 1, false, {});
    silent.train_row(1, {{"loss", 1}});
    silent.flush();
    return;
  }
  std::string jsonl = directory + "/metrics.jsonl",
              abandoned = directory + "/metrics.abandoned.jsonl";
  auto column = [&](const char* name) {
    io::H5File file = io::H5File::open(directory + "/metrics.h5");
    return file.read<double>(name);
  };
  auto lines = [](const std::string& path) {
    std::string text = io::exists(path) ? io::read_file(path) : "";
    return std::count(text.begin(), text.end(), '\n');
  };
  // The first attempt is killed in the middle: what it wrote is there, because every row goes to
  // the system at once.
  pid_t child = ::fork();
  if (child == 0) {
    records::Metrics m(directory, 0, 1, true, {}, false,
                       {{"/eval/val", {{"perplexity", "nats/caption", "made up"}}}});
    m.eval_row("val", 0, {{"perplexity", 9}});
    for (int64_t step = 1; step <= 10; ++step)
      m.train_row(step, {{"loss", 1.0 / double(step)},
                         {"l2_grads[a/.*]", double(step)},
                         {"mfu", step == 3 ? std::nan("") : 0.5}});
    m.eval_row("val", 10, {{"perplexity", 5}});
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  EXPECT(::waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  // and tore its last line
  io::File(jsonl, io::File::Mode::append).append("{\"kind\":\"train\",\"step\":11,\"lo");
  EXPECT(lines(jsonl) == 13);
  {
    records::Metrics m(
        directory, 6, 1, true, {}, false,
        {{records::kTrainRows, {{"loss", "nats/token", "as a model declares it"}}},
         {"/eval/val", {{"perplexity", "nats/caption", "as an evaluator declares it"}}}});
    EXPECT(m.attempt() == 2 && !m.has_eval("val", 10) && m.has_eval("val", 0));
    // readable while the run goes on
    EXPECT(column("/train/step") == (std::vector<double>{1, 2, 3, 4, 5, 6}));
    EXPECT(column("/train/loss")[4] == 1.0 / 5 && std::isnan(column("/train/mfu")[2]) &&
           column("/train/l2_grads[a~.*]")[5] == 6);
    EXPECT(lines(abandoned) == 6);  // steps 7..10, the evaluation at 10, and the torn line
    EXPECT(io::read_file(abandoned).find("\"attempt\":1") != std::string::npos);
    m.train_row(7, {{"loss", 70}});
    m.eval_row("val", 7, {{"perplexity", 4}});
    m.eval_row("val", 7, {{"perplexity", 3}});  // measured again: the last one holds
    EXPECT(m.has_eval("val", 7));
  }
  EXPECT(column("/train/loss") ==
         (std::vector<double>{1, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 70}));
  EXPECT(column("/eval/val/perplexity") == (std::vector<double>{9, 3}) &&
         column("/start/attempt") == (std::vector<double>{1, 2}));
  {
    io::H5File file = io::H5File::open(directory + "/metrics.h5");
    EXPECT(std::get<std::string>(*file.attribute("/train/loss", "unit")) == "nats/token");
    EXPECT(std::get<std::string>(*file.attribute("/eval/val/perplexity", "unit")) ==
           "nats/caption");
    EXPECT(std::get<std::string>(*file.attribute("/train/l2_grads[a~.*]", "name")) ==
           "l2_grads[a/.*]");
  }
  // A crash between the two files' writing: the same rows come again and are not counted twice.
  std::string before = io::read_file(jsonl), before_h5 = io::read_file(directory + "/metrics.h5");
  { records::Metrics m(directory, 2, 1, true, {}); }
  auto rows = lines(abandoned);
  io::write_file_atomically(jsonl, before);
  io::write_file_atomically(directory + "/metrics.h5", before_h5);
  { records::Metrics m(directory, 2, 1, true, {}); }
  EXPECT(lines(abandoned) == rows && column("/train/step") == (std::vector<double>{1, 2}));
  // From the beginning: everything is abandoned. A row that no table knows is a mistake of ours.
  {
    records::Metrics m(directory, 0, 1, true, {});
    EXPECT(m.attempt() == 4);
    t.refused(*comm::make_plan_comm(1), base::Exit::internal,
              {"neither a measure of the model nor in train_metrics"}, [&] {
                m.train_row(1, {{"los", 1}});
              });
    t.refused(*comm::make_plan_comm(1), base::Exit::internal,
              {"perplexity is neither the evaluator's nor in eval_metrics"}, [&] {
                m.eval_row("val", 1, {{"perplexity", 1}});
              });
  }
  io::H5File file = io::H5File::open(directory + "/metrics.h5");
  EXPECT(!file.exists("/train") && !file.exists("/eval") && file.exists("/start"));
}

void run_directory(Test& t) {
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
          ::_exit(0);  // dies with the lock
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
  job::RunDirectory again(t.world, path);  // the dead one left no lock
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
  Test test{session, world, root};
  const std::pair<const char*, void (*)(Test&)> tests[] = {{"splits", every_split_to_every_split},
                                                           {"damage", damage},
                                                           {"which", which_file},
                                                           {"structure", structure},
                                                           {"retention", retention},
                                                           {"failures", failures},
                                                           {"beside_training", beside_training},
                                                           {"coverage", coverage},
                                                           {"metrics", metrics},
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
