// SPDX-License-Identifier: Apache-2.0
// --mode extract: writes the features of every sample of a data set at named taps of the encoder
// ([extract]) into one HDF5 file:
//   /features/TAP    [samples, width] or [samples, tokens, width], or i32 [samples] of clusters
//   /key, /sample    the samples, and /label [samples] if the set has such a field
//   /made_from       JSON text of everything that decides the numbers
#include <cmath>
#include <span>

#include "base/text.hpp"
#include "job/failure.hpp"
#include "kernels/f16_value.hpp"
#include "models/embedder.hpp"
#include "modes/sample_rows.hpp"

namespace modes {
using namespace train;
namespace {

// A tap and how its values are written.
struct WrittenTap {
  models::Tap tap;
  bool pooled = false;        // the mean over tokens is written
  std::vector<float> values;  // of a batch

  std::vector<int64_t> shape() const {
    if (tap.whole) return {};
    return pooled ? std::vector<int64_t>{tap.shape.back()} : tap.shape;
  }
};

// Returns the mean over the rows of [rows, width], summed in double in the order of the rows.
std::vector<float> mean_of_rows(const float* values, int64_t rows, int64_t width) {
  std::vector<float> out(static_cast<size_t>(width));
  for (int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += double(values[r * width + c]);
    out[size_t(c)] = float(sum / double(rows));
  }
  return out;
}

class FeatureRows : public RowMaker {
 public:
  FeatureRows(const ExtractOptions& options, models::EmbedPass& pass)
      : options_(options), pass_(pass) {
    for (const models::Tap& tap : pass.taps())
      taps_.push_back({tap, options.mean && tap.shape.size() > 1, {}});
  }

  std::vector<records::RowColumn> columns() const override {
    std::vector<records::RowColumn> out;
    for (const WrittenTap& t : taps_)
      out.push_back(
          {.name = "/features/" + t.tap.name,
           .type = t.tap.whole     ? io::H5Type::i32
                   : options_.half ? io::H5Type::half
                                   : io::H5Type::f32,
           .shape = t.shape(),
           .attributes = {
               {"tap", t.tap.name},
               {"doc", t.tap.doc},
               {"pool", std::string(t.pooled ? "mean" : "none")},
               {"rounding", std::string(t.tap.whole     ? "none: whole numbers"
                                        : options_.half ? "to the nearest float16, ties to even"
                                                        : "none: float32 as computed")}}});
    return out;
  }
  std::map<std::string, std::string> made_from() const override {
    std::vector<std::string> taps;
    for (const WrittenTap& t : taps_) taps.push_back(t.tap.name);
    return {{"extract.taps", base::join(taps, ", ")},
            {"extract.pool", options_.mean ? "mean" : "none"},
            {"extract.dtype", options_.half ? "float16" : "float32"}};
  }

  std::vector<std::string> run(step::Engine& engine, const RowBatch& batch) override {
    std::vector<float*> to;
    for (WrittenTap& t : taps_) {
      t.values.resize(size_t(batch.host.examples * t.tap.count()));
      to.push_back(t.values.data());
    }
    engine.forward(kRowPass, batch.host,
                   [&](nn::Context& ctx, const models::Inputs& in) { pass_.run(ctx, in, to); });
    std::vector<std::string> out;
    for (const WrittenTap& t : taps_) {
      std::string& bytes = out.emplace_back();
      for (int64_t i = 0; i < batch.count; ++i) {
        const float* const values = t.values.data() + i * t.tap.count();
        const int64_t width = t.tap.shape.back();
        if (t.pooled)
          add(t, mean_of_rows(values, t.tap.count() / width, width), batch, i, bytes);
        else
          add(t, {values, size_t(t.tap.count())}, batch, i, bytes);
      }
    }
    return out;
  }

 private:
  // Appends the features of example i.
  void add(const WrittenTap& t, std::span<const float> values, const RowBatch& batch, int64_t i,
           std::string& bytes) const {
    for (const float value : values)
      if (!std::isfinite(value))
        base::fail(base::Exit::nonfinite, "{}: tap {} gives {}, which is not a finite number",
                   batch.name(i), t.tap.name, value);
    if (t.tap.whole) {
      const auto number = int32_t(values[0]);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
      return;
    }
    if (!options_.half) {
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
      return;
    }
    constexpr uint16_t kInfinite = 0x7C00;
    for (const float value : values) {
      const uint16_t bits = kernels::loops::round_to_f16(value).bits;
      if ((bits & 0x7FFF) == kInfinite)
        base::fail(base::Exit::config,
                   "extract.dtype: {} has the feature {:g} at tap {}, but float16 ends at 65504; "
                   "use \"float32\", or another tap",
                   batch.name(i), value, t.tap.name);
      bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    }
  }

  const ExtractOptions& options_;
  models::EmbedPass& pass_;
  std::vector<WrittenTap> taps_;
};

int run_extract(Call& call) {
  const ExtractOptions& options = call.recipe.extract;
  auto named = [&] {
    if (options.data.empty())
      throw base::Error(base::Exit::config,
                        "extract.data: missing; name the [data.NAME] whose features are written",
                        true);
  };
  if (int failed = job::try_on_all(call.session->world(), named)) return failed;
  return write_sample_rows(
      call,
      {.name = "extract",
       .data = options.data,
       .data_key = "extract.data",
       .options = options.rows,
       .default_out = fmt::format("{}/extract/{}.h5", call.recipe.run.dir, options.data),
       .make_pass = [&options](const models::Model& model) -> std::unique_ptr<models::ForwardPass> {
         const auto& embedder = dynamic_cast<const models::Embedder&>(model);
         return embedder.make_embed_pass(options.taps.empty() ? std::vector{embedder.feature_tap()}
                                                              : options.taps);
       },
       .make = [&options](const step::Engine& engine,
                          const data::Dataset&) -> std::unique_ptr<RowMaker> {
         return std::make_unique<FeatureRows>(options, engine.pass<models::EmbedPass>(kRowPass));
       }});
}

}  // namespace

Mode extract_row() {
  return {.name = "extract",
          .doc = "features of every sample of a data set into one HDF5 file",
          .on_ranks = true,
          .run = run_extract};
}

}  // namespace modes
