// SPDX-License-Identifier: Apache-2.0
// The file system of the run directory: every rank writes, syncs, renames and locks files in a
// folder of the test, and sees the other ranks' files. The folder is removed afterwards, and the
// run directory too if the test has made it.
#include <cerrno>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"
#include "io/files.hpp"
#include "modes/selftest_checks.hpp"

namespace modes::selftest {
namespace {

// Directory entries can take a while to reach the other nodes of a network file system.
constexpr double kPatience_s = 10;
// Each rank looks for the files of at most this many ranks that follow it.
constexpr int kMostWatched = 64;

// The outcome of one rank's calls: "" or the cause of a failure.
template <class Calls>
std::string cause_of(const Calls& calls) {
  try {
    calls();
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

class Folder {
 public:
  explicit Folder(Place& place) : place_(place), world_(place.world()), rank_(world_.rank()) {
    run_ = place.recipe.run.dir;
    const std::string tag = fmt::format("{}-{}", place.hosts[0], place.job_tag);
    path_ = fmt::format("{}/selftest-{}", run_, tag);
  }

  // Rank 0 makes the folder. If another job removes an empty parent meanwhile, it tries again.
  std::string make() {
    return cause_of([&] {
      if (rank_ != 0) return;
      for (std::string path = run_; !io::exists(path); path = io::parent_of(path)) made_ = path;
      for (int again = 0;; ++again) try {
          return io::make_directories(path_);
        } catch (const io::Failure& e) {
          if (e.number() != ENOENT || again == 5) throw;
        }
    });
  }
  // Waits for the folder of rank 0. If it does not appear, this rank has another file system, and
  // makes the folder there.
  std::string find(bool made) {
    return cause_of([&] {
      for (const base::Stopwatch watch; made && rank_ != 0 && watch.seconds() < kPatience_s;) {
        if (io::exists(path_)) return;
        pause();
      }
      io::make_directories(path_);
    });
  }
  std::string write(int turn) {
    return cause_of([&] {
      const base::Stopwatch watch;
      io::write_file_atomically(file_of(rank_), content(rank_, turn));
      write_s = std::max(write_s, watch.seconds());
    });
  }
  // Holds a lock until the object is destroyed.
  std::string lock() {
    return cause_of([&] {
      lock_ = io::File(lock_of(rank_), io::File::Mode::update);
      if (!lock_.try_lock())
        base::fail(base::Exit::checkpoint, "{}: a new file is locked already", lock_of(rank_));
    });
  }
  // Tries to take the lock that the previous rank holds.
  std::string try_other_lock() {
    const int other = (rank_ + world_.size() - 1) % world_.size();
    return cause_of([&] {
      io::File file(lock_of(other), io::File::Mode::update);
      if (file.try_lock())
        base::fail(
            base::Exit::checkpoint,
            "{}: this rank could lock a file that {} has locked: two jobs could write to one "
            "run directory",
            lock_of(other), place_.name(other));
    });
  }
  // Returns the ranks whose files of this turn do not appear, or have other contents.
  std::string unseen(int turn) {
    std::set<int> missing;
    const int watched = std::min(world_.size() - 1, kMostWatched);
    for (int i = 1; i <= watched; ++i) missing.insert((rank_ + i) % world_.size());
    for (const base::Stopwatch watch;;) {
      std::erase_if(missing, [&](int other) {
        try {
          return io::read_file(file_of(other)) == content(other, turn);
        } catch (const io::Failure&) {
          return false;
        }
      });
      seen_s = std::max(seen_s, watch.seconds());
      if (missing.empty() || watch.seconds() > kPatience_s) break;
      pause();
    }
    return fmt::format("{}", fmt::join(missing, " "));
  }
  void remove() {
    lock_ = {};
    // If each rank has its own file system, each rank has its own folder.
    cause_of([&] { io::remove_file(file_of(rank_)); });
    cause_of([&] { io::remove_file(lock_of(rank_)); });
    world_.barrier();
    cause_of([&] {
      if (rank_ == 0) io::remove_tree(path_);
    });
    world_.barrier();
    cause_of([&] {
      if (rank_ != 0 && io::exists(path_)) io::remove_directory(path_);
    });
    if (rank_ != 0 || made_.empty()) return;
    // Parents that others have filled meanwhile stay.
    cause_of([&] {
      for (std::string path = path_; path != made_ && path != "/";) {
        path = io::parent_of(path);
        if (!io::remove_directory(path)) return;
      }
    });
  }
  int64_t free() const { return io::free_bytes(path_); }
  double write_s = 0, seen_s = 0;

 private:
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  std::string file_of(int rank) const { return fmt::format("{}/rank{:05}", path_, rank); }
  std::string lock_of(int rank) const { return file_of(rank) + ".lock"; }
  std::string content(int rank, int turn) const {
    constexpr size_t kLines = 1000;
    std::string text;
    for (size_t i = 0; i < kLines; ++i)
      text += fmt::format("{} rank {} turn {} line {}\n", path_, rank, turn, i);
    return text;
  }

  Place& place_;
  comm::Comm& world_;
  int rank_;
  std::string run_, path_;
  std::string made_;  // the outermost parent that was missing; "": none
  io::File lock_;
};

// Adds a complaint for each rank with a cause.
void complain(Place& place, const std::string& mine, Row& row, const char* what) {
  const std::vector<std::string> all = place.world().gather_text(mine);
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) row.bad.push_back({int(r), what + all[r]});
}

// Blames the ranks on small islands, or the ranks that see an old file.
void judge_unseen(Place& place, const std::string& mine, Row& row) {
  std::vector<std::set<int>> unseen;
  for (const std::string& text : place.world().gather_text(mine)) {
    std::set<int>& of_rank = unseen.emplace_back();
    if (!text.empty())
      for (const std::string& word : base::split(text, ' ')) of_rank.insert(std::stoi(word));
  }
  const std::vector<int> island = islands(unseen);
  const int n = place.ranks(), watched = std::min(n - 1, kMostWatched);
  int mainland = 0;  // the first rank there
  while (island[size_t(mainland)] != 0) ++mainland;
  std::vector<int> missed(static_cast<size_t>(n), 0);  // readers that do not see this rank's file
  for (const std::set<int>& of_rank : unseen)
    for (const int r : of_rank) ++missed[size_t(r)];
  for (int r = 0; r < n; ++r) {
    if (island[size_t(r)] != 0) {
      row.bad.push_back({r, fmt::format("{} there is not the folder that {} sees: neither sees the "
                                        "other's files",
                                        place.recipe.run.dir, place.name(mainland))});
      continue;
    }
    if (missed[size_t(r)] == watched && n > 2)
      row.bad.push_back(
          {r, fmt::format("no other rank sees its new file within {:g} s", kPatience_s)});
    for (const int other : unseen[size_t(r)])
      if (island[size_t(other)] == 0 && (missed[size_t(other)] < watched || n == 2)) {
        row.bad.push_back({r, fmt::format("does not see a new file of {} within {:g} s",
                                          place.name(other), kPatience_s)});
        break;
      }
  }
}

Row check_room(Place& place, int64_t free) {
  Row row{.check = "disk", .text = {}, .exit = base::Exit::checkpoint};
  const int64_t bytes = std::stoll(
      comm::on_first(place.world(), [&] { return fmt::format("{}", checkpoint_bytes(place)); }));
  const int64_t kept = place.recipe.checkpoint.keep_last + 1;
  auto mib = [](int64_t b) { return base::mebibytes(b) + " MiB"; };
  row.text = fmt::format("{} free", mib(free));
  if (bytes == 0) return row;
  row.text += fmt::format("; a checkpoint has {}, and up to {} exist at a time", mib(bytes), kept);
  if (free < bytes)
    row.bad.push_back({0, fmt::format("{}: only {} free, but a checkpoint has {}",
                                      place.recipe.run.dir, mib(free), mib(bytes))});
  else if (free / kept < bytes)
    row.warned.push_back(
        {0, fmt::format("{}: only {} free, but up to {} checkpoints of {} exist at a time",
                        place.recipe.run.dir, mib(free), kept, mib(bytes))});
  return row;
}

}  // namespace

std::vector<int> islands(const std::vector<std::set<int>>& unseen) {
  const int n = int(unseen.size());
  std::vector<int> root(static_cast<size_t>(n));
  std::iota(root.begin(), root.end(), 0);
  auto find = [&](int r) {
    while (root[size_t(r)] != r) r = root[size_t(r)];
    return r;
  };
  for (int r = 0; r < n; ++r)
    for (int i = 1; i <= std::min(n - 1, kMostWatched); ++i) {
      const int other = (r + i) % n, a = find(r), b = find(other);
      if (!unseen[size_t(r)].contains(other)) root[size_t(std::max(a, b))] = std::min(a, b);
    }
  std::map<int, int> sizes;
  for (int r = 0; r < n; ++r) ++sizes[find(r)];
  int largest = 0;
  for (const auto& [at, size] : sizes)
    if (size > sizes[largest]) largest = at;
  std::map<int, int> numbers = {{largest, 0}};
  std::vector<int> out;
  for (int r = 0; r < n; ++r)
    out.push_back(numbers.try_emplace(find(r), int(numbers.size())).first->second);
  return out;
}

std::vector<Row> check_files(Place& place) {
  comm::Comm& world = place.world();
  Row files{.check = "files", .text = {}, .exit = base::Exit::checkpoint};
  Row locks{.check = "locks", .text = {}, .exit = base::Exit::checkpoint};
  Folder folder(place);
  const std::string made = world.broadcast_text(folder.make(), 0);
  std::string mine = folder.find(made.empty());
  if (world.rank() == 0) mine = made;
  for (int turn = 0; turn < 2; ++turn) {
    if (mine.empty()) mine = folder.write(turn);
    complain(place, mine, files, "");
    if (!files.bad.empty()) break;
    judge_unseen(place, folder.unseen(turn), files);
    if (!files.bad.empty()) break;
    world.barrier();  // nobody writes again before all have read
  }
  std::vector<Row> rows;
  files.text = place.recipe.run.dir;
  const double write_s = world.max(folder.write_s), seen_s = world.max(folder.seen_s);
  const bool works = files.bad.empty();
  if (works) {
    files.text += fmt::format(": written, synced and renamed in {:.1f} ms", write_s * 1e3);
    if (world.size() > 1) files.text += fmt::format(", seen by all within {:.0f} ms", seen_s * 1e3);
  }
  rows.push_back(std::move(files));
  if (works) {
    complain(place, folder.lock(), locks, "no locks: ");
    if (locks.bad.empty() && world.size() > 1) {
      complain(place, folder.try_other_lock(), locks, "");
      world.barrier();  // nobody gives its lock up before all have tried
    }
    if (locks.bad.empty())
      locks.text = world.size() > 1 ? "held, and refused to other ranks" : "held";
    rows.push_back(std::move(locks));
    rows.push_back(check_room(place, std::stoll(comm::on_first(world, [&] {
                                return fmt::format("{}", folder.free());
                              }))));
  }
  folder.remove();
  return rows;
}

}  // namespace modes::selftest
