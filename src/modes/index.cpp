// SPDX-License-Identifier: Apache-2.0
// --mode index: reads every sample of data sets once, through all their ops, and reports the
// findings. It makes indexes, names broken samples, and counts sizes of images and lengths of
// captions. It writes RUN/datasets.json and needs neither ranks nor the lock of the run directory.
// Exit::data if any sample is broken.

#include <algorithm>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "data/bad_sample.hpp"
#include "data/dataset.hpp"
#include "io/files.hpp"
#include "modes/mode.hpp"
#include "train/job.hpp"

namespace modes {
using namespace train;
namespace {

namespace log = base::log;
using Json = nlohmann::json;

constexpr size_t kMaxListed = 10000;  // broken samples in the file
constexpr int64_t kMaxPrinted = 20;
constexpr size_t kMaxSizes = 20;

using Histogram = std::map<int64_t, int64_t>;  // value -> count

int64_t total(const Histogram& h) {
  return std::accumulate(h.begin(), h.end(), int64_t{0},
                         [](int64_t n, const auto& bin) { return n + bin.second; });
}
// Returns the smallest value that at least `share` of all values do not exceed.
int64_t quantile(const Histogram& h, double share) {
  int64_t all = total(h), seen = 0;
  for (const auto& [value, count] : h)
    if ((seen += count) >= int64_t(share * double(all) + 0.999999)) return value;
  return h.empty() ? 0 : h.rbegin()->first;
}
Json summary(const Histogram& h) {
  double sum = 0;
  for (const auto& [value, count] : h) sum += double(value) * double(count);
  return {{"min", h.begin()->first},
          {"median", quantile(h, 0.5)},
          {"mean", sum / double(total(h))},
          {"p95", quantile(h, 0.95)},
          {"max", h.rbegin()->first}};
}
std::string range(const Json& s) {
  return fmt::format("{}..{} median {} p95 {}", s["min"].get<int64_t>(), s["max"].get<int64_t>(),
                     s["median"].get<int64_t>(), s["p95"].get<int64_t>());
}

// Counts of the captions in one field of token ids.
struct Captions {
  Histogram lengths;  // tokens before the cut -> captions
  int64_t cut = 0, empty = 0, max_len = 0;
};

// Findings in one part of the samples; the parts are added up.
struct Findings {
  std::map<std::string, std::map<std::pair<int64_t, int64_t>, int64_t>>
      sizes;                                 // field -> height, width -> images
  std::map<std::string, Captions> captions;  // by field
  int64_t broken = 0;
  std::map<int64_t, std::string> why;  // index of the first broken samples -> problem

  void add(const Findings& other) {
    for (const auto& [field, all] : other.sizes)
      for (const auto& [size, count] : all) sizes[field][size] += count;
    for (const auto& [field, all] : other.captions) {
      Captions& own = captions[field];
      for (const auto& [length, count] : all.lengths) own.lengths[length] += count;
      own.cut += all.cut;
      own.empty += all.empty;
      own.max_len = all.max_len;
    }
    broken += other.broken;
    why.insert(other.why.begin(), other.why.end());
    while (why.size() > kMaxListed) why.erase(std::prev(why.end()));
  }
};

// Reads sample `index` through all ops, as at position `index` of a stream.
void look(const data::Dataset& set, int64_t index, Findings& into) {
  data::Trace trace;
  try {
    set.get(index, index, nullptr, &trace);
  } catch (const data::BadSampleError& e) {
    ++into.broken;
    // Each thread reads its samples in order, so the first broken samples of all are among the
    // first ones of each thread.
    if (into.why.size() < kMaxListed) into.why[index] = e.bad().why;
    return;
  }
  for (const auto& [field, size] : trace.images) ++into.sizes[field][size];
  for (const auto& [field, found] : trace.captions) {
    Captions& all = into.captions[field];
    all.max_len = found.max_len;
    all.empty += found.empty;
    for (int64_t n : found.tokens) {
      ++all.lengths[n];
      all.cut += n > found.max_len;
    }
  }
}

Findings look_at_all(const data::Dataset& set, int64_t threads) {
  Findings all;
  std::mutex mutex;
  std::exception_ptr problem;
  std::atomic<int64_t> next{0};
  auto work = [&] {
    Findings mine;
    try {
      for (int64_t i; (i = next++) < set.size();) look(set, i, mine);
    } catch (...) {
      std::lock_guard lock(mutex);
      problem = std::current_exception();
      next = set.size();
    }
    std::lock_guard lock(mutex);
    all.add(mine);
  };
  {
    std::vector<std::jthread> helpers;
    for (int64_t t = 1; t < threads; ++t) helpers.push_back(base::thread("index", work));
    work();
  }
  if (problem) std::rethrow_exception(problem);
  return all;
}

Json report(const data::Dataset& set, const Findings& found) {
  auto share = [](int64_t part, int64_t all) { return all ? double(part) / double(all) : 0.0; };
  int64_t samples = set.size(), broken = found.broken;
  log::line("data     {}  {} samples in {}", set.name(), base::with_commas(samples), set.summary());
  Json json = {{"samples", samples}, {"source", set.summary()}, {"broken", broken}};

  log::line("broken     {} of {} ({:.3g} %)", base::with_commas(broken), base::with_commas(samples),
            100 * share(broken, samples));
  json["broken_samples"] = Json::array();
  int64_t shown = 0;
  for (const auto& [index, why] : found.why) {
    json["broken_samples"].push_back({{"index", index}, {"key", set.key(index)}, {"why", why}});
    if (shown++ < kMaxPrinted)
      log::line("             {}: {}", base::one_line(set.key(index)), why);
  }
  if (broken > kMaxPrinted) log::line("             and {} more", broken - kMaxPrinted);

  json["images"] = Json::object();
  json["captions"] = Json::object();
  for (const auto& [field, sizes] : found.sizes) {
    Histogram height, width;
    std::vector<std::pair<int64_t, std::pair<int64_t, int64_t>>> common;
    for (const auto& [size, count] : sizes) {
      height[size.first] += count;
      width[size.second] += count;
      common.push_back({-count, size});
    }
    std::sort(common.begin(), common.end());
    if (common.size() > kMaxSizes) common.resize(kMaxSizes);
    Json list = Json::array();
    for (const auto& [count, size] : common) list.push_back({size.first, size.second, -count});
    json["images"][field] = {{"images", total(height)},
                             {"height", summary(height)},
                             {"width", summary(width)},
                             {"sizes", sizes.size()},
                             {"most_frequent", list}};  // [height, width, images]
    log::line(
        "images     {}: {}  height {}  width {}  {} sizes, most are {} high and {} wide ({:.3g} %)",
        field, base::with_commas(total(height)), range(json["images"][field]["height"]),
        range(json["images"][field]["width"]), sizes.size(), common[0].second.first,
        common[0].second.second, 100 * share(-common[0].first, total(height)));
  }
  for (const auto& [field, all] : found.captions) {
    int64_t captions = total(all.lengths);
    if (captions == 0) continue;  // lists of captions that are all empty
    Json list = Json::array();
    for (const auto& [length, n] : all.lengths) list.push_back({length, n});
    json["captions"][field] = {{"captions", captions}, {"max_len", all.max_len},
                               {"cut", all.cut},       {"cut_share", share(all.cut, captions)},
                               {"empty", all.empty},   {"tokens", summary(all.lengths)},
                               {"histogram", list}};  // [tokens before the cut, captions]
    log::line("captions   {}: {}  tokens {}  longer than max_len {}: {} ({:.3g} %)  empty {}",
              field, base::with_commas(captions), range(json["captions"][field]["tokens"]),
              all.max_len, base::with_commas(all.cut), 100 * share(all.cut, captions),
              base::with_commas(all.empty));
  }
  return json;
}

int run_index(Call& call) {
  const Recipe& recipe = call.recipe;
  std::vector<std::string> names = recipe.index.data;
  if (names.empty())
    for (const auto& [name, options] : recipe.data.data) names.push_back(name);
  // Here an incomplete sample counts as broken and does not make opening fail.
  const Job job(recipe, call.deck, nullptr, "", {.spares_samples = true});
  Json json = Json::object();
  int64_t broken = 0;
  for (const std::string& name : names) {
    base::Stopwatch watch;
    std::unique_ptr<data::Dataset> set = job.open_set(name);
    double indexed_s = watch.restart();
    Findings found = look_at_all(*set, recipe.data.loader.threads);
    json[name] = report(*set, found);
    double read_s = watch.seconds();
    json[name]["indexed_s"] = indexed_s;
    json[name]["read_s"] = read_s;
    log::line("time       index {:.2f} s  samples {:.2f} s = {:.0f}/s with {} threads", indexed_s,
              read_s, double(set->size()) / read_s, recipe.data.loader.threads);
    broken += found.broken;
  }
  io::make_directories(recipe.run.dir);
  std::string path = recipe.run.dir + "/datasets.json";
  io::write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  log::line("report   {}", path);
  return int(broken ? base::Exit::data : base::Exit::finished);
}

}  // namespace

Mode index_row() {
  return {
      .name = "index", .doc = "what the data sets hold, to DIR/datasets.json", .run = run_index};
}

}  // namespace modes
