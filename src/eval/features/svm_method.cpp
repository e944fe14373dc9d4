// SPDX-License-Identifier: Apache-2.0
#include "eval/features/svm_method.hpp"

#include "eval/fits/linear_svm.hpp"

namespace eval {

void SvmMethod::bind_shared(config::Table& t, const std::string& costs_doc,
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
        "label; positive = shown, 0 = not, negative = not known: " +
            unknown_doc)
      .on_resume(may);
  t.key("num_classes", num_classes, "classes of the field that targets names")
      .min(0)
      .max(kMaxClasses)
      .on_resume(may);
  bind_tap(t);
  if (!targets.empty() && num_classes == 0)
    t.error("num_classes",
            "missing; with targets, set it to the number of values in the field of targets");
  if (targets.empty() && num_classes > 0)
    t.error("num_classes",
            "without targets, the labels give the number of classes; leave the key out");
}

void SvmMethod::answer(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
                       std::span<float> to) const {
  if (targets.empty()) return FeatureMethod::answer(set, batch, i, to);
  const float* from = batch.features.at(targets).f32() + i * int64_t(to.size());
  std::copy_n(from, to.size(), to.begin());
}

SvmRows SvmMethod::rows_of(const FeatureTable& table) const {
  const int64_t count = table.rows * (table.features + 1);
  auto memory = std::make_shared<comm::NodeBuffer>(context->world.node_buffer(
      *context->ledger, kFeatureCategory, count * int64_t(sizeof(double))));
  auto* all = static_cast<double*>(memory->memory.data());
  if (memory->first) write_svm_rows(table.x(), table.rows, table.features, all);
  context->world.barrier();
  return {std::move(memory), {all, size_t(count)}};
}

Features SvmMethod::fields(const models::Model& model) const {
  Features fields = FeatureMethod::fields(model);
  if (targets.empty()) return fields;
  fields.erase("label");
  fields[targets] = {.type = device::DType::f32,
                     .shape = {num_classes},
                     .key = fmt::format("eval kind {}: num_classes", words().kind)};
  return fields;
}

}  // namespace eval
