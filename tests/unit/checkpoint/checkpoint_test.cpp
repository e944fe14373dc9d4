// SPDX-License-Identifier: Apache-2.0
// Tests checkpoints without ranks; tests/mpi/checkpoint_test.cpp has the rest.
#include "checkpoint/checkpoint.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "checkpoint/checksum.hpp"
#include "checkpoint/header.hpp"
#include "comm/together.hpp"
#include "made_state.hpp"

namespace {

using tests::Cut;
using tests::Owner;

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "trainer_checkpoint_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    std::string command = "rm -rf '" + directory_ + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  checkpoint::Saved save(int64_t step) {
    Owner owner(Cut::small_pieces, 0, 1, step, true);
    return checkpoint::save(*comm_, directory_, owner.state, {});
  }
  std::string directory_;
  std::unique_ptr<comm::Comm> comm_ = comm::make_plan_comm(1);
};

TEST(Together, ranks_agree_on_errors) {
  auto comm = comm::make_plan_comm(1);
  EXPECT_EQ(comm::together(*comm, [] { return std::string("x"); }), std::vector<std::string>{"x"});
  auto code_of = [&](auto work) {
    try {
      comm::together(*comm, work);
    } catch (const base::Error& e) {
      return e.code();
    }
    return base::Exit::finished;
  };
  EXPECT_EQ(code_of([] { base::fail(base::Exit::data, "x"); }), base::Exit::data);
  EXPECT_EQ(code_of([] { throw io::Failure("x", ENOSPC); }), base::Exit::checkpoint);
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }), base::Exit::mesh);
  EXPECT_EQ(code_of([] {}), base::Exit::finished);
}

// The plan must know the size of a file without writing it: many tensors, few, small, deep, with
// much or no text.
TEST_F(Checkpoint, planned_bytes_are_exact) {
  for (int blocks : {1, 6, 40})
    for (int64_t width : {1, 48, 384}) {
      checkpoint::State state{
          .step = 3, .tensors = {}, .numbers = {{"train_s", 2}}, .texts = {{"name", "x"}}};
      if (blocks % 2) state.texts["deck"] = std::string(30000, 'd');
      for (int b = 0; b < blocks; ++b)
        for (const char* tree : {"/params/", "/optimizer/momentum/", "/optimizer/v_row/"})
          for (const char* leaf : {"LayerNorm_0/scale", "MlpBlock_0/Dense_0/kernel",
                                   "MultiHeadDotProductAttention_0/query/bias"})
            state.tensors.push_back(
                {fmt::format("{}encoder/Transformer/encoderblock_{}/{}", tree, b, leaf),
                 b % 2 ? device::DType::bf16 : device::DType::f32,
                 {width, width + b},
                 {},
                 true});
      std::vector<std::vector<char>> memory;
      for (auto& t : state.tensors) {
        int64_t n = t.shape[0] * t.shape[1];
        memory.emplace_back(size_t(n * device::size_of(t.type)), 'x');
        t.parts = {{0, n, memory.back().data()}};
      }
      checkpoint::Saved saved = checkpoint::save(*comm_, directory_, state, {});
      EXPECT_EQ(saved.bytes, checkpoint::planned_bytes(state)) << blocks << " " << width;
      struct stat s {};
      ASSERT_EQ(::stat((directory_ + "/" + saved.file).c_str(), &s), 0);
      EXPECT_EQ(s.st_size, saved.bytes);
      // All metadata are in one piece, so that one hash covers them.
      EXPECT_EQ(checkpoint::check_header(directory_ + "/" + saved.file).structure.size(), 1u);
    }
}

TEST_F(Checkpoint, is_an_ordinary_hdf5_file) {
  checkpoint::Saved saved = save(42);
  io::H5File file = io::H5File::open(directory_ + "/" + saved.file);
  EXPECT_EQ(std::get<int64_t>(*file.attribute("/", "step")), 42);
  EXPECT_EQ(std::get<int64_t>(*file.attribute("/", "write_completed")), 1);
  EXPECT_EQ(std::get<std::string>(*file.attribute("/", "name")), "test");
  EXPECT_EQ(std::get<std::string>(*file.attribute("/optimizer/momentum/encoder/kernel", "dtype")),
            "bf16");
  EXPECT_TRUE(file.read_text("/deck").starts_with("[run]"));
  std::vector<int64_t> values = file.read<int64_t>("/state/seen");
  for (size_t t = 0; t < tests::kTensors.size(); ++t) {
    if (tests::kTensors[t].name != std::string("/state/seen")) continue;
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(bytes[i], tests::byte_at(t, i, 42));
  }
  // The checksums follow checksum.hpp.
  std::vector<uint64_t> tensors = file.read<uint64_t>("/checksums/tensors"),
                        blocks = file.read<uint64_t>("/checksums/blocks");
  std::string whole = io::read_file(directory_ + "/" + saved.file);
  size_t tensor = 0, block = 0;
  for (const std::string& name : file.datasets()) {
    if (name.starts_with("/checksums/")) continue;
    io::H5Info info = file.info(name);
    std::vector<uint64_t> own;
    for (int64_t at = 0; at < info.bytes; at += checkpoint::kBlock)
      own.push_back(base::xxh3(whole.data() + info.offset + at,
                               size_t(std::min(checkpoint::kBlock, info.bytes - at))));
    for (uint64_t hash : own) EXPECT_EQ(hash, blocks.at(block++)) << name;
    EXPECT_EQ(checkpoint::hash_of(own), tensors.at(tensor++)) << name;
  }
  EXPECT_EQ(file.read<uint64_t>("/checksums/file"),
            std::vector<uint64_t>{checkpoint::hash_of(tensors)});
}

// A restore reads the index instead of HDF5's structure, so both must agree.
TEST_F(Checkpoint, index_and_structure_agree) {
  std::string path = directory_ + "/" + save(42).file;
  checkpoint::Manifest m = checkpoint::inspect(path, 42);
  io::H5File file = io::H5File::open(path);
  std::vector<std::string> names;
  for (const std::string& name : file.datasets())
    if (!name.starts_with("/checksums/")) names.push_back(name);
  ASSERT_EQ(names.size(), m.layout.entries.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const checkpoint::Entry& e = m.layout.entries[i];
    io::H5Info info = file.info(names[i]);
    EXPECT_EQ(e.name, names[i]);
    EXPECT_EQ(e.type, info.type) << e.name;
    EXPECT_EQ(e.shape, info.shape) << e.name;
    EXPECT_EQ(e.bytes, info.bytes) << e.name;
    EXPECT_EQ(e.offset, info.offset) << e.name;
  }
  EXPECT_EQ(m.layout.tensor_sums, file.info("/checksums/tensors").offset);
  EXPECT_EQ(m.layout.block_sums, file.info("/checksums/blocks").offset);
  EXPECT_EQ(m.layout.file_sum, file.info("/checksums/file").offset);
  EXPECT_EQ(m.layout.index, file.info("/checksums/index").offset);
  for (const auto& [name, value] : m.state.numbers)  // NaN too
    EXPECT_EQ(std::bit_cast<uint64_t>(std::get<double>(*file.attribute("/", name))),
              std::bit_cast<uint64_t>(value));
  for (const auto& [name, text] : m.state.texts) {
    if (name == "deck")
      EXPECT_EQ(file.read_text("/deck"), text);
    else
      EXPECT_EQ(std::get<std::string>(*file.attribute("/", name)), text);
  }
}

// The calls of one save that matter after a power cut, in their order: "CALL NAME", without the
// folder.
std::mutex recorded_mutex;
std::vector<std::string> recorded;
void record_call(int64_t, const char* call, const std::string& path) {
  std::lock_guard lock(recorded_mutex);
  const std::string_view word = call;
  if (word == "write" || word == "fsync" || word == "rename")
    recorded.push_back(fmt::format("{} {}", word, path.substr(path.rfind('/') + 1)));
}

// All data is on disk before a file gets its name, and the name is on disk when the save ends.
// Files of abandoned steps are moved aside first.
TEST_F(Checkpoint, a_name_is_given_to_what_is_on_disk) {
  save(10);
  save(20);
  checkpoint::CheckpointOptions options;
  options.async = false;
  checkpoint::Saver saver(*comm_, directory_, options);
  saver.continue_from(10);
  Owner owner(Cut::even, 0, 1, 15, true);
  recorded.clear();
  io::set_call_hook(record_call);
  saver.begin(owner.state, 15);
  checkpoint::Saved saved = saver.finish();
  io::set_call_hook(nullptr);
  EXPECT_EQ(saved.error, "");
  auto first = [&](const std::string& call, size_t from = 0) {
    return size_t(std::find(recorded.begin() + long(from), recorded.end(), call) -
                  recorded.begin());
  };
  auto last = [&](const std::string& call) {
    return size_t(recorded.rend() - std::find(recorded.rbegin(), recorded.rend(), call)) - 1;
  };
  SCOPED_TRACE(fmt::format("{}", fmt::join(recorded, "\n")));
  const std::string folder = directory_.substr(directory_.rfind('/') + 1), file = "0000000015.h5";
  const size_t named = first("rename " + file), aside = first("rename 0000000020.h5");
  ASSERT_LT(named, recorded.size());
  ASSERT_LT(aside, recorded.size());
  EXPECT_EQ(last("rename " + file), named);
  // Each rank syncs its parts before the ranks agree on them. Header and checksums are synced
  // before the rename.
  EXPECT_LT(last("write " + file + ".tmp"), last("fsync " + file + ".tmp"));
  EXPECT_GE(std::count(recorded.begin(), recorded.end(), "fsync " + file + ".tmp"), 2);
  EXPECT_LT(last("fsync " + file + ".tmp"), named);
  // The abandoned files move first, durably in both folders.
  EXPECT_LT(aside, first("fsync abandoned", aside));
  EXPECT_LT(first("fsync abandoned", aside), named);
  EXPECT_LT(first("fsync " + folder, aside), named);
  // Then the file gets its names, each durable before the save counts as done.
  const size_t best = first("rename best.h5");
  EXPECT_LT(named, first("fsync " + folder, named));
  EXPECT_LT(first("fsync " + folder, named), best);
  EXPECT_LT(first("fsync " + folder, best), recorded.size());
}

// The next save makes a removed folder again. Until then messages do not name files that are gone.
TEST_F(Checkpoint, a_removed_folder_is_made_again) {
  save(10);
  auto remove = [&] { ASSERT_EQ(std::system(("rm -rf '" + directory_ + "'").c_str()), 0); };
  remove();
  EXPECT_EQ(save(20).error, "");
  EXPECT_EQ(io::list_directory(directory_),
            (std::vector<std::string>{"0000000020.h5", "latest.h5"}));
  remove();
  io::write_file_atomically(directory_, "a file in its place");
  try {
    save(30);
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("File exists. Older checkpoints"), std::string::npos)
        << e.what();
    EXPECT_EQ(std::string(e.what()).find("intact"), std::string::npos) << e.what();
  }
  io::remove_file(directory_);
  static std::string doomed;
  doomed = directory_;
  // The folder is removed while the file is written, or just before the file gets its name.
  for (const char* call : {"write", "rename"}) {
    save(40);
    static std::string at;
    at = call;
    io::set_call_hook([](int64_t, const char* name, const std::string& path) {
      if (at != name || !path.starts_with(doomed)) return;
      io::set_call_hook(nullptr);
      EXPECT_EQ(std::system(("rm -rf '" + doomed + "'").c_str()), 0);
    });
    try {
      save(50);
      ADD_FAILURE() << "saved to a folder that does not exist";
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find(
                    "No such file or directory. There is no older checkpoint in " + directory_),
                std::string::npos)
          << e.what();
    }
    io::set_call_hook(nullptr);
    EXPECT_EQ(save(50).error, "");
  }
}

// Saves of a run reuse the file layout of the previous save, unless the state needs another one.
TEST_F(Checkpoint, places_of_the_last_save_serve_only_such_a_state) {
  checkpoint::CheckpointOptions options;
  options.async = false;
  options.keep_last = 10;
  checkpoint::Saver saver(*comm_, directory_, options);
  Owner owner(Cut::even, 0, 1, 0, true);
  auto bytes_of = [&](int64_t step, std::map<std::string, std::string> texts) {
    checkpoint::State state = owner.state;
    // as text, these numbers have other lengths
    state.step = step * 1000;
    state.numbers["value"] = 1.0 / double(step * step - 1);
    for (auto& [name, text] : texts) state.texts[name] = text;
    saver.begin(state);
    checkpoint::Saved saved = saver.finish();
    EXPECT_EQ(saved.error, "");
    std::string bytes = io::read_file(directory_ + "/" + saved.file);
    checkpoint::save(*comm_, directory_ + "/alone", state, options);
    EXPECT_EQ(bytes, io::read_file(directory_ + "/alone/" + saved.file)) << step;
    return bytes;
  };
  io::make_directories(directory_ + "/alone");
  bytes_of(1, {{"name", "a"}});
  bytes_of(2, {{"name", "b"}});
  bytes_of(3, {{"name", "longer than it was"}});
  bytes_of(4, {{"name", "longer than it was"}, {"more", "x"}});
  bytes_of(5, {{"name", "longer than it was"}, {"more", "y"}});
}

// Flips single bytes, a sample over the whole file. A flipped byte is refused by name or changes
// nothing.
TEST_F(Checkpoint, flipped_bytes_never_pass) {
  std::string name = directory_ + "/" + save(9).file, good = io::read_file(name);
  checkpoint::Manifest m = checkpoint::inspect(name, 9);
  std::vector<size_t> places;
  for (size_t at = 0; at < size_t(m.layout.data_begin); at += 29) places.push_back(at);
  for (size_t at = size_t(m.layout.data_begin); at < good.size(); at += 99991) places.push_back(at);
  for (auto [begin, end] : m.layout.gaps()) places.push_back(size_t(begin));
  int refused = 0, unused = 0;
  for (size_t at : places) {
    char flipped = char(good[at] ^ 0x40);
    {
      io::File file(name, io::File::Mode::write);
      file.write_at(&flipped, 1, int64_t(at));
    }
    Owner owner(Cut::even, 0, 1, 0, false);
    try {
      checkpoint::Manifest found = checkpoint::inspect(name, 9);
      checkpoint::read_parts(name, found, owner.state.tensors);
      owner.state.step = found.state.step;
      owner.state.numbers = found.state.numbers;
      owner.state.texts = found.state.texts;
      EXPECT_EQ(owner.problem(9), "") << at;
      ++unused;
    } catch (const base::Error& e) {
      EXPECT_TRUE(e.code() == base::Exit::checkpoint) << e.what();
      ++refused;
    }
    io::File file(name, io::File::Mode::write);
    file.write_at(&good[at], 1, int64_t(at));
  }
  EXPECT_EQ(io::read_file(name), good);
  EXPECT_GT(refused, 300);
  EXPECT_GT(unused, 10);  // padding and the rest of the header's page
}

// A save that is killed at any of its file-system calls is complete or leaves the previous
// checkpoint.
int64_t g_kill_at = 0;
TEST_F(Checkpoint, killed_at_every_call) {
  save(1);
  int64_t killed = 0;
  for (g_kill_at = 0;; ++g_kill_at) {
    pid_t child = ::fork();
    if (child == 0) {
      io::set_call_hook([](int64_t, const char*, const std::string&) {
        if (g_kill_at-- == 0) ::kill(::getpid(), SIGKILL);
      });
      save(2);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    bool complete = io::exists(directory_ + "/0000000002.h5");
    Owner owner(Cut::even, 0, 1, 0, false);
    auto restored = checkpoint::restore(*comm_, directory_, owner.state, {});
    ASSERT_TRUE(restored) << g_kill_at;
    EXPECT_TRUE(restored->refused.empty()) << g_kill_at;
    EXPECT_EQ(owner.problem(complete ? 2 : 1), "") << g_kill_at;
    // and no temporary file is left
    std::vector<std::string> names = io::list_directory(directory_);
    EXPECT_EQ(std::erase(names, "latest.h5"), 1u);
    EXPECT_EQ(names.size(), complete ? 2u : 1u);
    if (!WIFSIGNALED(status)) {
      EXPECT_TRUE(complete && WEXITSTATUS(status) == 0);
      break;
    }
    ++killed;
    io::remove_file(directory_ + "/0000000002.h5");
  }
  EXPECT_GT(killed, 30);
}

// The link leads to the newest save, also after a return to an earlier step. It is replaced even if
// something else has its name, and no restore follows it.
TEST_F(Checkpoint, a_link_leads_to_the_newest_file) {
  const std::string link = directory_ + "/latest.h5";
  for (int64_t step : {10, 20, 15}) {
    save(step);
    EXPECT_EQ(std::filesystem::read_symlink(link), fmt::format("{:010}.h5", step));
    EXPECT_EQ(io::read_file(link), io::read_file(fmt::format("{}/{:010}.h5", directory_, step)));
    io::remove_file(link);
    io::write_file_atomically(link, "a file in its place");
  }
  Owner owner(Cut::even, 0, 1, 0, false);
  io::replace_symlink("0000000010.h5", link);
  const auto restored = checkpoint::restore(*comm_, directory_, owner.state, {});
  ASSERT_TRUE(restored);
  EXPECT_NE(restored->step, 10);
}

// Before a file's tensors are read, before_tensors() can see the file's step.
TEST_F(Checkpoint, the_step_is_known_before_the_tensors) {
  save(1);
  save(2);
  const std::string newest = directory_ + "/0000000002.h5";
  const checkpoint::Manifest manifest = checkpoint::inspect(newest, 2);
  const std::vector<checkpoint::Entry>& entries = manifest.layout.entries;
  const int64_t at =
      std::ranges::max_element(entries, {}, [](const auto& e) { return e.bytes; })->offset;
  const char flipped = char(io::read_file(newest)[size_t(at)] ^ 0x40);
  io::File(newest, io::File::Mode::write).write_at(&flipped, 1, at);
  Owner owner(Cut::even, 0, 1, 0, false);
  std::vector<int64_t> steps;
  owner.state.before_tensors = [&] {
    steps.push_back(owner.state.step);
    EXPECT_NE(owner.problem(owner.state.step), "");
  };
  ASSERT_TRUE(checkpoint::restore(*comm_, directory_, owner.state, {}));
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(owner.problem(1), "");
}

TEST_F(Checkpoint, files_are_found_by_their_exact_names) {
  for (const char* name : {"0000000007.h5", "0000000100.h5", "12345678901.h5", "7.h5",
                           "0000000008.h5.tmp", "000000000x.h5", "-000000001.h5"})
    io::write_file_atomically(directory_ + "/" + name, "");
  std::vector<int64_t> steps;
  for (const auto& c : checkpoint::candidates(directory_)) steps.push_back(c.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{12345678901, 100, 7}));
  EXPECT_EQ(checkpoint::remove_leftovers(directory_),
            std::vector<std::string>{"0000000008.h5.tmp"});
}

TEST_F(Checkpoint, differences_are_counted_beyond_the_first) {
  checkpoint::FileLayout file, wanted;
  for (int i = 0; i < 80; ++i)
    wanted.entries.push_back(
        {.name = fmt::format("/params/{:03}", i), .type = io::H5Type::f32, .shape = {i}});
  checkpoint::number_blocks(file);
  checkpoint::number_blocks(wanted);
  std::vector<std::string> lines = checkpoint::differences(file, wanted);
  EXPECT_EQ(lines.size(), 51u);
  EXPECT_EQ(lines.front(), "missing in the file: /params/000 f32[0]");
  EXPECT_EQ(lines.back(), "and 30 more");
}

TEST_F(Checkpoint, a_full_file_system_is_noticed_before_writing) {
  // No disk holds this tensor. The check comes before any memory is touched.
  checkpoint::State state{.step = 1, .tensors = {}, .numbers = {}, .texts = {}};
  int64_t huge = int64_t{1} << 50;
  state.tensors.push_back({"/params/huge", device::DType::f32, {huge}, {{0, huge, nullptr}}, true});
  try {
    checkpoint::save(*comm_, directory_, state, {});
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::checkpoint);
    EXPECT_NE(std::string(e.what()).find("MiB are free"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(io::list_directory(directory_).empty());
}

// Bytes are read back while others are written. A write that fails ends the reading, too.
TEST_F(Checkpoint, a_failed_write_ends_the_reading_back) {
  save(10);
  io::set_call_hook([](int64_t, const char* call, const std::string& path) {
    if (call == std::string_view("write") && path.ends_with("20.h5.tmp"))
      throw io::Failure(path + ": cannot write: planted", ENOSPC);
  });
  try {
    save(20);
    ADD_FAILURE() << "saved without a write";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("planted. Older checkpoints are intact"),
              std::string::npos)
        << e.what();
  }
  io::set_call_hook(nullptr);
  EXPECT_EQ(save(20).error, "");
}

TEST_F(Checkpoint, bytes_that_changed_on_their_way_are_found) {
  save(10);
  static std::atomic<bool> changed;
  changed = false;
  io::set_call_hook([](int64_t, const char* call, const std::string& path) {
    if (call != std::string_view("read") || !path.ends_with("20.h5.tmp") || changed.exchange(true))
      return;
    const std::string other(16 << 10, 'x');
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file.write(other.data(), std::streamsize(other.size()));
  });
  try {
    save(20);
    ADD_FAILURE() << "the save accepted bytes that it had not written";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("reads back differently"), std::string::npos) << e.what();
  }
  io::set_call_hook(nullptr);
  EXPECT_TRUE(changed);
  EXPECT_EQ(io::list_directory(directory_),
            (std::vector<std::string>{"0000000010.h5", "latest.h5"}));
}

}  // namespace
