// SPDX-License-Identifier: Apache-2.0
#include "data/sources/shard_set.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <thread>

#include "base/cancel.hpp"
#include "base/error.hpp"
#include "base/span.hpp"
#include "base/thread_scope.hpp"

namespace data {
namespace {

// Opening is slow on parallel file systems, and descriptors and maps are few.
constexpr size_t kMostOpenShards = 128, kMostOpenIndexes = 10'000;

// A start looks at all shards of a set, if they are few. Of more shards it reads a list, and looks
// at some.
constexpr size_t kFewShards = 256, kSpots = 64;

constexpr double kLookSeconds = 5;

using Kept = std::map<size_t, std::shared_ptr<const TarIndexFile>>;

bool is_large(std::span<const std::string> paths) { return paths.size() > kFewShards; }

std::span<const std::string> share_of(const std::vector<std::string>& paths, int rank, int ranks) {
  const size_t n = paths.size(), begin = n * size_t(rank) / size_t(ranks);
  return std::span(paths).subspan(begin, n * (size_t(rank) + 1) / size_t(ranks) - begin);
}

// Ranks begin at different shards. Where they do not list shares, they share the indexing through
// their index files.
size_t own_begin(const std::vector<std::string>& paths) {
  return paths.size() * size_t(base::where().rank) / size_t(std::max(base::where().ranks, 1));
}

std::vector<std::string> list_places(const std::vector<std::string>& paths,
                                     const std::string& pattern, const OpenContext& context) {
  const std::string name = fmt::format(".{}.list", path_hash(pattern));
  return index_places_in(folder_of(paths.at(0)), name, context);
}

bool is_fresh(const ShardList& list, const std::vector<std::string>& paths) {
  for (size_t i = 0; i < kSpots; ++i) {
    const size_t shard = i * paths.size() / kSpots;
    const std::optional<FileState> now = state_at(paths[shard]);
    if (!now || is_changed(list.shards()[shard].state, *now)) return false;
  }
  return true;
}

// Looks at every shard, from `begin` on, and indexes those without an index. `kept` gets indexes
// that no place took.
ShardList look_at(std::span<const std::string> paths, size_t begin, const OpenContext& context,
                  Kept& kept) {
  const size_t count = paths.size();
  std::vector<TarIndexHead> heads(count);
  std::mutex mutex;
  auto look = [&](size_t s) {
    base::end_if_asked(context.token);
    base::Span span("open a shard", base::SpanKind::load);
    auto [index, in_file] = open_tar_index(paths[s], context);
    heads[s] = index->head();
    if (in_file) return;
    std::lock_guard lock(mutex);
    kept[s] = std::move(index);
  };
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(count);
  auto work = [&] {
    for (size_t i; (i = next++) < count;) {
      const size_t s = (begin + i) % count;
      try {
        look(s);
      } catch (...) {
        errors[s] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < context.threads && size_t(t) < count; ++t)
      helpers.push_back(base::thread("shards", work));
    work();
  }
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
  ShardList list;
  for (const TarIndexHead& head : heads) list.add(head);
  return list;
}

}  // namespace

// Checking whether a file has changed costs a message to a server on parallel file systems, so an
// open file is checked only now and then.
struct ShardSet::OpenShard {
  explicit OpenShard(const std::string& path) : file(path) {}
  bool time_to_look() {
    const double now = base::now_s();
    double last = looked.load();
    return now - last > kLookSeconds && looked.compare_exchange_strong(last, now);
  }
  const File file;
  std::atomic<double> looked{base::now_s()};
};

// The next start then looks at all shards. Returns false if the list cannot be removed.
bool ShardSet::forget_list() const {
  std::error_code problem;
  if (!list_path_.empty()) std::filesystem::remove(list_path_, problem);
  return !problem;
}

template <class Look>
auto ShardSet::forgetting_list(Look look) const {
  try {
    return look();
  } catch (const Unreadable&) {
    forget_list();
    throw;
  }
}

// Ranks other than the first one write no list: they find the first one's, or have shards of their
// own.
ShardSet::ShardSet(std::vector<std::string> paths, const std::string& pattern,
                   const OpenContext& context)
    : context_(context),
      paths_(std::move(paths)),
      open_shards_(kMostOpenShards, int64_t(kMostOpenShards)),
      open_indexes_(kMostOpenIndexes, context.index_bytes) {
  context_.token = {};
  context_.shares = {};
  if (std::optional<Read> read = read_list(paths_, pattern, context)) {
    list_ = std::move(read->list);
    list_path_ = std::move(read->path);
    return;
  }
  if (!take_shares(pattern, context)) list_ = look_at(paths_, own_begin(paths_), context, kept_);
  if (is_large(paths_) && context.write_index && base::where().rank == 0 && kept_.empty())
    list_path_ = write_index_file(list_places(paths_, pattern, context), list_.encode(paths_));
}

ShardSet::Found ShardSet::find(int64_t sample) const {
  const auto [shard, within] = list_.find(sample);
  return find(shard, within);
}

ShardSet::Found ShardSet::find(size_t shard, int64_t sample) const {
  std::shared_ptr<const TarIndexFile> index = open_index(shard);
  std::optional<TarIndexFile::Sample> found = index->find(sample);
  if (!found) {  // that part of the file is damaged
    index = renew_index(shard);
    found = index->find(sample);
  }
  CHECK(found, "a new index of '{}' cannot be read", paths_[shard]);
  return {shard, std::move(index), std::move(*found)};
}

void ShardSet::walk(int64_t begin, int64_t end, const EachSample& each) const {
  bool goes_on = true;
  while (begin < end && goes_on) {
    const auto [shard, first] = list_.find(begin);
    const int64_t last = std::min(first + end - begin, list_.shards()[shard].samples);
    const std::shared_ptr<const File> file = open(shard);
    std::shared_ptr<const TarIndexFile> index = open_index(shard);
    auto give = [&](const TarIndexFile::Sample& sample) {
      return goes_on = each(*file, index->head(), sample);
    };
    int64_t at = index->walk(first, last, give);
    if (at < last && goes_on) {  // that part of the file is damaged
      index = renew_index(shard);
      at = index->walk(at, last, give);
      CHECK(at == last || !goes_on, "a new index of '{}' cannot be read", paths_[shard]);
    }
    begin += at - first;
  }
}

std::shared_ptr<const TarIndexFile> ShardSet::open_index(size_t shard) const {
  if (auto index = open_indexes_.find(shard)) return index;
  if (const auto kept = kept_.find(shard); kept != kept_.end()) return kept->second;
  auto index = find_tar_index(paths_[shard], list_.shards()[shard].digest, context_);
  if (!index) return renew_index(shard);
  open_indexes_.put(shard, index, index->bytes());
  return index;
}

std::shared_ptr<const TarIndexFile> ShardSet::renew_index(size_t shard) const {
  const auto index =
      forgetting_list([&] { return renew_tar_index(paths_[shard], context_).index; });
  if (index->head().digest != list_.shards()[shard].digest) fail_changed(shard);
  open_indexes_.put(shard, index, index->bytes());
  return index;
}

std::shared_ptr<const File> ShardSet::open(size_t shard) const {
  std::shared_ptr<OpenShard> open = open_shards_.find(shard);
  const bool look = open && open->time_to_look();
  if (!open) {
    open =
        forgetting_list([&] { return std::make_shared<OpenShard>(context_.local(paths_[shard])); });
    open_shards_.put(shard, open, 1);
  }
  // A staged copy has the original's size and time, and an inode of its own.
  const bool is_copy = !context_.stage_dir.empty();
  if (is_changed(list_.shards()[shard].state, open->file.state(), is_copy) ||
      (look && open->file.has_changed()))
    fail_changed(shard);
  return {open, &open->file};
}

void ShardSet::fail_changed(size_t shard) const {
  const std::string before =
      forget_list() ? "" : fmt::format("remove '{}', the list of all shards, and ", list_path_);
  throw Unreadable(
      fmt::format("'{}' has changed since it was indexed: {}start again", paths_[shard], before));
}

// A shard that has changed without being looked at here is noticed when it is opened.
std::optional<ShardSet::Read> ShardSet::read_list(const std::vector<std::string>& paths,
                                                  const std::string& pattern,
                                                  const OpenContext& context) {
  if (!is_large(paths)) return std::nullopt;
  for (const std::string& place : list_places(paths, pattern, context)) {
    const std::unique_ptr<IndexBytes> bytes = IndexBytes::map(place);
    std::optional<ShardList> list;
    if (bytes) list = ShardList::decode(bytes->view(), paths);
    if (list && is_fresh(*list, paths)) return Read{std::move(*list), place};
  }
  return std::nullopt;
}

bool ShardSet::lacks_list(const std::vector<std::string>& paths, const std::string& pattern,
                          const OpenContext& context) {
  return is_large(paths) && !read_list(paths, pattern, context);
}

std::string ShardSet::list_share(const std::vector<std::string>& paths, const OpenContext& context,
                                 int rank, int ranks) {
  try {
    Kept kept;
    const std::span<const std::string> own = share_of(paths, rank, ranks);
    const ShardList list = look_at(own, 0, context, kept);
    return kept.empty() ? list.encode(own) : "";
  } catch (const base::Error&) {
    base::end_if_asked(context.token);
    return "";
  }
}

// Shares do not fit a rank whose node has shards of its own.
bool ShardSet::take_shares(const std::string& pattern, const OpenContext& context) {
  const auto found = context.shares.find(pattern);
  if (found == context.shares.end()) return false;
  ShardList list;
  const auto ranks = int(found->second.size());
  for (int r = 0; r < ranks; ++r) {
    const std::optional<ShardList> share =
        ShardList::decode(found->second[size_t(r)], share_of(paths_, r, ranks));
    if (!share) return false;
    list.add(*share);
  }
  if (list.shards().size() != paths_.size() || !is_fresh(list, paths_)) return false;
  list_ = std::move(list);
  return true;
}

}  // namespace data
