// SPDX-License-Identifier: Apache-2.0
#include "data/sources/subset.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include "base/cancel.hpp"
#include "base/error.hpp"
#include "base/fused.hpp"
#include "base/hash.hpp"
#include "base/permutation.hpp"
#include "base/random.hpp"
#include "base/ranked_bits.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "data/sources/index_bytes.hpp"
#include "data/sources/index_file.hpp"
#include "data/sources/making_lock.hpp"

namespace data {
namespace {

// The places [begin, end) of a part among `all` samples. what: "the source" or a class.
struct Places {
  int64_t begin = 0, end = 0;
  Places(const Part& part, int64_t all, const std::string& what) {
    auto of = [all](double fraction) {
      return std::min(all, int64_t(std::floor(base::fused(fraction, double(all), 0.5))));
    };
    begin = part.skip_fraction > 0 ? of(part.skip_fraction) : part.skip;
    end = part.fraction > 0 ? of(part.skip_fraction + part.fraction)
          : part.limit > 0  ? begin + part.limit
                            : all;
    const bool exact = part.fraction == 0 && part.skip_fraction == 0;
    if (exact && (begin >= end || end > all))
      base::fail(base::Exit::data, "limit = {}, skip = {}: {} has {} samples; lower limit or skip",
                 base::with_commas(part.limit), base::with_commas(part.skip), what,
                 base::with_commas(all));
  }
  int64_t count() const { return std::max<int64_t>(end - begin, 0); }
  bool has(int64_t place) const { return place >= begin && place < end; }
};

// Calls work(begin, end) for equal parts of [0, count), each in a thread of its own. `work` gets
// the number of the part, too.
template <class Work>
void in_parts(int64_t count, int threads, Work work) {
  std::vector<std::exception_ptr> errors(size_t(std::max(threads, 1)));
  const auto parts = int64_t(errors.size());
  auto one = [&](int64_t p) {
    try {
      work(size_t(p), count / parts * p + std::min(p, count % parts),
           count / parts * (p + 1) + std::min(p + 1, count % parts));
    } catch (...) {
      errors[size_t(p)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int64_t p = 1; p < parts; ++p)
      helpers.push_back(base::thread("subset", [&one, p] { one(p); }));
    one(0);
  }
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
}

// The order that a part's seed draws.
struct Drawn {
  const base::TabulatedPermutation order;
  const std::stop_token& token;
  Drawn(const Part& part, int64_t all, const std::stop_token& t)
      : order(base::Permutation(all), base::Stream(uint64_t(part.seed), "data.subset")), token(t) {}
  // Calls use(samples) for the samples at places [begin, end), in pieces in this order.
  template <class Use>
  void pieces(int64_t begin, int64_t end, Use use) const {
    constexpr int64_t kPiece = 4096;
    std::vector<int64_t> samples;
    for (int64_t at = begin; at < end; at += kPiece) {
      base::end_if_asked(token);
      samples.resize(size_t(std::min(kPiece, end - at)));
      order.values(at, samples);
      use(std::span<const int64_t>(samples));
    }
  }
};

base::RankedBits draw_places(const Part& part, const Places& places, int64_t all,
                             const OpenContext& context) {
  base::RankedBits chosen(all);
  const Drawn drawn(part, all, context.token);
  // Draws the smaller side: the part, or what it leaves out.
  const int64_t inside = places.count();
  const bool rest = inside > all / 2;
  in_parts(rest ? all - inside : inside, context.threads, [&](size_t, int64_t begin, int64_t end) {
    auto mark = [&](int64_t from, int64_t to) {
      drawn.pieces(from, to, [&](std::span<const int64_t> samples) { chosen.set_all(samples); });
    };
    if (!rest) return mark(places.begin + begin, places.begin + end);
    mark(begin, std::min(end, places.begin));
    mark(std::max(begin, places.begin) + inside, end + inside);
  });
  if (rest) chosen.flip_all();
  chosen.count();
  return chosen;
}

// Drawing a large part takes seconds to minutes. Other ranks and later starts find it in a file,
// and the ranks of a node share its pages.
class PartFile {
 public:
  // `head`: a line that names the format, and all that the part follows from.
  PartFile(std::string head, const Source& source, const OpenContext& context)
      : all_(source.size()),
        head_(std::move(head)),
        places_(index_places_in(source.folder(), fmt::format(".{:016x}.part", base::xxh3(head_)),
                                context)) {}
  std::optional<base::RankedBits> read() const {
    for (const std::string& place : places_) {
      const std::shared_ptr<const IndexBytes> bytes = IndexBytes::map(place);
      if (!bytes || !bytes->view().starts_with(head_)) continue;
      const std::string_view all = bytes->view();
      if (int64_t(all.size()) != int64_t(head_.size()) + 8 + base::RankedBits::byte_count(all_))
        continue;
      const std::string_view bits = all.substr(head_.size() + 8);
      if (IndexReader(all.substr(head_.size())).number() == int64_t(base::xxh3(bits)))
        return base::RankedBits(all_, bits, bytes);
    }
    return std::nullopt;
  }
  const std::vector<std::string>& places() const { return places_; }
  void write(const base::RankedBits& chosen) const {
    IndexWriter w;
    w.out = head_;
    w.number(int64_t(base::xxh3(chosen.bytes())));
    w.out += chosen.bytes();
    write_index_file(places_, w.out);
  }

 private:
  int64_t all_;
  std::string head_;
  std::vector<std::string> places_;
};

constexpr int64_t kManyDraws = int64_t{1} << 22;  // of a second or more

// Reads the part from its file, or draws it. Where the file system has locks, one rank draws, and
// the others wait for its file.
template <class Draw>
base::RankedBits kept_in(const PartFile& file, const OpenContext& context, Draw draw) {
  if (std::optional<base::RankedBits> found = file.read()) return std::move(*found);
  if (!context.write_index) return draw();
  MakingLock lock(file.places(), context.token);
  // Removing the lock's file also makes a client of NFS look at the folder again. If there is no
  // file then, the other process failed, and all who waited draw side by side.
  if (lock.waited()) lock.release();
  if (std::optional<base::RankedBits> found = file.read()) return std::move(*found);
  base::RankedBits chosen = draw();
  if (!lock.holds() && base::where().rank > 0) return chosen;
  file.write(chosen);
  if (std::optional<base::RankedBits> shared = file.read()) return std::move(*shared);
  return chosen;
}

base::RankedBits drawn_part(const Part& part, const Source& source, const OpenContext& context) {
  const int64_t all = source.size();
  const Places places(part, all, "the source");
  if (std::min(places.count(), all - places.count()) < kManyDraws)
    return draw_places(part, places, all, context);
  IndexWriter head;
  head.out = "trainer part 1\n ";
  for (int64_t number : {all, places.begin, places.end, part.seed}) head.number(number);
  return kept_in(PartFile(std::move(head.out), source, context), context,
                 [&] { return draw_places(part, places, all, context); });
}

base::RankedBits draw_by_class(const Part& part, const Classes& classes,
                               const OpenContext& context) {
  const int threads = context.threads;
  std::vector<Places> places;
  for (int64_t c = 0; c < classes.count(); ++c)
    places.emplace_back(part, classes.sizes()[size_t(c)],
                        fmt::format("class '{}'", base::one_line(classes.names()[size_t(c)])));
  const int64_t all = classes.samples();
  base::RankedBits chosen(all);
  const Drawn drawn(part, all, context.token);
  auto class_of = [&](int64_t sample) { return size_t(classes.of_sample(sample)); };
  // A thread must know how many samples of each class come before its part of the order.
  std::vector<std::vector<int64_t>> seen(size_t(std::max(threads, 1)) + 1,
                                         std::vector<int64_t>(places.size()));
  if (threads > 1)
    in_parts(all, threads, [&](size_t p, int64_t begin, int64_t end) {
      drawn.pieces(begin, end, [&](std::span<const int64_t> samples) {
        for (int64_t sample : samples) ++seen[p + 1][class_of(sample)];
      });
    });
  for (size_t p = 1; p < seen.size(); ++p)
    for (size_t c = 0; c < places.size(); ++c) seen[p][c] += seen[p - 1][c];
  in_parts(all, threads, [&](size_t p, int64_t begin, int64_t end) {
    drawn.pieces(begin, end, [&](std::span<const int64_t> samples) {
      for (int64_t sample : samples) {
        const size_t c = class_of(sample);
        if (places[c].has(seen[p][c]++)) chosen.set(sample);
      }
    });
  });
  chosen.count();
  return chosen;
}

base::RankedBits drawn_by_class(const Part& part, const Source& source, const Classes& classes,
                                const OpenContext& context) {
  const int64_t all = classes.samples(), print = int64_t(classes.print());
  if (all < kManyDraws || print == 0) return draw_by_class(part, classes, context);
  IndexWriter head;
  head.out = "trainer part by class 1\n";
  for (int64_t number : {all, print, part.limit, part.skip, std::bit_cast<int64_t>(part.fraction),
                         std::bit_cast<int64_t>(part.skip_fraction), part.seed})
    head.number(number);
  return kept_in(PartFile(std::move(head.out), source, context), context,
                 [&] { return draw_by_class(part, classes, context); });
}

// Keeps a bit for each sample of the source.
class Subset : public Source {
 public:
  Subset(std::unique_ptr<Source> source, base::RankedBits chosen)
      : source_(std::move(source)), chosen_(std::move(chosen)) {
    if (size() == 0)
      base::fail(base::Exit::data, "fraction leaves none of {} samples; raise it",
                 base::with_commas(source_->size()));
  }

  int64_t size() const override { return chosen_.ones(); }
  Sample read(int64_t index) const override { return source_->read(chosen_.one(index)); }
  Value field(int64_t index, const std::string& name) const override {
    return source_->field(chosen_.one(index), name);
  }
  std::string key(int64_t index) const override { return source_->key(chosen_.one(index)); }
  std::string summary() const override {
    return fmt::format("{} of {} samples of {}", base::with_commas(size()),
                       base::with_commas(source_->size()), source_->summary());
  }
  uint64_t fingerprint() const override { return print_of(source_->fingerprint()); }
  uint64_t earlier_fingerprint() const override { return print_of(source_->earlier_fingerprint()); }
  std::string folder() const override { return source_->folder(); }
  std::optional<Origin> origin(const std::string& field) const override {
    std::optional<Origin> out = source_->origin(field);
    if (out) out->name += fmt::format(" {:016x}", base::xxh3(chosen_.bytes()));
    return out;
  }

 private:
  uint64_t print_of(uint64_t source) const {
    Fingerprint print;
    print.add(int64_t(source));
    std::vector<int64_t> samples;
    samples.reserve(4096);
    chosen_.for_each([&](int64_t i) {
      samples.push_back(i);
      if (samples.size() < samples.capacity()) return;
      print.add(samples);
      samples.clear();
    });
    return print.add(samples).value();
  }
  std::unique_ptr<Source> source_;
  base::RankedBits chosen_;
};

}  // namespace

std::unique_ptr<Source> subset_of(std::unique_ptr<Source> source, const Part& part,
                                  const std::function<Classes(const Source&)>& classes,
                                  const OpenContext& context) {
  if (part.whole()) return source;
  base::RankedBits chosen = part.per_class
                                ? drawn_by_class(part, *source, classes(*source), context)
                                : drawn_part(part, *source, context);
  return std::make_unique<Subset>(std::move(source), std::move(chosen));
}

}  // namespace data
