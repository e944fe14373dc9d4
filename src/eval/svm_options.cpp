// SPDX-License-Identifier: Apache-2.0
#include "eval/svm_options.hpp"

namespace eval {

void SvmOptions::bind_shared(config::Table& t, const std::string& costs_doc,
                             const std::string& unknown_doc) {
  const auto may = config::OnResume::may_change;
  bind_train_data(t,
                  "name of a [data.NAME] table: the images that the machines are fitted to; `data` "
                  "holds the images that they are tested on");
  t.key("costs", costs, costs_doc)
      .above(0)
      .check([this] { return problem_of_list(costs); })
      .on_resume(may);
  t.key("targets", targets,
        "for images that show several classes: f32 field [num_classes] that is read instead of "
        "label; positive = shown, 0 = not, negative = not known, which " +
            unknown_doc + " and the test leaves out")
      .on_resume(may);
  t.key("num_classes", num_classes, "classes of the field that targets names")
      .min(0)
      .max(kMaxClasses)
      .on_resume(may);
  bind_tap(t);
  if (!targets.empty() && num_classes == 0)
    t.error("num_classes", "targets needs it: the number of values in that field");
  if (targets.empty() && num_classes > 0)
    t.error("num_classes", "without targets the labels give the classes; leave it out");
}

void SvmOptions::answer(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
                        std::span<float> to) const {
  if (targets.empty()) return answer_label(set, batch, i, to);
  const float* from = batch.features.at(targets).f32() + i * int64_t(to.size());
  std::copy_n(from, to.size(), to.begin());
}

bool SvmOptions::gather(const Context& context, const data::Dataset& set, const std::string& stage,
                        int64_t further_bytes, FeatureTable& out) const {
  return gather_features(
      context, set, stage, answers(),
      [this](const data::Dataset& of, const models::HostBatch& batch, int64_t i,
             std::span<float> to) { answer(of, batch, i, to); },
      further_bytes, out);
}

int64_t SvmOptions::classes(const FeatureTable& table) const {
  return targets.empty() ? labelled_rows(table).classes : num_classes;
}

float SvmOptions::shows(const FeatureTable& table, int64_t i, int64_t c) const {
  if (targets.empty()) return float(table.answer[size_t(i)] == float(c));
  return table.answer[size_t(i * table.answers + c)];
}

Features SvmOptions::fields_for(const models::Model& model, const std::string& kind) const {
  Features fields = labelled_images(model, "eval kind " + kind);
  if (targets.empty()) return fields;
  fields.erase("label");
  fields[targets] = {.type = device::DType::f32,
                     .shape = {num_classes},
                     .key = fmt::format("eval kind {}: num_classes", kind)};
  return fields;
}

}  // namespace eval
