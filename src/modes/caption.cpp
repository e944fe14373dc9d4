// SPDX-License-Identifier: Apache-2.0
// --mode caption: captions image files with given weights ([caption]). Works with mpirun and
// without it. Prints one line per image, in the order of the command line, and writes one line per
// image to caption.out:
//   {"file": "a.jpg", "caption": "a red house", "log_likelihood": -3.21, "ended": true}
// "tokens" and "attention" follow for the first caption.attention images (generated_caption.hpp),
// and a file that cannot be read has {"file": .., "error": ..}. The other images are captioned, and
// the mode then ends with Exit::data.
#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "data/bad_sample.hpp"
#include "data/image_files.hpp"
#include "data/ops/tokenizer_of.hpp"
#include "io/files.hpp"
#include "job/failure.hpp"
#include "job/stops.hpp"
#include "modes/mode.hpp"
#include "train/console.hpp"
#include "train/weight_source.hpp"

namespace modes {
using namespace train;
namespace log = base::log;
namespace {

using LineJson = nlohmann::ordered_json;

constexpr const char* kEvaluation = "caption";  // name of the evaluation whose pass captions
constexpr step::PassId kPass{0};                // the only one of the engine
constexpr const char* kImage = "image";         // the model's field

// Returns the data set whose ops and tokenizer are used (caption.data).
std::string set_of(const Recipe& recipe) {
  if (!recipe.caption.data.empty()) return recipe.caption.data;
  auto has_captions = [&](const std::string& name) {
    return !data::tokenizer_of(recipe.data.preprocess_of(name), eval::kCaptionField).empty();
  };
  for (const bool captioning : {true, false})
    for (const auto& [name, evaluator] : recipe.evals)
      if ((evaluator.kind == "captioning") == captioning && has_captions(evaluator.data))
        return evaluator.data;
  return recipe.train.parts().begin()->first;
}

// Images of one pass, as the model takes them. An image that cannot be read is black.
struct LoadedImages {
  data::Array pixels;                 // [batch, ...]
  std::vector<std::string> problems;  // by image; "" = none
};

// Reads images [first, first + batch) of the set with `threads` threads; images past its end are
// black.
LoadedImages load_images(const data::Dataset& set, int64_t first, int64_t batch, int64_t threads) {
  const data::FieldSpec& spec = set.spec().at(kImage);
  std::vector<int64_t> shape = spec.shape;
  shape.insert(shape.begin(), batch);
  LoadedImages out{data::Array(spec.type, shape), std::vector<std::string>(size_t(batch))};
  std::memset(out.pixels.bytes.data(), 0, out.pixels.bytes.size());
  const size_t bytes = out.pixels.bytes.size() / size_t(batch);
  const int64_t count = std::clamp<int64_t>(set.size() - first, 0, batch);
  std::atomic<int64_t> next = 0;
  auto read = [&] {
    for (int64_t i = next++; i < count; i = next++) {
      uint8_t* to = out.pixels.bytes.data() + size_t(i) * bytes;
      try {
        const data::Sample sample = set.get(first + i, first + i);
        const auto& image = std::get<data::Array>(sample.at(kImage));
        CHECK(image.bytes.size() >= bytes);
        std::memcpy(to, image.bytes.data(), bytes);
      } catch (const data::BadSampleError& e) {
        out.problems[size_t(i)] = e.bad().why;
      } catch (const std::exception& e) {
        out.problems[size_t(i)] = base::one_line(e.what());
      }
    }
  };
  std::vector<std::jthread> readers;
  for (int64_t t = 0; t < std::min(threads, count); ++t)
    readers.push_back(base::thread("reader", read));
  readers.clear();
  return out;
}

// One call of the mode: set_up refuses what can be refused, run does the work.
class CaptionRun {
 public:
  explicit CaptionRun(Call& call) : recipe_(call.recipe), call_(call) {}

  void set_up();
  int run();

 private:
  comm::Comm& world() { return call_.session->world(); }
  bool stopped() { return stops_->agree({}) > job::StopReason::save_file; }
  void stop_while_starting();
  void open_files(const std::string& set, const std::vector<std::string>& files);
  void choose_pass(const std::string& set);
  void print_head();
  int64_t first_of(int64_t round) { return (round * world().size() + world().rank()) * batch_; }
  std::string line_of(int64_t image, const models::Caption& caption, const std::string& problem);
  void write(const std::string& mine);

  Recipe recipe_;  // with one evaluation, whose pass captions
  Call& call_;
  std::unique_ptr<Job> job_;  // made once the size of a pass is known
  std::unique_ptr<job::Stops> stops_;
  std::vector<WeightSource> weights_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  std::unique_ptr<data::Dataset> files_;
  int64_t batch_ = 1;
  std::pair<int64_t, int64_t> grid_;
  int64_t captioned_ = 0, failed_ = 0;  // on all ranks, known by rank 0
};

void CaptionRun::set_up() {
  const CaptionOptions& options = recipe_.caption;
  const std::string set = set_of(recipe_);
  choose_pass(set);
  // Rank 0 lists the files, so that all ranks have one list.
  const std::string all = comm::on_first(world(), [&] {
    return base::join(data::find_images(call_.images), std::string_view("\0", 1));
  });
  const std::vector<std::string> files = base::split(all, '\0');
  const int64_t part = base::ceil_div(int64_t(files.size()), int64_t(world().size())),
                most =
                    recipe_.evaluate.batch ? recipe_.evaluate.batch : recipe_.train.most_per_pass();
  batch_ = options.batch ? options.batch : std::min(part, most);
  ForwardWork work = recipe_.evaluation_work();
  work.name = "captioning";
  work.batch = batch_;
  job_ = std::make_unique<Job>(recipe_, call_.deck, call_.session, call_.start.mesh_selector,
                               Job::Access{.writes_indexes = false,
                                           .trains = false,
                                           .work = work,
                                           .allow_change = call_.start.allow_change});
  const std::string tokenizer =
      data::tokenizer_of(recipe_.data.preprocess_of(set), eval::kCaptionField);
  if (!tokenizer.empty()) tokenizer_ = job_->tokenizers().get(tokenizer);
  eval::check_caption_tokenizer(tokenizer_.get(), set);
  job_->connect();
  stops_ = std::make_unique<job::Stops>(world(), recipe_.limits, "", call_.start.begin_s);
  std::vector<std::string> from;
  if (!options.from.empty()) from.push_back(options.from);
  weights_ = weight_sources(world(), recipe_, "caption.from", from);
  if (options.weights == eval::Weights::ema && !weights_.front().is_checkpoint())
    base::fail(base::Exit::config,
               "caption.weights: \"ema\" needs the average of the weights, but {} holds no "
               "average; name a checkpoint of a run with [ema]",
               weights_.front().path);
  open_files(set, files);
  if (!options.out.empty())
    comm::on_first(world(), [&] {
      io::make_directories(io::parent_of(options.out));
      io::File(options.out, io::File::Mode::create).close();
      return std::string();
    });
}

void CaptionRun::stop_while_starting() {
  if (stopped()) throw job::AskedToStop(stops_->exit(false), stops_->text(), "");
}

void CaptionRun::open_files(const std::string& set, const std::vector<std::string>& files) {
  const std::vector<std::string> bytes = recipe_.bytes_fields(job_->device().kind);
  files_ = data::open_images(recipe_.data, job_->tokenizers(), set, kImage, files,
                             {.seed = uint64_t(recipe_.run.seed), .bytes_fields = bytes});
}

// Makes the evaluation of the deck that the engine plans for.
void CaptionRun::choose_pass(const std::string& set) {
  eval::EvalOptions captioning;
  captioning.kind = "captioning";
  captioning.options = std::make_shared<eval::CaptioningOptions>(recipe_.caption.decoding);
  captioning.data = set;
  recipe_.evals = {{kEvaluation, captioning}};
  recipe_.evaluate.evaluators.clear();
  if (!eval::make_pass(captioning, *recipe_.made_model()))
    base::fail(base::Exit::config,
               "--mode caption needs a model that can {}, and model.kind = \"{}\" cannot",
               eval::row_of(captioning).needs, recipe_.model.kind);
}

void CaptionRun::print_head() {
  const eval::CaptioningOptions& decoding = recipe_.caption.decoding;
  log::line("{}", version_line());
  log::line("caption  {}  {} images  {} ranks x {} threads  {} images per rank and pass  method={}",
            recipe_.run.name, base::with_commas(files_->size()), world().size(), job_->threads(),
            batch_, base::name_of(models::kDecodeMethodNames, decoding.decode.method));
  log::line("compute  {}", compute_text(recipe_.precision));
}

// Returns the JSON text of an image.
std::string CaptionRun::line_of(int64_t image, const models::Caption& caption,
                                const std::string& problem) {
  const std::string file = files_->key(image);
  LineJson line = {{"file", file}};
  if (!problem.empty()) {
    line["error"] = problem;
  } else {
    if (!std::isfinite(caption.log_likelihood))
      base::fail(base::Exit::nonfinite,
                 "{}: {}: the log-likelihood of its caption is not finite; the weights may have "
                 "diverged",
                 weights_.front().path, file);
    line["caption"] = eval::text_of(caption, *tokenizer_);
    line["log_likelihood"] = caption.log_likelihood;
    line["ended"] = caption.ended;
    if (image < recipe_.caption.decoding.decode.attention)
      line.update(LineJson::parse(eval::attention_json(caption, *tokenizer_, grid_)));
  }
  return line.dump(-1, ' ', false, LineJson::error_handler_t::replace) + "\n";
}

// Prints and writes the lines of all ranks.
void CaptionRun::write(const std::string& mine) {
  const std::vector<std::string> all = world().gather_text(mine);
  if (world().rank() == 0) {
    const std::string text = base::join(all, "");
    for (const std::string& one : base::split(text, '\n')) {
      if (one.empty()) continue;
      const LineJson line = LineJson::parse(one);
      const std::string file = base::one_line(line["file"].get<std::string>());
      const bool failed = line.contains("error");
      (failed ? failed_ : captioned_) += 1;
      if (failed)
        log::error("{}: {}", file, line["error"].get<std::string>());
      else
        log::line("file={} caption={} log_likelihood={:.4f}{}", file,
                  base::quoted(line["caption"].get<std::string>(), 10000),
                  line["log_likelihood"].get<double>(), line["ended"] ? "" : " ended=no");
    }
    if (!recipe_.caption.out.empty()) {
      io::File file(recipe_.caption.out, io::File::Mode::append);
      file.append(text);
      file.close();
    }
  }
}

int CaptionRun::run() {
  base::Stopwatch watch;
  job_->build_engine(recipe_.run.dir + "/gemm_search.txt");
  print_head();
  step::Engine& engine = job_->engine();
  auto& pass = engine.pass<models::CaptionPass>(kPass);
  grid_ = pass.grid();
  load_weights(*job_, weights_.front(), recipe_.caption.weights == eval::Weights::ema,
               [this] { stop_while_starting(); });
  base::set_phase("caption");
  const models::DecodeOptions decode = recipe_.caption.decoding.decode_with(*tokenizer_);
  const int64_t n = files_->size(), rounds = base::ceil_div(n, batch_ * world().size());
  auto load_aside = [this](int64_t round) {
    return base::async("load images", [this, first = first_of(round)] {
      return load_images(*files_, first, batch_, recipe_.data.loader.threads);
    });
  };
  auto ahead = load_aside(0);
  std::vector<models::Caption> captions;
  for (int64_t round = 0; round < rounds; ++round) {
    if (stopped()) {
      log::line("stopped  {}; {} images have captions", stops_->text(), captioned_);
      return int(stops_->exit(false));
    }
    const LoadedImages images = ahead.get();
    if (round + 1 < rounds) ahead = load_aside(round + 1);
    const int64_t first = first_of(round), count = std::clamp<int64_t>(n - first, 0, batch_);
    const models::HostBatch host{
        .features = {{kImage, images.pixels.view()}}, .examples = batch_, .first_position = first};
    engine.forward(kPass, host, [&](nn::Context& ctx, const models::Inputs& in) {
      pass.run(ctx, in, decode, count, first, captions);
    });
    std::string lines;
    for (int64_t b = 0; b < count; ++b)
      lines += line_of(first + b, captions[size_t(b)], images.problems[size_t(b)]);
    write(lines);
  }
  const int64_t failed = world().sum(failed_);
  log::line("done     captions={} failed={} s={:.1f}", captioned_, failed, watch.seconds());
  return failed > 0 ? int(base::Exit::data) : 0;
}

int run_caption(Call& call) {
  job::catch_stop_signals(call.recipe.limits.signals);
  return job::make_and_run(*call.session, [&] {
    auto captions = std::make_unique<CaptionRun>(call);
    captions->set_up();
    return captions;
  });
}

}  // namespace

Mode caption_row() {
  return {.name = "caption",
          .doc = "captions of image files, with the weights of a run or checkpoint",
          .on_ranks = true,
          .run = run_caption,
          .images_from = "caption.from"};
}

}  // namespace modes
