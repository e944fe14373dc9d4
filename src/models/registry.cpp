#include <algorithm>

#include "models/model.hpp"

namespace models {

// One row for each model: src/models/NAME.cpp ends in NAME_row().
#define MODELS(ROW) ROW(cappa)

#define DECLARE(name) Registered name##_row();
#define CALL(name) name##_row(),
MODELS(DECLARE)

const std::vector<Registered>& registry() {
  static const std::vector<Registered> rows = {MODELS(CALL)};
  return rows;
}

namespace {
const Registered& row(const std::string& kind) {
  for (const Registered& r : registry())
    if (r.name == kind) return r;
  base::fail(base::Exit::config, "model.kind: no model \"{}\"", kind);
}
}  // namespace

void ModelOptions::bind(config::Table& t) {
  std::vector<std::string> names;
  for (const Registered& r : registry()) names.push_back(r.name);
  t.kind(
      "kind", kind, options, names, [](const std::string& k) { return row(k).make_options(); }, "which model");
}

void MemoryOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.moved("logits_mb", "model.logits_mb");
  t.key("recompute", recompute, "what backward computes again instead of keeping")
      .one_of({"none", "gelu", "mlp", "block"})
      .on_resume(may);
}

Recompute MemoryOptions::policy() const {
  if (recompute == "none") return Recompute::none;
  if (recompute == "gelu") return Recompute::gelu;
  return recompute == "mlp" ? Recompute::mlp : Recompute::block;
}

std::unique_ptr<Model> make_model(const ModelOptions& options, const MemoryOptions& memory) {
  return row(options.kind).make(*options.options, memory);
}

}  // namespace models
