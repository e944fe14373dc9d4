// SPDX-License-Identifier: Apache-2.0
// Measures the cost of saves:
//   mpirun -np N build/tests/checkpoint_bench DECK FOLDER [ROUNDS [files [WAY,WAY...]]]
//   1. write and read: checkpoint::save and restore of the deck's whole state by each driver, in
//     turn with plain writes of as many bytes. All call fsync, and files leave the page cache
//     before they are read. HDF5's MPI-IO driver is left out if HDF5 is serial.
//   2. held: time that a save beside training steps holds the main thread, from entry to return
//     with the commit included, against a memcpy of the copied bytes.
// With "files" only part 1 runs, and no JSON is printed. Otherwise the last line is JSON. A ratio
// above 1 means that the checkpoint is faster, or holds the thread for less than allowed.
// WAY: mpi-io (plain MPI-IO), posix (plain pwritev and preadv), direct, collective, independent;
// without WAYs all but posix. Ratios are to the first plain one. posix takes the state's own
// memory, so a state that fills most of the node's memory can be measured with posix,direct.
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"
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

// Part 1: seconds to write and to read the state, by checkpoints and by plain writes.
struct Way {
  enum class Kind { mpi_io, posix, checkpoint } kind;
  const char* name;
  checkpoint::IoLimits io{};
  std::vector<double> write{}, read{};
  bool plain() const { return kind != Kind::checkpoint; }
};
struct FileTimes {
  int64_t bytes = 0;
  std::vector<Way> ways;
  // The first plain way, which the others are compared with.
  const Way& plain() const {
    for (const Way& way : ways)
      if (way.plain()) return way;
    base::fail(base::Exit::config, "name mpi-io or posix among the ways");
  }
  const Way& checkpoint() const {
    for (const Way& way : ways)
      if (!way.plain()) return way;
    base::fail(base::Exit::config, "name direct among the ways");
  }
};

std::vector<Way> ways_of(const std::string& names) {
  std::vector<Way> ways;
  for (const std::string& name : base::split(names, ',')) {
    checkpoint::IoLimits io;
    io.mpio = name == "collective" || name == "independent";
    io.collective = name != "independent";
    if (name == "mpi-io")
      ways.push_back({Way::Kind::mpi_io, "plain MPI-IO"});
    else if (name == "posix")
      ways.push_back({Way::Kind::posix, "plain POSIX"});
    else if (name == "direct")
      ways.push_back({Way::Kind::checkpoint, "direct"});
    else if (!io.mpio)
      base::fail(base::Exit::config, "{} is no way: see the top of checkpoint_bench.cpp", name);
    else if (io::hdf5_is_parallel())
      ways.push_back(
          {Way::Kind::checkpoint, io.collective ? "mpio, collective" : "mpio, independent", io});
  }
  return ways;
}

// Writes and reads the state's bytes in each way.
class FileBench {
 public:
  FileBench(comm::Comm& world, std::string folder, Training& training,
            checkpoint::CheckpointOptions options, const std::string& ways)
      : world_(world),
        training_(training),
        options_(std::move(options)),
        plain_(folder + "/plain.bin"),
        folder_(std::move(folder)) {
    times_.ways = ways_of(ways);
    // Saves only when asked, as in a run, which plans its file at its start.
    checkpoint::CheckpointOptions at_once = options_;
    at_once.async = false;
    saver_.emplace(world, folder_, at_once);
    times_.bytes = saver_->plan(training.state());
    // Memory that nothing has written yet would cost the first read its pages.
    for (const shard::TensorSlice& tensor : training.tensors())
      for (const auto& part : tensor.parts)
        for (int64_t at = 0; at < tensor.view(part).bytes(); at += 512) {
          volatile char& byte = static_cast<char*>(part.data)[at];
          byte = byte;
        }
  }
  FileTimes time(int rounds) {
    for (int round = 0; round < rounds; ++round)
      for (size_t i = 0; i < times_.ways.size(); ++i) {
        Way& way = times_.ways[round % 2 ? times_.ways.size() - 1 - i : i];
        warm();
        if (way.kind == Way::Kind::mpi_io)
          by_mpi_io(way);
        else if (way.kind == Way::Kind::posix)
          by_posix(way);
        else
          by_checkpoint(way);
        if (world_.rank() == 0)
          std::fprintf(stderr, "%-20s write %7.2f s, read %7.2f s\n", way.name, way.write.back(),
                       way.read.back());
      }
    return times_;
  }

 private:
  void remove(const std::string& path) {
    world_.barrier();
    if (world_.rank() == 0) io::remove_file(path);
    world_.barrier();
  }
  // On a virtual machine, writing to memory that was idle for a while costs ten times as much. This
  // warm-up uses the pages of the page cache just before each way writes. The choice of pages is
  // still chance, so the best rounds are reported as well.
  void warm() {
    constexpr int64_t kMost = int64_t{1} << 30;  // a longer file fills the page cache by itself
    const int64_t mine = std::min(kMost, times_.bytes / world_.size());
    const std::vector<char> piece(size_t{8} << 20, 1);
    world_.barrier();
    io::File file(plain_ + ".warm", io::File::Mode::update);
    for (int64_t at = 0; at < mine; at += int64_t(piece.size()))
      file.write_at(piece.data(), int64_t(piece.size()), world_.rank() * kMost + at);
    file.close();
    remove(plain_ + ".warm");
  }
  void by_mpi_io(Way& way) {
    if (mine_.empty()) {
      mine_.resize(size_t(times_.bytes / world_.size()));
      for (size_t i = 0; i < mine_.size(); ++i) mine_[i] = char(i * 2654435761u >> 13);
    }
    way.write.push_back(plain_write(world_, plain_, mine_));
    evict(world_, plain_);
    way.read.push_back(plain_read(world_, plain_, mine_));
    remove(plain_);
  }
  // Writes the bytes that this rank writes to checkpoints, one after the other.
  void by_posix(Way& way) {
    constexpr int64_t kCall = int64_t{256} << 20;  // bytes, if no part is larger
    std::vector<std::span<char>> parts;
    int64_t mine = 0;
    for (const shard::TensorSlice& tensor : training_.tensors())
      for (const auto& part : tensor.parts)
        if (const int64_t bytes = tensor.view(part).bytes(); tensor.writes && bytes > 0) {
          parts.emplace_back(static_cast<char*>(part.data), size_t(bytes));
          mine += bytes;
        }
    const int64_t begin = world_.rank() * world_.max(mine);
    // Calls move(pieces, offset) for neighbouring parts.
    auto in_calls = [&](auto move) {
      std::vector<std::span<char>> pieces;
      int64_t at = begin, end = begin;
      for (const std::span<char>& part : parts) {
        pieces.push_back(part);
        end += int64_t(part.size());
        if (end - at < kCall && &part != &parts.back()) continue;
        move(std::exchange(pieces, {}), at);
        at = end;
      }
    };
    world_.barrier();
    base::Stopwatch watch;
    io::File file(plain_, io::File::Mode::update);
    in_calls([&](const std::vector<std::span<char>>& pieces, int64_t at) {
      std::vector<std::string_view> views;
      for (const std::span<char>& piece : pieces) views.emplace_back(piece.data(), piece.size());
      file.write_at(std::move(views), at);
    });
    CHECK(::fsync(file.descriptor()) == 0, "{}: fsync failed", plain_);
    file.close();
    way.write.push_back(world_.max(watch.seconds()));
    evict(world_, plain_);
    watch.restart();
    file = io::File(plain_, io::File::Mode::read);
    in_calls([&](std::vector<std::span<char>> pieces, int64_t at) {
      file.read_at(std::move(pieces), at);
    });
    way.read.push_back(world_.max(watch.seconds()));
    remove(plain_);
  }
  void by_checkpoint(Way& way) {
    world_.barrier();
    base::Stopwatch watch;
    checkpoint::State from = training_.state();
    from.io = way.io;
    saver_->begin(from);
    checkpoint::Saved saved = saver_->finish();
    CHECK(saved.error.empty(), "{}", saved.error);
    way.write.push_back(world_.max(watch.seconds()));
    const std::string file = folder_ + "/" + saved.file;
    evict(world_, file);
    checkpoint::State into = training_.state();
    into.io = way.io;
    watch.restart();
    options_.resume = "must";
    checkpoint::restore(world_, folder_, into, options_);
    way.read.push_back(world_.max(watch.seconds()));
    remove(file);
  }

  comm::Comm& world_;
  Training& training_;
  checkpoint::CheckpointOptions options_;
  const std::string plain_, folder_;
  std::optional<checkpoint::Saver> saver_;
  FileTimes times_;
  std::vector<char> mine_;  // for MPI-IO
};

double best(const std::vector<double>& s) { return *std::min_element(s.begin(), s.end()); }

void print(const FileTimes& t) {
  auto rates = [&](const std::vector<double>& s) {
    return fmt::format("{:.0f} ({:.0f})", double(t.bytes) / best(s) / 1e6,
                       double(t.bytes) / median(s) / 1e6);
  };
  auto ratio = [](const std::vector<double>& ours, const std::vector<double>& plain) {
    return fmt::format("{:.2f} ({:.2f})", best(plain) / best(ours), median(plain) / median(ours));
  };
  const Way& plain = t.plain();
  fmt::print("{:.0f} MiB; MB/s and times as fast as {}: best (median) of {}\n",
             double(t.bytes) / 0x1p20, plain.name, plain.write.size());
  fmt::print("{:<20}{:>28}{:>30}\n", "", "write, durable, read back", "read, proved by checksums");
  for (const Way& way : t.ways)
    fmt::print("{:<20}{:>14}{:>14}{:>16}{:>14}\n", way.name, rates(way.write),
               ratio(way.write, plain.write), rates(way.read), ratio(way.read, plain.read));
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
  const Way &direct = files.checkpoint(), &plain = files.plain();
  std::printf(
      "held %.3f s; a memcpy of the %.0f MiB takes %.3f s, so %.3f s are allowed; a step %.2f s, "
      "%.2f s while saving\n",
      median(t.held), double(t.staged) / 0x1p20, median(t.copies), allowed, median(t.quiet),
      median(t.busy));
  std::printf(
      "{\"bytes\": %lld, \"ranks\": %d, \"write_ratio\": %.3f, \"read_ratio\": %.3f, "
      "\"write_mb_s\": %.0f, \"held_ratio\": %.3f}\n",
      static_cast<long long>(files.bytes), ranks, best(plain.write) / best(direct.write),
      best(plain.read) / best(direct.read), double(files.bytes) / best(direct.write) / 1e6,
      allowed / median(t.held));
}

int run(comm::Session& session, int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "checkpoint_bench DECK FOLDER [ROUNDS [files [WAY,WAY...]]]\n");
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
  const std::string ways = argc > 5 ? argv[5] : "mpi-io,direct,collective,independent";
  const FileTimes files =
      FileBench(world, folder, training, options, ways).time(argc > 3 ? std::atoi(argv[3]) : 5);
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
