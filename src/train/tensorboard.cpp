// SPDX-License-Identifier: Apache-2.0
// Writes what TensorBoard shows of a run (log.tensorboard): rows of metrics as curves, histograms,
// captions beside their images, the deck.
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/npy_header.hpp"
#include "data/images/encode.hpp"
#include "records/event_file.hpp"
#include "train/attempt.hpp"

namespace train {
namespace {

// Returns the group of charts of a train row's value.
const char* chart_of(const std::string& name) {
  const records::MetricInfo* info = records::find_metric(records::train_metrics(), name);
  if (!info) return "train/";  // a measure of the model
  const std::string& unit = info->unit;
  if (unit == "MiB") return "memory/";
  if (unit == "ms" || unit == "s" || unit == "1/s" || name == "mfu" || name == "hfu")
    return "speed/";
  return unit == "examples" || unit == "epochs" || unit == "h" ? "progress/" : "train/";
}

// Markdown that shows a text as it is.
std::string as_code(const std::string& text) {
  std::string out;
  for (const std::string& line : base::split(base::trim(text), '\n')) out += "    " + line + "\n";
  return out;
}

// Returns a text for a cell of a table in Markdown.
std::string cell_of(const std::string& text) {
  std::string out;
  for (const char c : base::one_line(text)) {
    if (std::string_view("\\`*_{}[]<>()#+-!|").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Returns a table of the first captions in captions.jsonl (eval/captions/captioning.cpp).
std::string caption_table(const std::string& lines, size_t most) {
  using Json = nlohmann::json;
  std::string out = "| image | caption | references | log-likelihood |\n|---|---|---|---|\n";
  size_t shown = 0;
  for (const std::string& line : base::split(lines, '\n')) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object() || shown++ == most) break;
    std::vector<std::string> references;
    for (const Json& text : row.at("references")) references.push_back(cell_of(text));
    out += fmt::format("| {} | {} | {} | {:.3f} |\n", row.at("position").get<int64_t>(),
                       cell_of(row.at("caption")), base::join(references, "; "),
                       row.at("log_likelihood").get<double>());
  }
  return out;
}

class TensorBoard : public Observer {
 public:
  explicit TensorBoard(const Attempt& attempt) : attempt_(attempt) {}

  void started() override { begin(); }
  void went_back(int64_t) override { begin(); }

  void row(const std::string& group, int64_t step, const records::MetricValues& values) override {
    records::Summary summary;
    if (records::is_histogram(group))
      summary.histogram("histograms/" + records::tensor_name(group), values);
    else
      for (const auto& [name, value] : values) summary.scalar(tag_of(group, name), value);
    file_->write(step, summary);
  }

  void evaluated(int64_t step, const Evaluated& evaluation) override {
    const std::string folder =
        fmt::format("{}/eval/{}/{:010}", attempt_.recipe.run.dir, evaluation.name, step);
    if (!io::exists(folder + "/" + kCaptions)) return;
    try {
      captions(step, evaluation.name, folder);
    } catch (const std::exception& e) {
      base::log::warning("{}: not for TensorBoard: {}", folder, e.what());
    }
  }

  void step_ends(int64_t) override {
    if (base::now_s() - flushed_s_ >= attempt_.recipe.log.flush_s) flush();
  }
  void ended(const Ending&) override {
    if (file_) flush();
  }

 private:
  static constexpr const char* kCaptions = "captions.jsonl";
  static constexpr const char* kImages = "images.npy";

  static std::string tag_of(const std::string& group, const std::string& name) {
    if (group == records::kTrainRows) return chart_of(name) + name;
    return group.substr(1) + "/" + name;  // eval/NAME/..., rms/KIND/...
  }

  // Begins a file. What an earlier attempt wrote after the restored step no longer counts. A run
  // that starts over evaluates at step 0 again.
  void begin() {
    const int64_t step = attempt_.state.step;
    file_.reset();
    file_.emplace(attempt_.recipe.run.dir + "/tensorboard", step > 0 ? step + 1 : 0);
    records::Summary summary;
    summary.text("deck", as_code(attempt_.job.deck().resolved()));
    file_->write(step, summary);
    flush();
  }

  void captions(int64_t step, const std::string& name, const std::string& folder) {
    records::Summary summary;
    const std::string tag = "captions/" + name;
    int64_t images = 0;
    if (io::exists(folder + "/" + kImages))
      images = pictures(io::read_file(folder + "/" + kImages), tag, summary);
    constexpr int64_t kWithoutImages = 8;
    const size_t shown = size_t(images > 0 ? images : kWithoutImages);
    summary.text(tag, caption_table(io::read_file(folder + "/" + kCaptions), shown));
    file_->write(step, summary);
  }

  // Adds the images of a file that eval::input_images_npy made. Returns their number.
  static int64_t pictures(const std::string& npy, const std::string& tag,
                          records::Summary& summary) {
    constexpr size_t kStart = 10;  // magic number, version, length of the header
    const size_t length = uint8_t(npy.at(8)) | size_t(uint8_t(npy.at(9))) << 8;
    const std::vector<int64_t> shape =
        checkpoint::parse_npy_header(npy.substr(kStart, length)).shape;
    const int64_t height = shape.at(1), width = shape.at(2), channels = shape.at(3);
    if (channels != 1 && channels != 3) return 0;
    for (int64_t i = 0; i < shape[0]; ++i) {
      const size_t at = kStart + length + size_t(i * height * width * channels);
      summary.png(
          fmt::format("{}/{}", tag, i), height, width, channels,
          data::png_of(reinterpret_cast<const uint8_t*>(npy.data()) + at, height, width, channels));
    }
    return shape[0];
  }

  void flush() {
    if (attempt_.directory->lost()) return;  // to another job
    file_->flush();
    flushed_s_ = base::now_s();
  }

  const Attempt& attempt_;
  std::optional<records::EventFile> file_;
  double flushed_s_ = 0;
};

}  // namespace

ObserverRow tensorboard_row() {
  return {"tensorboard", [](const Attempt& attempt) -> std::unique_ptr<Observer> {
            if (!attempt.recipe.log.tensorboard || !attempt.leads()) return nullptr;
            return std::make_unique<TensorBoard>(attempt);
          }};
}

}  // namespace train
