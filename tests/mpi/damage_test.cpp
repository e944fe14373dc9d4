// SPDX-License-Identifier: Apache-2.0
// Makes thousands of random damages to a checkpoint: damage_test [COUNT [SEED]]. Bytes are flipped,
// cleared, swapped, cut off, appended or removed. If the damage hit unused space, a restore must
// give exactly the saved state. Otherwise it must refuse the file by name with the reason, and give
// exactly the state of the previous file.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/header.hpp"
#include "io/files.hpp"
#include "ranks.hpp"
#include "small_model.hpp"

namespace {

struct Contents {
  std::map<std::string, std::string> tensors;
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;
  bool operator==(const Contents&) const = default;
};

// Returns the n-th number below `end` of this test's draws.
struct Dice {
  base::Stream stream;
  uint64_t n = 0;
  size_t below(size_t end) { return size_t(stream.bits(n++) % end); }
};

// Returns a description of the damage; "" = the file is gone.
std::string damage(std::string& content, Dice& dice) {
  size_t at = dice.below(content.size()), length = 1 + dice.below(9000);
  // Half of the damages hit places that a check could miss most easily: header, structure, and the
  // checksums at the end.
  if (size_t where = dice.below(4); where < 2)
    at = where == 0 ? dice.below(std::min<size_t>(content.size(), 40000))
                    : content.size() - 1 - dice.below(std::min<size_t>(content.size(), 3000));
  length = std::min(length, content.size() - at);
  switch (dice.below(10)) {
    case 0:
      content.resize(at);
      return fmt::format("cut at {}", at);
    case 1:
      content += std::string(length, 'x');
      return fmt::format("{} bytes appended", length);
    case 2:
      std::fill_n(content.begin() + std::ptrdiff_t(at), length, '\0');
      return fmt::format("{} zeros at {}", length, at);
    case 3: {
      size_t other = dice.below(content.size() - length + 1);
      std::string moved = content.substr(other, length);
      content.replace(at, length, moved);
      return fmt::format("{} bytes of {} at {}", length, other, at);
    }
    case 4:
      if (dice.below(4) == 0) {
        content.clear();
        return "";
      }
      [[fallthrough]];
    default: {
      int bits = 1 + int(dice.below(3));
      std::string text = "flipped";
      for (int i = 0; i < bits; ++i) {
        size_t bit = dice.below(8), place = i == 0 ? at : dice.below(content.size());
        content[place] = char(content[place] ^ (1 << bit));
        text += fmt::format(" {}.{}", place, bit);
      }
      return text;
    }
  }
}

// Checks that the reason of a refusal names the fault: the part of the file whose bytes differ from
// `good`.
class Names {
 public:
  Names(const std::string& path, int64_t step, std::string good)
      : good_(std::move(good)),
        header_(checkpoint::check_header(path)),
        manifest_(checkpoint::inspect(path, step)) {}

  bool rightly(const std::string& reason, const std::string& content) const {
    auto says = [&](const std::string& text) { return reason.find(text) != reason.npos; };
    const size_t were = good_.size(), are = content.size();
    auto changed = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (size_t(i) >= are || content[size_t(i)] != good_[size_t(i)]) return true;
      return false;
    };
    if (says("it is cut: ") || says(" were written"))
      return are < size_t(checkpoint::kUserBlock)
                 ? says(fmt::format("it is cut: {} bytes, shorter than its header", are))
                 : are != were &&
                       says(are < were
                                ? fmt::format("it is cut: {} of {} bytes", are, were)
                                : fmt::format("it has {} bytes, {} were written", are, were));
    if (says("HDF5 structure is damaged")) {
      for (auto [begin, end] : header_.structure)
        if (changed(begin, end)) return true;
      return false;
    }
    if (says(fmt::format("{} is damaged", checkpoint::kIndex)))
      return changed(header_.index.first, header_.index.second);
    if (says("header") || says("does not begin as a checkpoint"))
      return changed(0, checkpoint::kUserBlock);
    const checkpoint::FileLayout& l = manifest_.layout;
    if (says("list of tensor checksums"))
      return changed(l.tensor_sums, l.tensor_sums + int64_t(8 * l.entries.size())) ||
             changed(l.file_sum, l.file_sum + 8);
    for (const checkpoint::Entry& e : l.entries) {
      int64_t first = l.block_sums + 8 * e.first_block, begin = 0, end = 0;
      if (says("the block checksums of " + e.name + " are"))
        return changed(first, first + 8 * e.blocks());
      if (e.name == checkpoint::kDeck && says(e.name + " is damaged"))
        return changed(e.offset, e.offset + e.bytes);
      size_t at = reason.find(": " + e.name + " is damaged (checksum of bytes ");
      if (at == reason.npos) continue;
      return std::sscanf(reason.c_str() + reason.find("of bytes ", at), "of bytes %ld to %ld",
                         &begin, &end) == 2 &&
             e.offset <= begin && begin < end && end <= e.offset + e.bytes && changed(begin, end);
    }
    return false;
  }

 private:
  std::string good_;
  checkpoint::Header header_;
  checkpoint::Manifest manifest_;
};

// Counts damaged checkpoints by outcome.
struct Tally {
  int refused = 0, intact = 0, gone = 0;
};

// Restores into state `s`. Returns why the result is wrong; empty if it is right. contents(s) must
// be one of `saved`. `now`: the newest file as it is, or none if it is gone.
template <class ContentsOf>
std::string restore_problem(comm::Comm& world, const std::string& root, checkpoint::State s,
                            const std::map<int64_t, Contents>& saved, const ContentsOf& contents,
                            const Names& names, const std::optional<std::string>& now,
                            Tally& tally) {
  for (const auto& tensor : s.tensors)
    for (const auto& part : tensor.parts)
      std::fill_n(static_cast<char*>(part.data),
                  (part.end - part.begin) * device::size_of(tensor.type), '\x5a');
  checkpoint::CheckpointOptions options;
  options.resume = "must";
  const auto restored = checkpoint::restore(world, root, s, options);
  if (contents(s) != saved.at(restored->step))
    return fmt::format("step {} came back with other contents", restored->step);
  if (restored->step == 2) {
    ++tally.intact;
    return "";
  }
  if (!now) return restored->refused.empty() ? "" : "a file that is gone was refused";
  if (restored->refused.size() != 1 ||
      restored->refused[0].find("0000000002.h5: ") == std::string::npos)
    return "refused without its name";
  if (!names.rightly(restored->refused[0], *now))
    return "refused for something else: " + restored->refused[0];
  ++tally.refused;
  return "";
}

int run(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  if (world.size() != 1) {
    std::fprintf(stderr, "damage_test takes one rank\n");
    return 2;
  }
  const int count = argc > 1 ? std::atoi(argv[1]) : 2000;
  Dice dice{base::Stream(argc > 2 ? uint64_t(std::atoll(argv[2])) : 1, "damage")};

  std::string root =
      std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/damage_test_XXXXXX";
  if (!::mkdtemp(root.data())) return 1;
  comm::Mesh mesh = comm::make_mesh(session, {1, 1}, comm::SumOrder::library);
  step::Engine engine(tests::engine_options({.mesh = {1, 1}}, 20), mesh, device::Kind::cpu);
  engine.initialise();
  engine.publish();
  auto state = [&](int64_t step) {
    return checkpoint::State{.step = step,
                             .tensors = engine.state(),
                             .numbers = {{"train_s", double(step) / 3}},
                             .texts = {{"deck", "[run]\nname = \"x\"\n"}, {"name", "damage"}}};
  };
  auto contents = [&](const checkpoint::State& s) {
    return Contents{tests::whole_state(engine, world), s.numbers, s.texts};
  };
  std::map<int64_t, Contents> saved;
  for (int64_t step = 1; step <= 2; ++step) {
    tests::run_step(engine, mesh, step);
    checkpoint::State s = state(step);
    checkpoint::save(world, root, s, {});
    saved[step] = contents(s);
  }
  const std::string newest = root + "/0000000002.h5", good = io::read_file(newest);

  const Names names(newest, 2, good);
  int failures = 0;
  Tally tally;
  for (int i = 0; i < count; ++i) {
    std::optional<std::string> content = good;
    const std::string what = damage(*content, dice);
    if (what.empty()) {
      io::remove_file(newest);
      content.reset();
      ++tally.gone;
    } else {
      io::write_file_atomically(newest, *content, false);
    }
    std::string problem;
    try {
      problem = restore_problem(world, root, state(0), saved, contents, names, content, tally);
    } catch (const std::exception& e) {
      problem = fmt::format("no way back: {}", e.what());
    }
    if (problem.empty()) continue;
    ++failures;
    std::printf("FAILED: damage %d (%s): %s\n", i, what.c_str(), problem.c_str());
  }
  std::printf("%d damages to %zu bytes: %d refused, %d in unused space, %d removed, %d failures\n",
              count, good.size(), tally.refused, tally.intact, tally.gone, failures);
  for (const char* name : {"/0000000001.h5", "/0000000002.h5"}) io::remove_file(root + name);
  ::rmdir(root.c_str());
  // The restore must have refused most damages, or this test damages nothing.
  return failures || tally.refused < count / 2 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
