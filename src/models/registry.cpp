// SPDX-License-Identifier: Apache-2.0
#include "models/model.hpp"

namespace models {

// One row for each model: src/models/NAME.cpp ends in NAME_row().
#define MODELS(ROW) \
  ROW(cappa)        \
  ROW(classifier)   \
  ROW(linear_probe) \
  ROW(simclr)       \
  ROW(moco)         \
  ROW(swav)         \
  ROW(barlow_twins) ROW(dino) ROW(npid) ROW(rotnet) ROW(jigsaw) ROW(deepcluster_v2) ROW(pirl)

REGISTRY(registry, Registered, "model", MODELS)

void ModelOptions::bind(config::Table& t) {
  t.kind("kind", kind, options, registry(), "which model");
}

void MemoryOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.moved("logits_mb", "model.logits_mb");
  t.choice("recompute", recompute, kRecomputeNames,
           "what backward computes again instead of keeping")
      .on_resume(may);
}

std::unique_ptr<Model> make_model(const ModelOptions& options, const MemoryOptions& memory) {
  return registry().at(options.kind).make(*options.options, memory);
}

}  // namespace models
