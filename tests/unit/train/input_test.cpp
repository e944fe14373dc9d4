// SPDX-License-Identifier: Apache-2.0
// Tests the stream of global batches. It must not depend on the ranks or on restarts, and its start
// at step 1,000,000 must be as fast as at 0.
#include "train/input.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/random.hpp"
#include "io/h5.hpp"
#include "tests/unit/recorded.hpp"

namespace train {
namespace {

constexpr int64_t kBatch = 24;

// Sample i of data set `offset` is the number i.
class Numbers : public data::Source {
 public:
  Numbers(int64_t size, int64_t offset) : size_(size), offset_(offset) {}
  int64_t size() const override { return size_; }
  std::string key(int64_t index) const override { return fmt::format("{}", index); }
  std::string summary() const override { return ""; }
  data::Sample read(int64_t index) const override {
    data::Array a(device::DType::i32, {});
    *a.i32() = int32_t(index + offset_);
    return {{"x", std::move(a)}};
  }

 private:
  int64_t size_, offset_;
};

data::Mixture::Part part(const std::string& name, int64_t size, int64_t offset,
                         data::Shuffle shuffle) {
  auto set = std::make_shared<data::Dataset>(
      name, std::make_unique<Numbers>(size, offset),
      data::Pipeline("", {{"x", data::FieldSpec::array(device::DType::i32, {})}}, {}));
  return {set, data::Order(shuffle, size, 11, {16, 3}, name)};
}

// Reads the ids of global batches [first, last) by all ranks of a mesh, each with its own loader.
void read_steps(const data::Mixture& mixture, comm::MeshShape shape, int64_t micro_batch,
                int64_t first, int64_t last, std::vector<std::vector<int32_t>>& batches) {
  step::Geometry g = step::derive_geometry(kBatch, micro_batch, shape, {});
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    comm::Mesh mesh;
    mesh.shape = shape;
    mesh.replica_index = rank / shape.fsdp;
    mesh.fsdp_index = rank % shape.fsdp;
    data::LoaderOptions options;
    options.threads = 1 + rank % 2;
    data::Loader loader(mixture, options, training_plan(g, mesh, first, last));
    for (int64_t step = first; step < last; ++step)
      for (int64_t m = 0; m < g.accumulation; ++m) {
        data::BatchPtr batch = loader.next();
        ASSERT_EQ(batch->size(), g.micro_batch) << "every rank must read equally many examples";
        for (int64_t i = 0; i < batch->size(); ++i) {
          int64_t position = batch->positions[size_t(i)];
          ASSERT_EQ(position / kBatch, step);
          int32_t& place = batches[size_t(step)][size_t(position % kBatch)];
          ASSERT_EQ(place, -1) << "read twice";
          place = batch->array("x").i32()[i];
        }
      }
    EXPECT_FALSE(loader.has_next());
  }
}

struct Meshes {
  comm::MeshShape shape;
  int64_t micro_batch;
};
// The list begins with three ranks. Other counts, accumulations and axes follow.
const Meshes kMeshes[] = {{{1, 3}, 8}, {{1, 1}, 5}, {{2, 1}, 12}, {{2, 2}, 2},
                          {{3, 2}, 4}, {{8, 1}, 1}, {{3, 1}, 4}};

void same_with_restarts(const data::Mixture& mixture, int64_t steps, uint64_t seed) {
  std::vector<std::vector<int32_t>> straight(size_t(steps), std::vector<int32_t>(kBatch, -1)),
      restarted = straight;
  read_steps(mixture, {1, 3}, 8, 0, steps, straight);
  base::Stream draws(seed, "test");
  int64_t at = 0;
  for (uint64_t n = 0; at < steps; ++n) {
    int64_t end = std::min(steps, at + 1 + int64_t(draws.bits64(n) % 7));
    const Meshes& m = kMeshes[n % std::size(kMeshes)];
    read_steps(mixture, m.shape, m.micro_batch, at, end, restarted);
    at = end;
  }
  EXPECT_EQ(restarted, straight);
}

TEST(Stream, SameBatchesThroughRestartsOnOtherRankCounts) {
  constexpr int64_t kSize = 331, kSteps = 60;  // 4 epochs and a part, epochs end inside of batches
  for (data::Shuffle shuffle : {data::Shuffle::none, data::Shuffle::exact, data::Shuffle::blocks}) {
    data::Mixture::Part only = part("", kSize, 0, shuffle);
    data::Mixture mixture(*only.dataset, only.order);
    same_with_restarts(mixture, kSteps, uint64_t(shuffle));
    std::vector<std::vector<int32_t>> batches(kSteps, std::vector<int32_t>(kBatch, -1));
    read_steps(mixture, {3, 1}, 4, 0, kSteps, batches);
    std::vector<int32_t> all, ids;
    for (auto& b : batches) all.insert(all.end(), b.begin(), b.end());
    std::vector<int32_t> expected(kSize);
    std::iota(expected.begin(), expected.end(), 0);
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      ids.assign(all.begin() + epoch * kSize, all.begin() + (epoch + 1) * kSize);
      std::sort(ids.begin(), ids.end());
      EXPECT_EQ(ids, expected) << "every sample exactly once in epoch " << epoch;
    }
  }
}

TEST(Stream, MixtureThroughRestartsOnOtherRankCounts) {
  std::map<std::string, data::Mixture::Part> parts{
      {"a", part("a", 50, 0, data::Shuffle::exact)},
      {"b", part("b", 177, 1000, data::Shuffle::blocks)}};
  data::Mixture mixture(parts, {{"a", 1}, {"b", 3}});
  same_with_restarts(mixture, 40, 5);
  std::vector<std::vector<int32_t>> batches(40, std::vector<int32_t>(kBatch, -1));
  read_steps(mixture, {1, 1}, 24, 0, 40, batches);
  for (auto& b : batches)
    EXPECT_EQ(std::count_if(b.begin(), b.end(), [](int32_t id) { return id < 1000; }), kBatch / 4);
  EXPECT_EQ(mixture.seen(0, 40 * kBatch), 10 * kBatch);
}

// ---- a start far away, and memory, with real tar shards

struct Shards {
  std::string dir;
  Shards() {
    std::string name = (std::filesystem::temp_directory_path() / "trainer_input_XXXXXX").string();
    dir = mkdtemp(name.data());
    for (int s = 0; s < 2; ++s) {
      std::ofstream tar(fmt::format("{}/s-{}.tar", dir, s), std::ios::binary);
      for (int i = 0; i < 100; ++i)
        add(tar, fmt::format("{:04}.cls", s * 100 + i), fmt::format("{}", s * 100 + i));
      tar << std::string(1024, '\0');
    }
    {
      std::lock_guard lock(io::h5_mutex());
      io::H5File rows = io::H5File::create(dir + "/rows.h5");
      rows.create_extendible("/x", io::H5Type::i64, 300, 64);
      std::vector<int64_t> values(300);
      std::iota(values.begin(), values.end(), 0);
      rows.write<int64_t>("/x", values);
      rows.close();
    }
    std::ofstream captions(dir + "/captions.tsv");
    for (const char* image : {"a_420_61x47.jpg", "b_444_40x56.jpg", "e_rgb_37x53.png"})
      captions << image << "\ta b\n";
  }
  ~Shards() { std::filesystem::remove_all(dir); }
  static void add(std::ofstream& tar, const std::string& name, const std::string& bytes) {
    std::string h(512, '\0');
    auto put = [&](size_t at, const std::string& s) { h.replace(at, s.size(), s); };
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, fmt::format("{:011o}", bytes.size()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, std::string("ustar\00000", 8));
    int sum = 0;
    for (char c : h) sum += uint8_t(c);
    put(148, fmt::format("{:06o}", sum) + '\0' + ' ');
    tar << h << bytes << std::string((512 - bytes.size() % 512) % 512, '\0');
  }
  std::string deck(const std::string& shuffle, const std::string& data) const {
    return fmt::format(R"(
[data.tars]
kind = "webdataset"
path = "{}/s-{{0..1}}.tar"
fields = {{ x = "cls" }}
[data.more]
kind = "webdataset"
path = "{}/s-1.tar"
fields = {{ x = "cls" }}
[data.made]
kind = "synthetic"
image_size = 8
examples = 1000000
[data.rows]
kind = "hdf5"
path = "{}/rows.h5"
fields = {{ x = "x: i32" }}
[data.files]
kind = "folder"
path = "{}"
captions = "{}/captions.tsv"
preprocess = 'decode | resize(16) | keep("image")'
[train]
total_steps = 1
global_batch = 8192
shuffle = "{}"
{}
)",
                       dir, dir, dir, tests::source_file("tests/golden/images"), dir, shuffle,
                       data);
  }
};

struct Root {
  TrainOptions train;
  data::Sections data;
  void bind(config::Table& t) {
    t.table("train", train, "");
    data.bind(t);
  }
};

double seconds_to_first_batch(const Recipe& recipe, int64_t step) {
  auto begin = std::chrono::steady_clock::now();
  std::unique_ptr<data::Mixture> mixture = open_training_data(recipe, recipe.data.tokenizers(), {});
  step::Geometry g = step::derive_geometry(8192, 64, {.replica = 128, .fsdp = 1}, {});
  comm::Mesh mesh;
  mesh.shape = {.replica = 128, .fsdp = 1};
  mesh.replica_index = 77;
  data::Loader loader(*mixture, recipe.data.loader, training_plan(g, mesh, step, step + 2));
  EXPECT_EQ(loader.next()->positions[0], step * 8192 + 77 * 64);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Stream, ResumingFarAwayCostsNothing) {
  Shards shards;
  for (const char* shuffle : {"none", "exact", "blocks"})
    for (const char* what : {"data = \"tars\"", "data = \"made\"", "data = \"rows\"",
                             "data = \"files\"", "mixture = { tars = 1.0, more = 2.5 }"}) {
      Root root;
      config::Deck deck({"deck.toml", shards.deck(shuffle, what), {}}, root);
      deck.throw_if_any();
      Recipe recipe;
      recipe.train = root.train;
      recipe.data = root.data;
      seconds_to_first_batch(recipe, 0);  // makes the indexes
      // Other programs on the machine disturb a try, but not each of them.
      double near = 1e9, far = 1e9;
      for (int i = 0; i < 100 && (i < 3 || far > 3 * near); ++i) {
        near = std::min(near, seconds_to_first_batch(recipe, 0));
        far = std::min(far, seconds_to_first_batch(recipe, 1'000'000));
      }
      RecordProperty(fmt::format("{}_{}_ms", shuffle, what[0] == 'm' ? "mixture" : what + 8),
                     fmt::format("{} {}", near * 1e3, far * 1e3));
      std::printf("%-8s %-40s step 0: %.2f ms, step 1,000,000: %.2f ms\n", shuffle, what,
                  near * 1e3, far * 1e3);
      EXPECT_LE(far, 3 * near) << shuffle << " " << what;
    }
}

int64_t resident_kib() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE) / 1024;
}

std::string file_content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The loader's memory must not grow with the epochs, for images of several sizes and formats,
// decoded by two threads.
TEST(Stream, MemoryIsFlatOverEpochs) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  Shards shards;
  const char* images[] = {"a_420_61x47.jpg", "b_444_40x56.jpg", "d_progressive_50x50.jpg",
                          "e_rgb_37x53.png"};
  {
    std::ofstream tar(shards.dir + "/images.tar", std::ios::binary);
    for (int i = 0; i < 200; ++i)
      Shards::add(tar, fmt::format("{:04}.image", i),
                  file_content(fmt::format("{}/images/{}", tests::source_file("tests/golden"),
                                           images[i % 4])));
    tar << std::string(1024, '\0');
  }
  std::string text = shards.deck("exact", "data = \"images\"") +
                     fmt::format(
                         "[data.images]\nkind = \"webdataset\"\npath = \"{}/images.tar\"\n"
                         "fields = {{ image = \"image\" }}\n"
                         "preprocess = \"decode | resize(64) | value_range(-1, 1)\"\n",
                         shards.dir);
  Root root;
  config::Deck deck({"deck.toml", text, {}}, root);
  deck.throw_if_any();
  Recipe recipe;
  recipe.train = root.train;
  recipe.data = root.data;
  recipe.data.loader.threads = 2;
  std::unique_ptr<data::Mixture> mixture = open_training_data(recipe, recipe.data.tokenizers(), {});
  ASSERT_EQ(mixture->size(), 200);
  int64_t per_epoch = mixture->size() / 4;
  step::Geometry g = step::derive_geometry(4, 4, {}, {});
  comm::Mesh mesh;
  data::Loader loader(*mixture, recipe.data.loader, training_plan(g, mesh, 0, 20 * per_epoch));
  int64_t early = 0;
  for (int64_t step = 0; loader.has_next(); ++step) {
    if (step == 3 * per_epoch) early = resident_kib();
    loader.next();
  }
  int64_t grown = resident_kib() - early;
  std::printf("resident after epoch 3: %ld KiB, after epoch 20: %+ld KiB\n", long(early),
              long(grown));
  // The scheduling of threads may use a few more batches of 192 KiB than before. 3,400 samples
  // passed through.
  EXPECT_LT(grown, 1700) << "KiB";
}

}  // namespace
}  // namespace train
