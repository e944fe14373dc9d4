// SPDX-License-Identifier: Apache-2.0
// Measures the images per second of the data path through the loader of a run, and of bare JPEG
// decoding. tools/bench_data starts this program and sends commands in turn, so that all compared
// parts alternate on the same core. A line of standard input is a command. A line of standard
// output is its answer, "IMAGES CPU_SECONDS WALL_SECONDS":
//   bare SECONDS            libjpeg-turbo alone: same files, same transform, one reused buffer
//   loader THREADS SECONDS  from the tar to batches of 32: all ops, stacked
//   ops COUNT SECONDS       one sample after the other, with the first COUNT ops and no batches
//   pipeline SECONDS TEXT   likewise, with the ops of TEXT
// Usage: data_bench SHARD.tar TOKENIZER.model        members .jpg and .txt
#include <turbojpeg.h>

#include <ctime>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "data/sources/webdataset.hpp"
#include "data/stream/loader.hpp"

namespace {

using namespace data;

constexpr int64_t kBatch = 32;
const char* const kOps[] = {
    "decode", "resize(224)", "value_range(-1, 1)",
    "tokenize('words', max_len=64, eos='sticky', inkey='text', outkey='labels')",
    "keep('image', 'labels')"};

// Returns the processor time of all threads, which other programs on the machine do not change.
double cpu_s() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

class Meter {
 public:
  double wall_s() const { return wall_.seconds(); }
  void print(int64_t images) const {
    std::cout << fmt::format("{} {:.6f} {:.6f}", images, cpu_s() - cpu_, wall_s()) << std::endl;
  }

 private:
  base::Stopwatch wall_;
  double cpu_ = cpu_s();
};

class Bench {
 public:
  Bench(const std::string& shard, const std::string& tokenizer) {
    source_.path = shard;
    source_.fields = {{"image", "jpg"}, {"text", "txt"}};
    auto words = std::make_shared<SentencepieceOptions>();
    words->path = tokenizer;
    tokenizers_ = std::make_unique<Tokenizers>(
        std::map<std::string, std::shared_ptr<const TokenizerKindOptions>>{{"words", words}});
    std::unique_ptr<Source> source = source_.open(kLookOnly);
    for (int64_t i = 0; i < source->size(); ++i)
      files_.push_back(std::get<Bytes>(source->read(i).at("image")));
  }

  void bare(double seconds) {
    tjhandle handle = tjInitDecompress();
    auto decode = [&](const Bytes& file) {
      int width = 0, height = 0, subsampling = 0, colours = 0;
      if (tjDecompressHeader3(handle, file.data(), file.size(), &width, &height, &subsampling,
                              &colours) != 0)
        base::fail(base::Exit::data, "{}", tjGetErrorStr2(handle));
      pixels_.reset(size_t(width) * size_t(height) * 3);
      if (tjDecompress2(handle, file.data(), file.size(), pixels_.data(), width, 0, height,
                        TJPF_RGB, TJFLAG_FASTDCT) != 0)
        base::fail(base::Exit::data, "{}", tjGetErrorStr2(handle));
    };
    for (const Bytes& file : files_) decode(file);
    Meter meter;
    int64_t images = 0;
    while (meter.wall_s() < seconds) decode(files_[size_t(images++) % files_.size()]);
    meter.print(images);
    tjDestroy(handle);
  }

  // Begins and ends with a full queue, so that the time covers exactly the counted images.
  void loader(int64_t threads, double seconds) {
    Open& open = loaders_[threads];
    if (!open.loader) {
      open.dataset = dataset(fmt::format("{}", fmt::join(std::begin(kOps), std::end(kOps), " | ")));
      LoaderOptions options;
      options.threads = threads;
      options.prefetch = kPrefetch;
      LoaderPlan plan;
      plan.positions = [](int64_t batch) {
        std::vector<int64_t> out;
        for (int64_t i = 0; i < kBatch; ++i) out.push_back(batch * kBatch + i);
        return out;
      };
      plan.end = int64_t{1} << 40;
      open.loader = std::make_unique<Loader>(
          *open.dataset, Order(Shuffle::exact, open.dataset->size(), 0), options, plan);
      for (int64_t i = 0; i < 2 * kPrefetch; ++i) open.loader->next();
    }
    fill(*open.loader);
    Meter meter;
    int64_t images = 0;
    for (; meter.wall_s() < seconds; images += kBatch) open.loader->next();
    fill(*open.loader);
    meter.print(images);
  }

  void ops(size_t count, double seconds) {
    const size_t used = std::min(count, std::size(kOps));
    pipeline(fmt::format("{}", fmt::join(kOps, kOps + used, " | ")), seconds);
  }

  void pipeline(const std::string& text, double seconds) {
    std::unique_ptr<Dataset> set = dataset(text);
    for (int64_t i = 0; i < set->size(); ++i) set->get(i, i);
    Meter meter;
    int64_t images = 0;
    for (; meter.wall_s() < seconds; ++images) set->get(images % set->size(), images);
    meter.print(images);
  }

 private:
  static constexpr int64_t kPrefetch = 4;
  static inline const OpenContext kLookOnly{.write_index = false};
  struct Open {
    std::unique_ptr<Dataset> dataset;
    std::unique_ptr<Loader> loader;
  };

  static void fill(const Loader& loader) {
    while (loader.ready() < kPrefetch) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::unique_ptr<Dataset> dataset(const std::string& text) const {
    Pipeline pipeline(text, source_.spec(), {.tokenizers = tokenizers_.get(), .open = true});
    return std::make_unique<Dataset>("train", source_.open(kLookOnly), std::move(pipeline));
  }

  WebdatasetOptions source_;
  std::unique_ptr<Tokenizers> tokenizers_;
  std::vector<Bytes> files_;
  Bytes pixels_;
  std::map<int64_t, Open> loaders_;  // by threads; idle ones take no processor time
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) base::fail(base::Exit::config, "usage: data_bench SHARD.tar TOKENIZER.model");
  Bench bench(argv[1], argv[2]);
  for (std::string line, command; std::getline(std::cin, line);) {
    std::istringstream words(line);
    int64_t count = 0;
    double seconds = 0;
    words >> command;
    if (command == "loader" || command == "ops") words >> count;
    words >> seconds;
    if (!words || count < 0) base::fail(base::Exit::config, "what is '{}'?", line);
    if (command == "bare")
      bench.bare(seconds);
    else if (command == "loader")
      bench.loader(count, seconds);
    else if (command == "ops")
      bench.ops(size_t(count), seconds);
    else if (command == "pipeline")
      bench.pipeline({std::istreambuf_iterator<char>(words), {}}, seconds);
    else
      base::fail(base::Exit::config, "what is '{}'?", line);
  }
  return 0;
} catch (const base::Error& e) {
  std::cerr << "error: " << e.what() << "\n";
  return int(e.code());
}
