#include "train/dataset_report.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/bad_sample.hpp"
#include "data/file.hpp"
#include "data/pipeline.hpp"
#include "data/tokenizer_of.hpp"
#include "io/files.hpp"

namespace train {
namespace {

namespace log = base::log;
using Json = nlohmann::json;

constexpr size_t kMostListed = 10000;  // broken samples in the file
constexpr int64_t kMostPrinted = 20;
constexpr size_t kMostSizes = 20;

using Histogram = std::map<int64_t, int64_t>;  // value -> how often

int64_t total(const Histogram& h) {
  return std::accumulate(h.begin(), h.end(), int64_t{0}, [](int64_t n, const auto& bin) { return n + bin.second; });
}
// The smallest value that at least `share` of all are not above.
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

// What was found in one part of the samples; parts are added.
struct Findings {
  std::map<std::string, std::map<std::pair<int64_t, int64_t>, int64_t>> sizes;  // field -> height, width -> images
  std::map<std::string, Histogram> lengths;                                     // field -> tokens -> captions
  int64_t broken = 0;
  std::map<int64_t, std::string> why;  // the first of the broken samples -> why

  void add(const Findings& other) {
    for (const auto& [field, all] : other.sizes)
      for (const auto& [size, count] : all) sizes[field][size] += count;
    for (const auto& [field, all] : other.lengths)
      for (const auto& [length, count] : all) lengths[field][length] += count;
    broken += other.broken;
    why.insert(other.why.begin(), other.why.end());
    while (why.size() > kMostListed) why.erase(std::prev(why.end()));
  }
};

// A data set's preprocessing in two parts, so that images can be looked at as they are before they are resized: up to
// its first decode, and the rest.
struct Ops {
  data::Pipeline before, after;
  std::vector<std::string> token_fields;

  static size_t cut(const std::string& text) {
    std::vector<data::Call> calls = data::parse_calls(text);
    for (size_t i = 0; i < calls.size(); ++i)
      if (calls[i].name.starts_with("decode")) return i + 1 < calls.size() ? calls[i + 1].at : text.size();
    return 0;
  }
  Ops(const std::string& text, const data::Spec& source, const data::OpEnvironment& environment, uint64_t seed)
      : before(text.substr(0, cut(text)), source, environment, seed),
        after(text.substr(cut(text)), before.spec(), environment, seed) {
    for (const auto& [field, known] : after.spec())
      if (!data::tokenizer_of(text, field).empty()) token_fields.push_back(field);
  }
};

void look(const data::Source& source, const Ops& ops, int32_t pad, int64_t index, Findings& into) {
  try {
    data::Sample sample = source.read(index);
    ops.before.apply(sample, index);
    std::vector<std::pair<std::string, std::pair<int64_t, int64_t>>> images;
    for (const auto& [field, value] : sample)
      if (const data::Array* a = std::get_if<data::Array>(&value); a && a->shape.size() == 3)
        images.push_back({field, {a->shape[0], a->shape[1]}});
    ops.after.apply(sample, index);
    for (const auto& [field, known] : ops.after.spec())
      if (std::string problem = data::mismatch(known, sample.at(field)); !problem.empty())
        base::fail(base::Exit::data, "field '{}' {}", field, problem);
    for (const auto& [field, size] : images) ++into.sizes[field][size];
    for (const std::string& field : ops.token_fields) {
      const data::Array& ids = std::get<data::Array>(sample.at(field));
      ++into.lengths[field][std::count_if(ids.i32(), ids.i32() + ids.count(), [pad](int32_t id) { return id != pad; })];
    }
  } catch (const data::Unreadable&) {
    throw;
  } catch (const base::Error& e) {
    if (e.code() != base::Exit::data) throw;
    ++into.broken;
    // A thread's samples come in order, so the first of all are among the first of each.
    if (into.why.size() < kMostListed) into.why[index] = data::one_line(e.what(), 300);
  }
}

Findings look_at_all(const data::Source& source, const Ops& ops, int32_t pad, int64_t threads) {
  Findings all;
  std::mutex mutex;
  std::exception_ptr problem;
  std::atomic<int64_t> next{0};
  auto work = [&] {
    Findings mine;
    try {
      for (int64_t i; (i = next++) < source.size();) look(source, ops, pad, i, mine);
    } catch (...) {
      std::lock_guard lock(mutex);
      problem = std::current_exception();
      next = source.size();
    }
    std::lock_guard lock(mutex);
    all.add(mine);
  };
  {
    std::vector<std::jthread> helpers;
    for (int64_t t = 1; t < threads; ++t) helpers.emplace_back(work);
    work();
  }
  if (problem) std::rethrow_exception(problem);
  return all;
}

Json report(const std::string& name, const data::Source& source, const Findings& found,
            const std::map<std::string, int64_t>& counts) {
  auto share = [](int64_t part, int64_t all) { return all ? double(part) / double(all) : 0.0; };
  int64_t samples = source.size(), broken = found.broken;
  log::line("data     {}  {} samples in {}", name, base::with_commas(samples), source.summary());
  Json json = {{"samples", samples}, {"source", source.summary()}, {"broken", broken}};

  log::line("broken     {} of {} ({:.3g} %)", base::with_commas(broken), base::with_commas(samples),
            100 * share(broken, samples));
  json["broken_samples"] = Json::array();
  int64_t shown = 0;
  for (const auto& [index, why] : found.why) {
    json["broken_samples"].push_back({{"index", index}, {"key", source.key(index)}, {"why", why}});
    if (shown++ < kMostPrinted) log::line("             {}: {}", data::one_line(source.key(index)), why);
  }
  if (broken > kMostPrinted) log::line("             and {} more", broken - kMostPrinted);

  json["images"] = Json::object(), json["captions"] = Json::object();
  for (const auto& [field, sizes] : found.sizes) {
    Histogram height, width;
    std::vector<std::pair<int64_t, std::pair<int64_t, int64_t>>> common;
    for (const auto& [size, count] : sizes)
      height[size.first] += count, width[size.second] += count, common.push_back({-count, size});
    std::sort(common.begin(), common.end());
    if (common.size() > kMostSizes) common.resize(kMostSizes);
    Json list = Json::array();
    for (const auto& [count, size] : common) list.push_back({size.first, size.second, -count});
    json["images"][field] = {{"images", total(height)},
                             {"height", summary(height)},
                             {"width", summary(width)},
                             {"sizes", sizes.size()},
                             {"most_frequent", list}};  // [height, width, images]
    log::line("images     {}: {}  height {}  width {}  {} sizes, most are {}x{} ({:.3g} %)", field,
              base::with_commas(total(height)), range(json["images"][field]["height"]),
              range(json["images"][field]["width"]), sizes.size(), common[0].second.first, common[0].second.second,
              100 * share(-common[0].first, total(height)));
  }
  for (const auto& [field, lengths] : found.lengths) {
    auto count = [&](const char* what) {
      auto it = counts.find(field + what);
      return it == counts.end() ? int64_t{0} : it->second;
    };
    int64_t captions = count(".captions"), cut = count(".captions_cut");
    Json list = Json::array();
    for (const auto& [length, n] : lengths) list.push_back({length, n});
    json["captions"][field] = {{"captions", captions},
                               {"cut", cut},
                               {"cut_share", share(cut, captions)},
                               {"tokens", summary(lengths)},
                               {"histogram", list}};  // [tokens, captions]
    log::line("captions   {}: {}  tokens {}  cut {} ({:.3g} %)", field, base::with_commas(captions),
              range(json["captions"][field]["tokens"]), base::with_commas(cut), 100 * share(cut, captions));
  }
  return json;
}

}  // namespace

void IndexOptions::bind(config::Table& t) {
  t.key("data", data, "names of [data.NAME] to read (--mode index); [] = all").on_resume(config::OnResume::may_change);
}

base::Exit report_datasets(const Recipe& recipe) {
  std::vector<std::string> names = recipe.index.data;
  if (names.empty())
    for (const auto& [name, options] : recipe.data.data) names.push_back(name);
  data::Tokenizers tokenizers = recipe.data.tokenizers();
  data::OpenContext context{.seed = uint64_t(recipe.run.seed),
                            .threads = int(recipe.data.loader.threads),
                            .index_dir = recipe.data.loader.index_dir,
                            .run_index_dir = recipe.run.dir + "/index",
                            .substitutes = true};  // what a sample lacks is that sample's fault, here
  Json json = Json::object();
  int64_t broken = 0;
  for (const std::string& name : names) {
    base::Stopwatch watch;
    const data::SourceOptions* options = recipe.data.data.at(name).source_options();
    CHECK(options, "no source options");
    try {
      Ops ops(recipe.data.preprocess_of(name), options->spec(), {.tokenizers = &tokenizers, .open = true},
              context.seed);
      std::unique_ptr<data::Source> source = options->open(context);
      double indexed_s = watch.restart();
      Findings found = look_at_all(*source, ops, int32_t(recipe.train.pad_id), recipe.data.loader.threads);
      std::map<std::string, int64_t> counts = ops.before.counts();
      for (const auto& [what, count] : ops.after.counts()) counts[what] += count;
      json[name] = report(name, *source, found, counts);
      double read_s = watch.seconds();
      json[name]["indexed_s"] = indexed_s, json[name]["read_s"] = read_s;
      log::line("time       index {:.2f} s  samples {:.2f} s = {:.0f}/s with {} threads", indexed_s, read_s,
                double(source->size()) / read_s, recipe.data.loader.threads);
      broken += found.broken;
    } catch (const base::Error& e) {
      base::fail(e.code(), "data.{}: {}", name, e.what());
    }
  }
  io::make_directories(recipe.run.dir);
  std::string path = recipe.run.dir + "/datasets.json";
  io::write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  log::line("report   {}", path);
  return broken ? base::Exit::data : base::Exit::finished;
}

}  // namespace train
