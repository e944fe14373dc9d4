// SPDX-License-Identifier: Apache-2.0
// --mode predict: writes scores of classes and the predicted class of every sample of a data set
// ([predict]) into one HDF5 file:
//   /score, /prediction                               evaluators of kind scoring
//   /logit, /prediction, /top_class, /top_probability  kind classification
//   /class           the texts of the classes, if they are known
//   /key, /sample    the samples, and /label [samples] if the set has such a field
//   /made_from       JSON text of everything that decides the numbers
#include <cmath>

#include "eval/predictor.hpp"
#include "job/failure.hpp"
#include "modes/sample_rows.hpp"

namespace modes {
using namespace train;
namespace {

class PredictionRows : public RowMaker {
 public:
  PredictionRows(std::string evaluator, std::unique_ptr<eval::Predictor> predictor)
      : evaluator_(std::move(evaluator)), predictor_(std::move(predictor)) {}

  std::vector<records::RowColumn> columns() const override {
    std::vector<records::RowColumn> out;
    for (const eval::PredictedColumn& c : predictor_->columns())
      out.push_back({.name = "/" + c.name,
                     .type = io::h5_type_of(c.type),
                     .shape = c.shape,
                     .attributes = {{"doc", c.doc}, {"unit", c.unit}}});
    return out;
  }
  std::map<std::string, std::vector<std::string>> lists() const override {
    const std::vector<std::string> classes = predictor_->classes();
    if (classes.empty()) return {};
    return {{"/class", classes}};
  }
  std::map<std::string, std::string> made_from() const override {
    std::map<std::string, std::string> out = predictor_->made_from();
    out["predict.evaluator"] = evaluator_;
    return out;
  }

  std::vector<std::string> run(step::Engine& engine, const RowBatch& batch) override {
    std::vector<std::string> out;
    std::vector<device::View> views;
    const std::vector<records::RowColumn> rows = columns();
    const std::vector<eval::PredictedColumn> types = predictor_->columns();
    for (const records::RowColumn& c : rows)
      out.emplace_back(size_t(batch.host.examples * c.row_bytes()), '\0');
    for (size_t c = 0; c < rows.size(); ++c)
      views.push_back({out[c].data(), types[c].type, batch.host.examples * rows[c].elements()});
    engine.forward(kRowPass, batch.host, [&](nn::Context& ctx, const models::Inputs& in) {
      predictor_->run(ctx, in, views);
    });
    for (size_t c = 0; c < rows.size(); ++c) {
      out[c].resize(size_t(batch.count * rows[c].row_bytes()));
      for (int64_t i = 0; i < batch.count * rows[c].elements(); ++i)
        if (!finite(views[c], i))
          base::fail(base::Exit::nonfinite, "{}: its {} is not a finite number",
                     batch.name(i / rows[c].elements()), types[c].name);
    }
    return out;
  }

 private:
  static bool finite(const device::View& values, int64_t i) {
    if (values.type == device::DType::f32) return std::isfinite(values.f32()[i]);
    return values.type != device::DType::f64 || std::isfinite(values.f64()[i]);
  }

  std::string evaluator_;
  std::unique_ptr<eval::Predictor> predictor_;
};

int run_predict(Call& call) {
  const PredictOptions& options = call.recipe.predict;
  auto named = [&] {
    if (options.evaluator.empty())
      throw base::Error(base::Exit::config,
                        "predict.evaluator: missing; name an [eval.NAME] of kind scoring or "
                        "classification, whose classes are predicted",
                        true);
  };
  if (int failed = job::try_on_all(call.session->world(), named)) return failed;
  const eval::EvalOptions& evaluator = call.recipe.evals.at(options.evaluator);
  const eval::Predicts& predicts = *eval::row_of(evaluator).predicts;
  const std::string data = options.data.empty() ? evaluator.data : options.data;
  const std::map<std::string, std::string> sets = eval::data_sets_of(evaluator);
  const auto text_data = sets.find("text_data");
  return write_sample_rows(
      call, {.name = "predict",
             .data = data,
             .data_key = options.data.empty() ? fmt::format("eval.{}.data", options.evaluator)
                                              : "predict.data",
             .text_data = text_data == sets.end() ? "" : text_data->second,
             .options = options.rows,
             .default_out = fmt::format("{}/predict/{}.h5", call.recipe.run.dir, options.evaluator),
             .make_pass =
                 [&](const models::Model& model) {
                   return predicts.make_pass(model, *evaluator.options);
                 },
             .make = [&](const step::Engine& engine,
                         const data::Dataset& texts) -> std::unique_ptr<RowMaker> {
               return std::make_unique<PredictionRows>(
                   options.evaluator,
                   predicts.make(*evaluator.options, texts, engine.pass(kRowPass), options.top_k));
             }});
}

}  // namespace

Mode predict_row() {
  return {.name = "predict",
          .doc = "scores and predicted class of every sample of a data set into one HDF5 file",
          .on_ranks = true,
          .run = run_predict};
}

}  // namespace modes
