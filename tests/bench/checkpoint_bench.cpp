// SPDX-License-Identifier: Apache-2.0
// Measures the cost of saves:
//   mpirun -np N build/tests/checkpoint_bench DECK FOLDER [ROUNDS [files]]
//   1. write and read: checkpoint::save and restore of the deck's whole state by each driver, in
//     turn with plain MPI-IO of as many bytes. All call fsync, and files leave the page cache
//     before they are read. HDF5's MPI-IO driver is left out if HDF5 is serial.
//   2. held: time that a save beside training steps holds the main thread, from entry to return
//     with the commit included, against a memcpy of the copied bytes.
// With "files" only part 1 runs, and no JSON is printed. Otherwise the last line is JSON. A ratio
// above 1 means that the checkpoint is faster, or holds the thread for less than allowed.
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/clock.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/stream/host_batch.hpp"
#include "host/threads.hpp"
#include "io/files.hpp"
#include "io/version.hpp"
#include "ranks.hpp"
#include "train/console.hpp"
#include "train/input.hpp"
#include "train/run_state.hpp"

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void check_mpi(int result, const char* what) { CHECK(result == MPI_SUCCESS, "{} failed", what); }

void evict(comm::Comm& world, const std::string& path) {
  world.barrier();
  if (world.rank() == 0) {
    io::File file(path, io::File::Mode::read);
    ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  }
  world.barrier();
}

// Calls each(offset in the file, begin in the rank's share, bytes) for pieces that an int can
// count.
template <class Each>
void in_pieces(comm::Comm& world, size_t share, Each each) {
  constexpr size_t kPiece = size_t{1} << 30;
  for (size_t begin = 0; begin < share; begin += kPiece)
    each(MPI_Offset(world.rank()) * MPI_Offset(share) + MPI_Offset(begin), begin,
         int(std::min(kPiece, share - begin)));
}

// Writes the rank's share of a file by MPI-IO. Returns the seconds of the slowest rank.
double plain_write(comm::Comm& world, const std::string& path, const std::vector<char>& mine) {
  world.barrier();
  base::Stopwatch watch;
  MPI_File file;
  check_mpi(MPI_File_open(MPI_COMM_WORLD, path.c_str(), MPI_MODE_CREATE | MPI_MODE_WRONLY,
                          MPI_INFO_NULL, &file),
            "open");
  in_pieces(world, mine.size(), [&](MPI_Offset at, size_t begin, int bytes) {
    check_mpi(
        MPI_File_write_at_all(file, at, mine.data() + begin, bytes, MPI_BYTE, MPI_STATUS_IGNORE),
        "write");
  });
  check_mpi(MPI_File_sync(file), "sync");
  check_mpi(MPI_File_close(&file), "close");
  return world.max(watch.seconds());
}
double plain_read(comm::Comm& world, const std::string& path, std::vector<char>& mine) {
  world.barrier();
  base::Stopwatch watch;
  MPI_File file;
  check_mpi(MPI_File_open(MPI_COMM_WORLD, path.c_str(), MPI_MODE_RDONLY, MPI_INFO_NULL, &file),
            "open");
  in_pieces(world, mine.size(), [&](MPI_Offset at, size_t begin, int bytes) {
    check_mpi(
        MPI_File_read_at_all(file, at, mine.data() + begin, bytes, MPI_BYTE, MPI_STATUS_IGNORE),
        "read");
  });
  check_mpi(MPI_File_close(&file), "close");
  return world.max(watch.seconds());
}

// The training job that is saved, without the files of a run.
class Training {
 public:
  Training(comm::Session& session, const train::Recipe& recipe, const config::Deck& deck,
           comm::Mesh& mesh, data::Mixture& input)
      : world_(session.world()),
        engine_(recipe.engine(input.size(),
                              host::choose_threads(recipe.run.threads, session.local_size())),
                mesh, device::Kind::cpu),
        run_state_(recipe, deck) {
    engine_.initialise();
    engine_.publish();
    loader_.emplace(input, recipe.data.loader,
                    train::training_plan(engine_.geometry(), mesh, 0, 1000));
  }
  // Runs a step. Returns the seconds of the slowest rank.
  double run_step() {
    world_.barrier();
    base::Stopwatch watch;
    engine_.step(++step_, [&](int64_t) { return data::host_batch(loader_->next()); });
    return world_.max(watch.seconds());
  }
  checkpoint::State state() {
    run_state_.step = step_;
    return run_state_.to_checkpoint(engine_.state());
  }
  std::vector<shard::TensorSlice> tensors() { return engine_.state(); }

 private:
  comm::Comm& world_;
  step::Engine engine_;
  std::optional<data::Loader> loader_;
  train::RunState run_state_;
  int64_t step_ = 0;
};

// Part 1: seconds to write and to read the state, by checkpoints and by plain MPI-IO.
struct Way {
  const char* name;
  checkpoint::IoLimits io;
  std::vector<double> write, read;
};
struct FileTimes {
  int64_t bytes = 0;
  std::vector<Way> ways;
  Way plain{"plain MPI-IO", {}, {}, {}};
};

std::vector<Way> all_ways() {
  std::vector<Way> ways{{"direct", {}, {}, {}}};
  if (!io::hdf5_is_parallel()) return ways;
  checkpoint::IoLimits mpio;
  mpio.mpio = true;
  ways.push_back({"mpio, collective", mpio, {}, {}});
  mpio.collective = false;
  ways.push_back({"mpio, independent", mpio, {}, {}});
  return ways;
}

FileTimes time_files(comm::Comm& world, const std::string& folder, Training& training,
                     checkpoint::CheckpointOptions options, int rounds) {
  // Saves only when asked, as in a run, which plans its file at its start.
  checkpoint::CheckpointOptions at_once = options;
  at_once.async = false;
  checkpoint::Saver blocking(world, folder, at_once);
  FileTimes times;
  times.ways = all_ways();
  times.bytes = blocking.plan(training.state());
  std::vector<char> mine(size_t(times.bytes / world.size()));
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = char(i * 2654435761u >> 13);
  const std::string plain = folder + "/plain.bin";
  auto remove = [&](const std::string& path) {
    world.barrier();
    if (world.rank() == 0) io::remove_file(path);
    world.barrier();
  };
  // On a virtual machine, writing to memory that was idle for a while costs ten times as much. This
  // warm-up uses the pages of the page cache just before both sides write. The choice of pages is
  // still chance, so the best rounds are reported as well.
  auto warm = [&] {
    world.barrier();
    io::File file(plain + ".warm", io::File::Mode::create);
    file.write_at(mine.data(), int64_t(mine.size()), int64_t(world.rank()) * int64_t(mine.size()));
    file.close();
    remove(plain + ".warm");
  };
  auto by_mpi_io = [&] {
    warm();
    times.plain.write.push_back(plain_write(world, plain, mine));
    evict(world, plain);
    times.plain.read.push_back(plain_read(world, plain, mine));
    remove(plain);
  };
  auto by_us = [&](Way& way) {
    warm();
    world.barrier();
    base::Stopwatch watch;
    checkpoint::State from = training.state();
    from.io = way.io;
    blocking.begin(from);
    checkpoint::Saved saved = blocking.finish();
    CHECK(saved.error.empty(), "{}", saved.error);
    way.write.push_back(world.max(watch.seconds()));
    const std::string file = folder + "/" + saved.file;
    evict(world, file);
    checkpoint::State into = training.state();
    into.io = way.io;
    watch.restart();
    options.resume = "must";
    checkpoint::restore(world, folder, into, options);
    way.read.push_back(world.max(watch.seconds()));
    remove(file);
  };
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) by_mpi_io();
    for (size_t i = 0; i < times.ways.size(); ++i)
      by_us(times.ways[round % 2 ? times.ways.size() - 1 - i : i]);
    if (round % 2) by_mpi_io();
  }
  return times;
}

double best(const std::vector<double>& s) { return *std::min_element(s.begin(), s.end()); }

void print(const FileTimes& t) {
  auto rates = [&](const std::vector<double>& s) {
    return fmt::format("{:.0f} ({:.0f})", double(t.bytes) / best(s) / 1e6,
                       double(t.bytes) / median(s) / 1e6);
  };
  auto ratio = [](const std::vector<double>& ours, const std::vector<double>& plain) {
    return fmt::format("{:.2f} ({:.2f})", best(plain) / best(ours), median(plain) / median(ours));
  };
  fmt::print("{:.0f} MiB; MB/s and times as fast as plain MPI-IO: best (median) of {}\n",
             double(t.bytes) / 0x1p20, t.plain.write.size());
  fmt::print("{:<20}{:>28}{:>30}\n", "", "write, durable, read back", "read, proved by checksums");
  std::vector<Way> rows = t.ways;
  rows.push_back(t.plain);
  for (const Way& way : rows)
    fmt::print("{:<20}{:>14}{:>14}{:>16}{:>14}\n", way.name, rates(way.write),
               ratio(way.write, t.plain.write), rates(way.read), ratio(way.read, t.plain.read));
}

// Part 2: seconds that the main thread is held by a save beside training, of a copy of the same
// bytes, and of steps without and with a save.
struct HeldTimes {
  int64_t staged = 0;  // bytes
  std::vector<double> held, copies, quiet, busy;
};

HeldTimes time_held(comm::Comm& world, const std::string& folder, Training& training,
                    const checkpoint::CheckpointOptions& options) {
  checkpoint::Saver saver(world, folder, options);
  HeldTimes times;
  times.staged = saver.stage(training.state());
  std::vector<char> copy(static_cast<size_t>(times.staged), 1);
  for (int round = 0; round < 3; ++round) {
    times.quiet.push_back(training.run_step());
    base::Stopwatch watch;
    size_t at = 0;
    for (const auto& tensor : training.tensors())
      if (tensor.writes)
        for (const auto& part : tensor.parts) {
          size_t n = size_t((part.end - part.begin) * device::size_of(tensor.type));
          std::memcpy(copy.data() + at, part.data, n);
          at += n;
        }
    times.copies.push_back(world.max(watch.seconds()));
    checkpoint::State now = training.state();
    saver.begin(now);
    std::optional<checkpoint::Saved> saved;
    for (;;) {
      double s = training.run_step();
      if ((saved = saver.poll())) break;
      times.busy.push_back(s);
    }
    CHECK(saved->error.empty(), "{}", saved->error);
    times.held.push_back(world.max(saved->held_s));
  }
  return times;
}

void print(const FileTimes& files, const HeldTimes& t, int ranks) {
  const double allowed = 1.2 * median(t.copies) + 0.060;
  const Way& direct = files.ways.front();
  std::printf(
      "held %.3f s; a memcpy of the %.0f MiB takes %.3f s, so %.3f s are allowed; a step %.2f s, "
      "%.2f s while saving\n",
      median(t.held), double(t.staged) / 0x1p20, median(t.copies), allowed, median(t.quiet),
      median(t.busy));
  std::printf(
      "{\"bytes\": %lld, \"ranks\": %d, \"write_ratio\": %.3f, \"read_ratio\": %.3f, "
      "\"write_mb_s\": %.0f, \"held_ratio\": %.3f}\n",
      static_cast<long long>(files.bytes), ranks, best(files.plain.write) / best(direct.write),
      best(files.plain.read) / best(direct.read), double(files.bytes) / best(direct.write) / 1e6,
      allowed / median(t.held));
}

int run(comm::Session& session, int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "checkpoint_bench DECK FOLDER [ROUNDS [files]]\n");
    return 2;
  }
  comm::Comm& world = session.world();
  const std::string folder = argv[2];
  const bool files_alone = argc > 4;
  train::Recipe recipe;
  config::Deck deck(config::read_deck(argv[1], {}), recipe);
  deck.throw_if_any();
  comm::Mesh mesh = comm::make_mesh(session, comm::resolve_mesh(recipe.mesh, world.size(), ""),
                                    comm::SumOrder::library);
  data::OpenContext context{.seed = 1,
                            .threads = 1,
                            .index_dir = "",
                            .run_index_dir = "",
                            .write_index = false,
                            .index_bytes = int64_t{512} << 20,
                            .substitutes = false,
                            .stage_dir = ""};
  auto input = train::open_training_data(recipe, recipe.data.tokenizers(), context);
  Training training(session, recipe, deck, mesh, *input);
  if (!files_alone) training.run_step();
  if (world.rank() == 0) io::make_directories(folder);
  checkpoint::CheckpointOptions options;
  options.keep_last = 1;
  const FileTimes files =
      time_files(world, folder, training, options, argc > 3 ? std::atoi(argv[3]) : 5);
  if (world.rank() == 0) print(files);
  if (files_alone) return 0;
  options.resume = "must";
  const HeldTimes held = time_held(world, folder, training, options);
  if (world.rank() == 0) {
    print(files, held, world.size());
    for (const checkpoint::Candidate& c : checkpoint::candidates(folder)) io::remove_file(c.path);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
