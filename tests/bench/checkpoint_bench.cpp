// SPDX-License-Identifier: Apache-2.0
// Measures the cost of saves:
//   mpirun -np N build/tests/checkpoint_bench DECK FOLDER [ROUNDS [files]]
//   1. write and read: checkpoint::save and restore of the deck's whole state, in turn with plain
//     MPI-IO of as many bytes. Both sides call fsync, and files leave the page cache before they
//     are read.
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

// Writes the rank's share of a file of `total` bytes by MPI-IO. Returns the seconds of the slowest
// rank.
double plain_write(comm::Comm& world, const std::string& path, const std::vector<char>& mine) {
  world.barrier();
  base::Stopwatch watch;
  MPI_File file;
  check_mpi(MPI_File_open(MPI_COMM_WORLD, path.c_str(), MPI_MODE_CREATE | MPI_MODE_WRONLY,
                          MPI_INFO_NULL, &file),
            "open");
  check_mpi(MPI_File_write_at_all(file, MPI_Offset(world.rank()) * MPI_Offset(mine.size()),
                                  mine.data(), int(mine.size()), MPI_BYTE, MPI_STATUS_IGNORE),
            "write");
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
  check_mpi(MPI_File_read_at_all(file, MPI_Offset(world.rank()) * MPI_Offset(mine.size()),
                                 mine.data(), int(mine.size()), MPI_BYTE, MPI_STATUS_IGNORE),
            "read");
  check_mpi(MPI_File_close(&file), "close");
  return world.max(watch.seconds());
}

int run(comm::Session& session, int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "checkpoint_bench DECK FOLDER [ROUNDS [files]]\n");
    return 2;
  }
  comm::Comm& world = session.world();
  const std::string folder = argv[2];
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
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
                            .substitutes = false,
                            .stage_dir = ""};
  auto input = train::open_training_data(recipe, recipe.data.tokenizers(), context);
  step::Engine engine(
      recipe.engine(input->size(), host::choose_threads(recipe.run.threads, session.local_size())),
      mesh, device::Kind::cpu);
  engine.initialise();
  engine.publish();
  int64_t step = 0;
  const step::Geometry& g = engine.geometry();
  data::Loader loader(*input, recipe.data.loader, train::training_plan(g, mesh, 0, 1000));
  auto train_step = [&] {
    world.barrier();
    base::Stopwatch watch;
    engine.step(++step, [&](int64_t) { return data::host_batch(loader.next()); });
    return world.max(watch.seconds());
  };
  if (argc <= 4) train_step();
  if (world.rank() == 0) io::make_directories(folder);
  train::RunState run_state(recipe, deck);
  auto state = [&] {
    run_state.step = step;
    return run_state.to_checkpoint(engine.state());
  };
  checkpoint::CheckpointOptions options;
  options.keep_last = 1;
  // Saves only when asked, as in a run, which plans its file at its start.
  checkpoint::CheckpointOptions at_once = options;
  at_once.async = false;
  checkpoint::Saver blocking(world, folder, at_once);

  // Part 1, in turn
  const int64_t bytes = blocking.plan(state());
  std::vector<char> mine(size_t(bytes / world.size()));
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = char(i * 2654435761u >> 13);
  const std::string plain = folder + "/plain.bin";
  std::vector<double> ours_write, ours_read, plain_write_s, plain_read_s;
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
    plain_write_s.push_back(plain_write(world, plain, mine));
    evict(world, plain);
    plain_read_s.push_back(plain_read(world, plain, mine));
    remove(plain);
  };
  auto by_us = [&] {
    warm();
    world.barrier();
    base::Stopwatch watch;
    blocking.begin(state());
    checkpoint::Saved saved = blocking.finish();
    ours_write.push_back(world.max(watch.seconds()));
    const std::string file = folder + "/" + saved.file;
    evict(world, file);
    checkpoint::State into = state();
    watch.restart();
    options.resume = "must";
    checkpoint::restore(world, folder, into, options);
    ours_read.push_back(world.max(watch.seconds()));
    remove(file);
  };
  for (int round = 0; round < rounds; ++round) {
    round % 2 ? by_us() : by_mpi_io();
    round % 2 ? by_mpi_io() : by_us();
  }
  auto best = [](const std::vector<double>& s) { return *std::min_element(s.begin(), s.end()); };
  double write_ratio = best(plain_write_s) / best(ours_write),
         read_ratio = best(plain_read_s) / best(ours_read);
  auto rate = [&](double seconds) { return double(bytes) / seconds / 1e6; };
  if (world.rank() == 0) {
    std::printf("%-28s%20s%20s%8s\n", "MB/s, best (median)", "ours", "MPI-IO", "ratio");
    auto line = [&](const char* what, const std::vector<double>& ours,
                    const std::vector<double>& plain_s, double ratio) {
      std::printf("%-28s%12.0f (%5.0f)%12.0f (%5.0f)%8.2f (%.2f)\n", what, rate(best(ours)),
                  rate(median(ours)), rate(best(plain_s)), rate(median(plain_s)), ratio,
                  median(plain_s) / median(ours));
    };
    line("write, durable, read back", ours_write, plain_write_s, write_ratio);
    line("read, proved by checksums", ours_read, plain_read_s, read_ratio);
  }

  if (argc > 4) return 0;

  // Part 2, beside training
  checkpoint::Saver saver(world, folder, options);
  int64_t staged = saver.stage(state());
  std::vector<char> copy(static_cast<size_t>(staged), 1);
  std::vector<double> held, copies, quiet, busy;
  for (int round = 0; round < 3; ++round) {
    quiet.push_back(train_step());
    base::Stopwatch watch;
    size_t at = 0;
    for (const auto& tensor : engine.state())
      if (tensor.writes)
        for (const auto& part : tensor.parts) {
          size_t n = size_t((part.end - part.begin) * device::size_of(tensor.type));
          std::memcpy(copy.data() + at, part.data, n);
          at += n;
        }
    copies.push_back(world.max(watch.seconds()));
    checkpoint::State now = state();
    saver.begin(now);
    std::optional<checkpoint::Saved> saved;
    for (;;) {
      double s = train_step();
      if ((saved = saver.poll())) break;
      busy.push_back(s);
    }
    CHECK(saved->error.empty(), "{}", saved->error);
    held.push_back(world.max(saved->held_s));
  }
  double allowed = 1.2 * median(copies) + 0.060;
  if (world.rank() == 0) {
    std::printf(
        "held %.3f s; a memcpy of the %.0f MiB takes %.3f s, so %.3f s are allowed; a step %.2f s, "
        "%.2f s while saving\n",
        median(held), double(staged) / 0x1p20, median(copies), allowed, median(quiet),
        median(busy));
    std::printf(
        "{\"bytes\": %lld, \"ranks\": %d, \"write_ratio\": %.3f, \"read_ratio\": %.3f, "
        "\"write_mb_s\": %.0f, \"held_ratio\": %.3f}\n",
        static_cast<long long>(bytes), world.size(), write_ratio, read_ratio,
        rate(best(ours_write)), allowed / median(held));
    for (const checkpoint::Candidate& c : checkpoint::candidates(folder)) io::remove_file(c.path);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
