// SPDX-License-Identifier: Apache-2.0
#include "modes/sample_rows.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "checkpoint/digest.hpp"
#include "data/stream/host_batch.hpp"
#include "host/threads.hpp"
#include "job/failure.hpp"
#include "job/stops.hpp"
#include "records/bad_samples.hpp"
#include "train/console.hpp"
#include "train/weight_source.hpp"

namespace modes {
using namespace train;
namespace log = base::log;
namespace {

constexpr double kProgress_s = 10;  // between two progress lines

// Columns that every file has besides its mode's own columns.
constexpr const char *kKey = "/key", *kSample = "/sample", *kLabel = "/label";

bool has_label(const data::Dataset& set) {
  const auto label = set.spec().find("label");
  return label != set.spec().end() && label->second.kind == data::FieldSpec::Kind::array &&
         label->second.type == device::DType::i32 && label->second.fixed() &&
         data::count_of(label->second.shape) == 1;
}

// Appends the bytes of a number. Files are little endian, like the machine.
template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class RowWriter {
 public:
  RowWriter(Call& call, const RowMode& mode)
      : call_(call),
        recipe_(call.recipe),
        mode_(mode),
        job_(call.recipe, call.deck, call.session, call.start.mesh_selector,
             {.writes_indexes = false,
              .trains = false,
              .work = {.name = mode.name,
                       .data_sets = mode.data_sets(),
                       .passes = {mode.make_pass},
                       .batch = mode.options.batch,
                       .labels_of = {mode.data}},
              .allow_change = call.start.allow_change}),
        out_(mode.options.out.empty() ? mode.default_out : mode.options.out) {}

  void set_up();
  int run();

 private:
  comm::Comm& world() { return job_.session().world(); }
  const data::Dataset& set() const { return job_.evaluated(mode_.data); }
  const data::Dataset& text_set() const {
    return mode_.text_data.empty() ? set() : job_.evaluated(mode_.text_data);
  }
  bool stopped() { return stops_->agree({.step_s = round_s_}) > job::StopReason::save_file; }
  void stop_while_starting();
  void print_head();
  void open_file(int64_t step);
  std::map<std::string, std::string> made_from(int64_t step, uint64_t digest);
  bool make_rows();
  records::RowBlock block_of(const data::Batch& batch, int64_t first);
  std::string common_column(const records::RowColumn& column, const data::Batch& batch,
                            int64_t count) const;
  void print_progress(double seconds);
  int leave();

  Call& call_;
  const Recipe& recipe_;
  const RowMode& mode_;
  Job job_;
  std::string out_;
  std::unique_ptr<job::Stops> stops_;
  WeightSource source_;
  std::unique_ptr<records::BadSamples> bad_samples_;
  std::unique_ptr<RowMaker> maker_;
  std::vector<records::RowColumn> columns_;
  std::unique_ptr<records::RowFile> file_;
  int64_t begun_at_ = 0;  // rows that an earlier job wrote
  double round_s_ = 0;    // time of the last round
};

void RowWriter::set_up() {
  const std::string key = std::string(mode_.name) + ".from";
  const std::string& from = mode_.options.from;
  job_.connect();
  stops_ = std::make_unique<job::Stops>(world(), recipe_.limits, "", call_.start.begin_s);
  auto poll = [this] { stop_while_starting(); };
  source_ = weight_sources(world(), recipe_, key,
                           from.empty() ? std::vector<std::string>() : std::vector{from})
                .front();
  if (mode_.options.average && !source_.is_checkpoint())
    throw base::Error(base::Exit::config,
                      fmt::format("{}.weights: \"ema\" needs the average of the weights, but {} "
                                  "holds no average; name a checkpoint of a run with [ema]",
                                  mode_.name, source_.path),
                      true);
  job_.stage_data(poll);
  job_.open_data(mode_.data_sets(), poll);
  if (set().size() == 0)
    throw base::Error(base::Exit::data,
                      fmt::format("{}: [data.{}] holds no sample", mode_.data_key, mode_.data),
                      true);
  bad_samples_ = std::make_unique<records::BadSamples>(
      world(), "", recipe_.data.loader.max_bad_sample_fraction,
      std::map<std::string, int64_t>{{mode_.data, set().size()}});
}

void RowWriter::stop_while_starting() {
  if (stopped()) throw job::AskedToStop(stops_->exit(false), stops_->text(), "");
}

void RowWriter::print_head() {
  const step::Engine& engine = job_.engine();
  log::line("{}", version_line());
  log::line("{:<8} {}  {} ranks x {} threads  {} examples per rank and pass  {} parameters",
            mode_.name, recipe_.run.name, world().size(), job_.threads(),
            engine.geometry().micro_batch, base::with_commas(engine.layout().total_elements()));
  log::line("compute  {}", compute_text(recipe_.precision));
  host::print_binding(world(), job_.session().host(), job_.threads());
  print_memory(engine);
  log::line("data     {}  {}, {} samples", mode_.data, set().summary(),
            base::with_commas(set().size()));
}

// Everything that decides a row's bits, so that a file is never continued with other rows.
std::map<std::string, std::string> RowWriter::made_from(int64_t step, uint64_t digest) {
  std::map<std::string, std::string> out = maker_->made_from();
  out["mode"] = mode_.name;
  out["program"] = version();
  out["step"] = std::to_string(step);
  out["digest of the weights"] = fmt::format("{:016x}", digest);
  out[fmt::format("{}.weights", mode_.name)] = mode_.options.average ? "ema" : "raw";
  out[mode_.data_key] = mode_.data;
  out["samples"] = std::to_string(set().size());
  out["digest of the samples' keys"] = fmt::format("{:016x}", set().fingerprint());
  out["data." + mode_.data + ".preprocess"] = recipe_.data.preprocess_of(mode_.data);
  out["device"] = device::name_of(job_.device().kind);
  for (const auto& [key, value] : job_.deck().flat())
    if (key.starts_with("model.") || key == "precision.compute" || key == "determinism.level")
      out[key] = value;
  return out;
}

// Opens the file once the weights are known.
void RowWriter::open_file(int64_t step) {
  step::Engine& engine = job_.engine();
  const uint64_t digest =
      checkpoint::digest_of(world(), engine.state(), checkpoint::kWeightRoot, engine.queue());
  const int64_t n = set().size(), ranks = world().size(), rank = world().rank();
  int64_t longest = 1;
  for (int64_t i = n * rank / ranks; i < n * (rank + 1) / ranks; ++i)
    longest = std::max(longest, int64_t(base::one_line(set().key(i)).size()));
  columns_ = maker_->columns();
  columns_.push_back({.name = kKey,
                      .type = io::H5Type::text,
                      .text_bytes = world().max(longest),
                      .attributes = {{"doc", "the sample that the row was made from"}}});
  columns_.push_back({.name = kSample,
                      .type = io::H5Type::i64,
                      .attributes = {{"doc",
                                      "its number, which is the number of the row unless a "
                                      "broken sample was replaced"}}});
  if (has_label(set()))
    columns_.push_back(
        {.name = kLabel, .type = io::H5Type::i32, .attributes = {{"doc", "its field label"}}});
  records::RowPlan plan{
      .path = out_,
      .key = fmt::format("{}.out", mode_.name),
      .rows = n,
      .columns = columns_,
      .lists = maker_->lists(),
      .attributes = {{"program", version()},
                     {"mode", mode_.name},
                     {"run", recipe_.run.name},
                     {"deck", call_.start.deck_path},
                     {"weights_file", source_.path},
                     {"weights", std::string(mode_.options.average ? "ema" : "raw")},
                     {"step", step},
                     {"data", mode_.data},
                     {"compute", std::string(name_of(recipe_.precision.compute))}},
      .made_from = made_from(step, digest)};
  file_ = std::make_unique<records::RowFile>(world(), std::move(plan));
  begun_at_ = file_->done();
}

// Returns the bytes of one of the columns that each file has.
std::string RowWriter::common_column(const records::RowColumn& column, const data::Batch& batch,
                                     int64_t count) const {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sample = batch.indices[size_t(i)];
    if (column.name == kSample) {
      append(bytes, sample);
    } else if (column.name == kLabel) {
      append(bytes, batch.array("label").i32()[i]);
    } else {
      std::string key = base::one_line(set().key(sample));
      CHECK(int64_t(key.size()) <= column.text_bytes, "the key of sample {} has {} bytes", sample,
            key.size());
      key.resize(size_t(column.text_bytes));
      bytes += key;
    }
  }
  return bytes;
}

// Computes the rows of a batch, whose first row is `first`.
records::RowBlock RowWriter::block_of(const data::Batch& batch, int64_t first) {
  const int64_t count = std::clamp<int64_t>(set().size() - first, 0, batch.size());
  const RowBatch rows{
      .host = data::host_batch(batch, first), .count = count, .name = [&](int64_t i) {
        return base::one_line(set().key(batch.indices[size_t(i)]));
      }};
  records::RowBlock block{
      .begin = first, .count = count, .columns = maker_->run(job_.engine(), rows)};
  for (size_t c = block.columns.size(); c < columns_.size(); ++c)
    block.columns.push_back(common_column(columns_[c], batch, count));
  return block;
}

void RowWriter::print_progress(double seconds) {
  const int64_t done = file_->done(), left = set().size() - done;
  const double rate = double(done - begun_at_) / std::max(seconds, 1e-9);
  log::line("rows={} of={} examples_per_s={:.1f} eta={}", done, set().size(), rate,
            rate > 0 ? base::hms(double(left) / rate) : "?");
}

// Computes and writes all rows that are missing. Returns false if the job must stop.
bool RowWriter::make_rows() {
  const int64_t n = set().size(), batch = job_.engine().geometry().micro_batch;
  const int64_t ranks = world().size(), begin = begun_at_;
  const int64_t rounds = base::ceil_div(n - begin, batch * ranks);
  auto first_of = [=, rank = world().rank()](int64_t round) {
    return begin + (round * ranks + rank) * batch;
  };
  auto positions = [=](int64_t round) {
    std::vector<int64_t> out(static_cast<size_t>(batch));
    for (int64_t i = 0; i < batch; ++i) out[size_t(i)] = first_of(round) + i;
    return out;
  };
  data::LoaderOptions options = recipe_.data.loader;
  options.log = bad_samples_->log();
  data::Loader loader(set(), data::Order(data::Shuffle::none, n, 0), options,
                      {.positions = positions, .first = 0, .end = rounds, .examples = n});
  base::Stopwatch all, since_line;
  for (int64_t round = 0; round < rounds; ++round) {
    if (stopped()) return false;
    base::Stopwatch watch;
    const data::BatchPtr loaded = loader.next();
    file_->write(block_of(*loaded, first_of(round)),
                 std::min(n, begin + (round + 1) * ranks * batch));
    round_s_ = watch.seconds();
    if (since_line.seconds() < kProgress_s) continue;
    since_line.restart();
    print_progress(all.seconds());
  }
  if (options.substitutes) bad_samples_->agree();
  file_->publish();
  print_progress(all.seconds());
  return true;
}

int RowWriter::leave() {
  file_->settle();
  const int code = int(stops_->exit(file_->done() > begun_at_));
  log::line("stopped  {}; {} of {} rows are written, and the same command continues",
            stops_->text(), file_->done(), set().size());
  log::line("done     exit={}", code);
  return code;
}

int RowWriter::run() {
  base::Stopwatch watch;
  job_.build_engine(recipe_.run.dir + "/gemm_search.txt");
  step::Engine& engine = job_.engine();
  maker_ = mode_.make(engine, text_set());
  print_head();
  const int64_t step =
      load_weights(job_, source_, mode_.options.average, [this] { stop_while_starting(); });
  open_file(step);
  base::set_phase(mode_.name);
  log::line("out      {}  {} rows, {} MiB{}", out_, base::with_commas(set().size()),
            base::mebibytes(file_->bytes()),
            begun_at_ > 0 ? fmt::format(", {} of them written before", base::with_commas(begun_at_))
                          : "");
  if (!file_->complete() && !make_rows()) return leave();
  log::line("done     exit=0 out={} rows={} s={:.1f}", out_, set().size(), watch.seconds());
  return 0;
}

}  // namespace

int write_sample_rows(Call& call, const RowMode& mode) {
  job::catch_stop_signals(call.recipe.limits.signals);
  return job::make_and_run(*call.session, [&] {
    auto writer = std::make_unique<RowWriter>(call, mode);
    writer->set_up();
    return writer;
  });
}

}  // namespace modes
