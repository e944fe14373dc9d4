// SPDX-License-Identifier: Apache-2.0
// Tests parts of a source: the requested number of samples, equal on all ranks, and no sample in
// two parts.
#include "data/sources/subset.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <set>

#include "base/hash.hpp"
#include "base/permutation.hpp"
#include "base/random.hpp"
#include "made_classes.hpp"
#include "support.hpp"

namespace data {
namespace {

class Numbers : public Source {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("n:{}", index); }
  std::string summary() const override { return "numbers"; }
  Sample read(int64_t index) const override {
    Array a(device::DType::i32, {1});
    a.i32()[0] = int32_t(index);
    return {{"x", std::move(a)}};
  }

 private:
  int64_t size_;
};

Classes no_classes(const Source&) {
  ADD_FAILURE() << "classes are read for a part of the whole set";
  return Classes({});
}

std::vector<int64_t> members_of(const Source& part) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < part.size(); ++i) {
    Sample sample = part.read(i);
    out.push_back(std::get<Array>(sample.at("x")).i32()[0]);
    EXPECT_EQ(part.key(i), fmt::format("n:{}", out.back()));
    EXPECT_EQ(std::get<Array>(part.field(i, "x")).i32()[0], out.back());
  }
  return out;
}
std::vector<int64_t> members(int64_t size, int64_t limit, int64_t skip, int64_t seed = 0) {
  return members_of(*subset_of(std::make_unique<Numbers>(size),
                               {.limit = limit, .skip = skip, .seed = seed}, no_classes));
}

// Sample i of `size` is of class i % 3 if i < 12, else of class 3.
Classes few_classes(const Source& source) {
  std::vector<uint32_t> classes;
  for (uint32_t i = 0; i < uint32_t(source.size()); ++i) classes.push_back(i < 12 ? i % 3 : 3);
  return test::classes_of(classes);
}
std::vector<int64_t> by_class(Part part, int64_t size = 40) {
  part.per_class = true;
  return members_of(*subset_of(std::make_unique<Numbers>(size), part, few_classes));
}
std::vector<int64_t> sizes_of(const std::vector<int64_t>& members) {
  std::vector<int64_t> sizes(4);
  for (int64_t i : members) ++sizes[i < 12 ? size_t(i % 3) : 3];
  return sizes;
}

TEST(Subset, PartsAreDisjointAndCoverAll) {
  std::vector<int64_t> first = members(100, 30, 0), second = members(100, 20, 30),
                       rest = members(100, 0, 50);
  EXPECT_EQ(first.size(), 30u);
  EXPECT_EQ(second.size(), 20u);
  EXPECT_EQ(rest.size(), 50u);
  std::set<int64_t> all;
  for (auto* part : {&first, &second, &rest}) {
    EXPECT_TRUE(std::is_sorted(part->begin(), part->end()));
    all.insert(part->begin(), part->end());
  }
  EXPECT_EQ(all.size(), 100u);
  EXPECT_EQ(members(100, 30, 0), first);
  EXPECT_NE(members(100, 30, 0, 1), first);
  std::vector<int64_t> head(30);
  for (int64_t i = 0; i < 30; ++i) head[size_t(i)] = i;
  EXPECT_NE(first, head) << "a part is drawn, not a prefix";
  EXPECT_EQ(members(7, 0, 0).size(), 7u);
}

// A changed part would move samples of the validation set into training.
TEST(Subset, FixedForever) {
  using Indices = std::vector<int64_t>;
  EXPECT_EQ(members(40, 6, 0), (Indices{3, 4, 5, 10, 14, 26}));
  EXPECT_EQ(members(40, 6, 6), (Indices{2, 9, 20, 23, 24, 27}));
  EXPECT_EQ(members(40, 6, 0, 5), (Indices{6, 14, 16, 18, 21, 29}));
}

TEST(Subset, Refusals) {
  for (auto part : {std::pair{101, 0}, {1, 100}, {0, 100}, {51, 50}})
    test::expect_error(base::Exit::data, {"the source has 100 samples"},
                       [&] { members(100, part.first, part.second); });
}

TEST(Subset, FractionsAreDisjointAndCoverAll) {
  auto part = [](double fraction, double skip) {
    return members_of(*subset_of(std::make_unique<Numbers>(101),
                                 {.fraction = fraction, .skip_fraction = skip}, no_classes));
  };
  const std::vector<int64_t> first = part(0.3, 0), second = part(0.2, 0.3), rest = part(0, 0.5);
  EXPECT_EQ(first.size(), 30u);
  EXPECT_EQ(second.size(), 21u);
  EXPECT_EQ(first, members(101, 30, 0)) << "a fraction is a limit";
  std::set<int64_t> all;
  for (auto* one : {&first, &second, &rest}) all.insert(one->begin(), one->end());
  EXPECT_EQ(all.size(), 101u);
  EXPECT_EQ(first.size() + second.size() + rest.size(), 101u);
  test::expect_error(base::Exit::data, {"none of 101 samples"}, [&] { part(0.001, 0); });
}

TEST(Subset, EquallyManyOfEachClass) {
  const std::vector<int64_t> first = by_class({.limit = 2}),
                             second = by_class({.limit = 1, .skip = 2});
  EXPECT_EQ(sizes_of(first), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(sizes_of(second), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
  EXPECT_NE(first, by_class({.limit = 2, .seed = 1}));
  std::set<int64_t> both(first.begin(), first.end());
  both.insert(second.begin(), second.end());
  EXPECT_EQ(both.size(), 12u);
  EXPECT_EQ(sizes_of(by_class({.skip = 1})), (std::vector<int64_t>{3, 3, 3, 27}));
  test::expect_error(base::Exit::data, {"limit = 3, skip = 2", "class '00' has 4 samples"},
                     [&] { by_class({.limit = 3, .skip = 2}); });
}

// Parts of each class keep the shares of the classes, and together they are the whole set.
TEST(Subset, FractionsOfEachClass) {
  const std::vector<int64_t> first = by_class({.fraction = 0.25}),
                             rest = by_class({.skip_fraction = 0.25});
  EXPECT_EQ(sizes_of(first), (std::vector<int64_t>{1, 1, 1, 7}));
  EXPECT_EQ(sizes_of(rest), (std::vector<int64_t>{3, 3, 3, 21}));
  std::set<int64_t> all(first.begin(), first.end());
  all.insert(rest.begin(), rest.end());
  EXPECT_EQ(all.size(), 40u);
}

// Any number of threads draws the part that a list of it gives.
TEST(Subset, PartsAreThoseOfALazyList) {
  constexpr int64_t kSize = 3001;
  const base::Permutation order(kSize);
  const base::Stream stream(9, "data.subset");
  for (const Part& part :
       {Part{.limit = 5, .seed = 9}, Part{.limit = 2999, .seed = 9},
        Part{.limit = 1400, .skip = 900, .seed = 9}, Part{.skip = 1, .seed = 9},
        Part{.fraction = 0.1, .seed = 9}, Part{.fraction = 0.9, .skip_fraction = 0.05, .seed = 9},
        Part{.limit = 3, .skip = 1, .per_class = true, .seed = 9},
        Part{.fraction = 0.5, .per_class = true, .seed = 9}}) {
    const Classes classes = few_classes(Numbers(kSize));
    std::vector<int64_t> want, seen(4);
    auto of = [&](double f, int64_t all) { return int64_t(std::floor(f * double(all) + 0.5)); };
    for (int64_t i = 0; i < kSize; ++i) {
      const int64_t sample = order.at(i, stream);
      const size_t c = part.per_class ? classes.of_sample(sample) : 0;
      const int64_t all = part.per_class ? classes.sizes()[c] : kSize, place = seen[c]++,
                    begin = part.skip + of(part.skip_fraction, all),
                    end = part.limit      ? begin + part.limit
                          : part.fraction ? of(part.skip_fraction + part.fraction, all)
                                          : all;
      if (place >= begin && place < end) want.push_back(sample);
    }
    std::sort(want.begin(), want.end());
    for (int threads : {1, 2, 7})
      EXPECT_EQ(members_of(*subset_of(std::make_unique<Numbers>(kSize), part, few_classes,
                                      {.threads = threads})),
                want)
          << part.limit << " " << part.fraction << " " << threads;
  }
}

// A changed part would move samples of the validation set into training.
TEST(Subset, ClassesFixedForever) {
  EXPECT_EQ(by_class({.limit = 1}), (std::vector<int64_t>{3, 4, 5, 14}));
}

// Drawing this part takes a part of a second, reading its file takes none.
std::unique_ptr<Source> large_part(const OpenContext& context) {
  return subset_of(std::make_unique<Numbers>(int64_t{9} << 20),
                   {.limit = int64_t{4} << 20, .seed = 3}, no_classes, context);
}
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> out;
  for (auto& entry : std::filesystem::directory_iterator(folder))
    out.push_back(entry.path().string());
  return out;
}
// Changes a bit of a part's file, and its checksum.
std::string other_part(std::string bytes) {
  bytes[bytes.size() / 2] ^= 1;
  const uint64_t sum = base::xxh3(std::string_view(bytes).substr(56));
  std::memcpy(bytes.data() + 48, &sum, 8);
  return bytes;
}

TEST(Subset, LargePartsAreKeptInAFile) {
  test::TemporaryDirectory dir;
  const auto open = large_part;
  const auto files = files_in;
  const int64_t size = int64_t{9} << 20;
  const uint64_t want = open({.threads = 2})->fingerprint();
  const OpenContext context{.threads = 2, .run_index_dir = dir / "index"};
  EXPECT_EQ(open(context)->fingerprint(), want);
  ASSERT_EQ(files(dir / "index").size(), 1u);
  const std::string path = files(dir / "index")[0], bytes = test::read_file(path);
  EXPECT_LT(bytes.size(), size_t(size) / 7 + 1000);
  EXPECT_EQ(open(context)->fingerprint(), want);
  // A bit of the file that its checksum does not know is not taken. Another one is.
  std::string other = bytes;
  other[bytes.size() / 2] ^= 1;
  test::write_file(path, other);
  EXPECT_EQ(open(context)->fingerprint(), want);
  EXPECT_EQ(test::read_file(path), bytes);
  test::write_file(path, other_part(bytes));
  EXPECT_NE(open(context)->fingerprint(), want) << "the file is read";
  EXPECT_EQ(files(dir / "index").size(), 1u);
}

// A process that holds the lock of a part's file. It renames a file to that one, and ends.
class OtherMaker {
 public:
  OtherMaker(const std::string& path, const std::string& made)
      : lock_(path + ".lock"), path_(path), made_(made) {
    if (::pipe(from_) != 0 || ::pipe(to_) != 0) throw std::runtime_error("pipe");
    child_ = ::fork();
    if (child_ == 0) hold();
    char byte = 0;
    EXPECT_EQ(::read(from_[0], &byte, 1), 1);
  }
  ~OtherMaker() {
    for (int fd : {from_[0], from_[1], to_[0], to_[1]}) ::close(fd);
  }
  void finish() {
    EXPECT_EQ(::write(to_[1], "x", 1), 1);
    int status = 1;
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    EXPECT_EQ(status, 0);
  }

 private:
  // Calls only functions that a fork of many threads may call.
  [[noreturn]] void hold() {
    struct flock all {};
    all.l_type = F_WRLCK;
    const int fd = ::open(lock_.c_str(), O_CREAT | O_RDWR, 0666);
    if (::fcntl(fd, F_SETLK, &all) != 0) ::_exit(1);
    char byte = 'x';
    if (::write(from_[1], &byte, 1) != 1 || ::read(to_[0], &byte, 1) != 1) ::_exit(2);
    ::_exit(made_.empty() || ::rename(made_.c_str(), path_.c_str()) == 0 ? 0 : 3);
  }
  std::string lock_, path_, made_;
  int from_[2], to_[2];
  pid_t child_ = -1;
};

TEST(Subset, OneProcessDrawsALargePart) {
  test::TemporaryDirectory dir;
  const OpenContext context{.threads = 2, .run_index_dir = dir / "index"};
  auto print = [&] { return large_part(context)->fingerprint(); };
  const uint64_t want = print();
  const std::string path = files_in(dir / "index")[0], bytes = test::read_file(path);
  test::write_file(path, other_part(bytes));
  const uint64_t other = print();
  ASSERT_NE(other, want);

  // This process takes the file that another process makes meanwhile. If there is none, it draws.
  for (bool makes : {true, false}) {
    std::filesystem::remove(path);
    if (makes) test::write_file(dir / "made", other_part(bytes));
    OtherMaker maker(path, makes ? dir / "made" : "");
    std::future<uint64_t> found = std::async(std::launch::async, print);
    EXPECT_EQ(found.wait_for(std::chrono::seconds(1)), std::future_status::timeout) << makes;
    maker.finish();
    EXPECT_EQ(found.get(), makes ? other : want);
    EXPECT_EQ(files_in(dir / "index"), std::vector<std::string>{path}) << "a lock stays";
  }
  EXPECT_EQ(test::read_file(path), bytes);

  // The wait can be cancelled.
  std::filesystem::remove(path);
  OtherMaker maker(path, "");
  std::stop_source stop;
  OpenContext cancelled = context;
  cancelled.token = stop.get_token();
  std::future<void> found = std::async(std::launch::async, [&] { large_part(cancelled); });
  EXPECT_EQ(found.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  stop.request_stop();
  EXPECT_THROW(found.get(), base::Error);
  maker.finish();

  // A place that takes no file has no lock either.
  test::write_file(dir / "file", "");
  const OpenContext nowhere{.threads = 2, .run_index_dir = dir / "file/index"};
  EXPECT_EQ(large_part(nowhere)->fingerprint(), want);
}

TEST(Subset, FingerprintTellsPartsApart) {
  auto print = [](int64_t limit, int64_t skip) {
    return subset_of(std::make_unique<Numbers>(50), {.limit = limit, .skip = skip}, no_classes)
        ->fingerprint();
  };
  EXPECT_EQ(print(10, 0), print(10, 0));
  EXPECT_NE(print(10, 0), print(10, 10));
}

}  // namespace
}  // namespace data
