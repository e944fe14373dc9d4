// SPDX-License-Identifier: Apache-2.0
// Tests files with a row for each sample on real ranks (run with 1, 2 and 4): contents, equal bytes
// on any number of ranks, continuations, torn records, and what is refused.
//   row_file_test FOLDER
#include "records/row_file.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <functional>

#include "comm/together.hpp"
#include "kernels/f16_value.hpp"
#include "rank_checks.hpp"

namespace {

using records::RowBlock;
using records::RowFile;
using records::RowPlan;
using tests::expect;
using tests::session;

constexpr int64_t kRows = 23, kBatch = 2;

float feature(int64_t row, int64_t k) { return float(row) * 1.25f + float(k) / 3; }
std::string key(int64_t row) { return std::string(size_t(row % 6), 'k') + "é"; }

RowPlan plan(const std::string& path) {
  return {.path = path,
          .key = "extract.out",
          .rows = kRows,
          .columns = {{.name = "/features/a", .type = io::H5Type::f32, .shape = {2, 3}},
                      {.name = "/features/b", .type = io::H5Type::half},
                      {.name = "/key",
                       .type = io::H5Type::text,
                       .text_bytes = 7,
                       .attributes = {{"doc", "names"}}},
                      {.name = "/sample", .type = io::H5Type::i64}},
          .lists = {{"/class", {"cat", "", "a long name"}}},
          .attributes = {{"step", int64_t{4}}, {"run", "test"}},
          .made_from = {{"extract.taps", "a, b"}, {"step", "4"}}};
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

RowBlock block(int64_t begin) {
  RowBlock out{
      .begin = begin, .count = std::clamp<int64_t>(kRows - begin, 0, kBatch), .columns = {}};
  out.columns.resize(4);
  for (int64_t row = begin; row < begin + out.count; ++row) {
    for (int64_t k = 0; k < 6; ++k) append(out.columns[0], feature(row, k));
    append(out.columns[1], kernels::loops::round_to_f16(feature(row, 7)).bits);
    std::string text = key(row);
    text.resize(7);
    out.columns[2] += text;
    append(out.columns[3], row);
  }
  return out;
}

// Writes rounds of rows from the first missing one on, at most `most`. Returns the end of the rows
// that were given.
int64_t write(comm::Comm& world, RowFile& file, int64_t most = kRows) {
  int64_t end = file.done();
  for (int64_t round = 0; round < most && end < kRows; ++round) {
    const RowBlock mine = block(end + world.rank() * kBatch);
    end = std::min(kRows, end + world.size() * kBatch);
    file.write(mine, end);
  }
  return end;
}

// Expects an Error on every rank whose text has all `words`.
void refused(const std::function<void()>& work, const std::vector<std::string>& words) {
  try {
    work();
    expect(false, "accepted: " + words.front());
  } catch (const base::Error& e) {
    for (const std::string& word : words)
      expect(std::string(e.what()).find(word) != std::string::npos,
             fmt::format("\"{}\" is not in \"{}\"", word, e.what()));
  }
}

void contents(const std::string& path) {
  const io::H5File file = io::H5File::open(path);
  const std::vector<float> a = file.read<float>("/features/a"), b = file.read<float>("/features/b");
  const std::vector<int64_t> samples = file.read<int64_t>("/sample");
  const std::vector<std::string> keys = file.read_texts("/key");
  expect(file.info("/features/a").shape == std::vector<int64_t>{kRows, 2, 3}, "shape");
  expect(file.info("/features/b").type == io::H5Type::half, "type of half");
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < 6; ++k)
      expect(a[size_t(row * 6 + k)] == feature(row, k), fmt::format("a of row {}", row));
    // HDF5 converts binary16 by itself.
    expect(
        b[size_t(row)] == kernels::loops::to_float(kernels::loops::round_to_f16(feature(row, 7))),
        fmt::format("b of row {}", row));
    expect(samples[size_t(row)] == row && keys[size_t(row)] == key(row),
           fmt::format("key of row {}", row));
  }
  expect(file.read_texts("/class") == std::vector<std::string>{"cat", "", "a long name"}, "list");
  expect(file.read_text("/made_from") == R"({"extract.taps":"a, b","step":"4"})", "made_from");
  expect(std::get<int64_t>(*file.attribute("/", "step")) == 4 &&
             std::get<std::string>(*file.attribute("/key", "doc")) == "names",
         "attributes");
}

// Returns the bytes of a file that one rank wrote.
std::string reference(const std::string& folder) {
  const std::string path = fmt::format("{}/alone_{}.h5", folder, session->world().rank());
  const tests::Alone alone;
  RowFile file(*alone.world, plan(path));
  write(*alone.world, file);
  file.publish();
  contents(path);
  return io::read_file(path);
}

// Stops after each number of rounds, loses the newest record, and goes on.
void continues(const std::string& folder, const std::string& want) {
  comm::Comm& world = session->world();
  const int64_t round = kBatch * world.size();
  for (int64_t rounds = 1; rounds * round < kRows; ++rounds) {
    const std::string path = fmt::format("{}/cut_{}_{}.h5", folder, world.size(), rounds);
    {
      RowFile file(world, plan(path));
      write(world, file, rounds);
    }  // without settle(), as if killed: the last round is written and not recorded
    comm::on_first(world, [&] {
      // A torn slot does not count. Slots are 64 bytes at the end of the file.
      const std::string all = io::read_file(path + ".progress");
      const std::string newest = fmt::format("rows={:020}", (rounds - 1) * round);
      const size_t at = all.rfind(newest);
      expect(at != std::string::npos && (all.size() - at) % 64 == 0, "the newest record: " + all);
      if (rounds > 2 && at != std::string::npos) {
        io::File torn(path + ".progress", io::File::Mode::write);
        torn.write_at("7", 1, int64_t(at) + 24);
      }
      return std::string();
    });
    const int64_t recorded = (rounds > 2 ? rounds - 2 : rounds - 1) * round;
    {
      RowFile file(world, plan(path));
      expect(file.done() == recorded && !file.complete(),
             fmt::format("{} rows after {} rounds", file.done(), rounds));
      write(world, file, 1);
      file.settle();
      expect(file.done() == std::min(kRows, recorded + round), "rows are recorded");
    }
    RowPlan other = plan(path);
    other.made_from["extract.taps"] = "b";
    refused([&] { RowFile file(world, other); },
            {"extract.out", ".part", "cannot be continued", "then \"a, b\", now \"b\""});
    RowFile file(world, plan(path));
    write(world, file);
    file.publish();
    expect(io::read_file(path) == want, fmt::format("bytes after {} rounds", rounds));
    expect(!io::exists(path + ".part") && !io::exists(path + ".progress"), "leftovers");
  }
}

void refusals(const std::string& folder) {
  comm::Comm& world = session->world();
  const std::string path = fmt::format("{}/done_{}.h5", folder, world.size());
  {
    RowFile file(world, plan(path));
    write(world, file);
    file.publish();
  }
  RowFile again(world, plan(path));
  expect(again.complete() && again.done() == kRows, "a complete file is found");
  RowPlan other = plan(path);
  other.made_from["tap"] = "c";
  refused([&] { RowFile file(world, other); },
          {path + " exists", "made from other weights, data or settings",
           "tap: then \"nothing\", now \"c\""});
  const std::string text = fmt::format("{}/text_{}", folder, world.size());
  comm::on_first(world, [&] {
    io::write_file_atomically(text, "text");
    return std::string();
  });
  refused([&] { RowFile file(world, plan(text)); }, {"was not made by this mode"});
  refused([&] { RowFile file(world, plan(text + "/rows.h5")); }, {"extract.out", text});
  // Rank 0 writes a file, and another process wants the same one.
  const std::string shared = fmt::format("{}/shared_{}.h5", folder, world.size());
  const tests::Alone alone;
  std::unique_ptr<RowFile> first;
  if (world.rank() == 0) first = std::make_unique<RowFile>(*alone.world, plan(shared));
  world.barrier();
  if (world.rank() > 0)
    refused([&] { RowFile file(*alone.world, plan(shared)); }, {"another job writes"});
  world.barrier();
}

// A gigabyte of rows is reserved in the file and not in memory.
void takes_no_memory(const std::string& folder) {
  comm::Comm& world = session->world();
  auto resident_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss);
  };
  RowPlan large = plan(fmt::format("{}/large_{}.h5", folder, world.size()));
  large.rows = 1 << 18;
  large.columns = {{.name = "/features/a", .type = io::H5Type::f32, .shape = {1024}},
                   {.name = "/sample", .type = io::H5Type::i64}};
  const int64_t before = resident_kib();
  const RowFile file(world, large);
  expect(file.bytes() > int64_t{1} << 30, "length");
  expect(resident_kib() - before < 64 << 10,
         fmt::format("{} KiB of memory for the structure", resident_kib() - before));
}

int run(comm::Session& own, int argc, char** argv) {
  session = &own;
  const std::string folder = argc > 1 ? argv[1] : ".";
  comm::on_first(own.world(), [&] {
    io::remove_tree(folder);
    io::make_directories(folder);
    return std::string();
  });
  const std::string want = reference(folder);
  continues(folder, want);
  refusals(folder);
  takes_no_memory(folder);
  comm::on_first(own.world(), [&] {
    io::remove_tree(folder);
    return std::string();
  });
  return tests::conclude("row_file_test");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
