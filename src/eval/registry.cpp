#include "eval/evaluator.hpp"

namespace eval {

// One row for each evaluator: src/eval/NAME.cpp ends in NAME_row().
#define EVALUATORS(ROW) ROW(perplexity)

#define DECLARE(name) Registered name##_row();
#define CALL(name) name##_row(),
EVALUATORS(DECLARE)

const std::vector<Registered>& registry() {
  static const std::vector<Registered> rows = {EVALUATORS(CALL)};
  return rows;
}

namespace {
const Registered& row(const std::string& kind) {
  for (const Registered& r : registry())
    if (r.name == kind) return r;
  base::fail(base::Exit::config, "eval: no evaluator \"{}\"", kind);
}
}  // namespace

void EvalOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  std::vector<std::string> names;
  for (const Registered& r : registry()) names.push_back(r.name);
  t.kind(
      "kind", kind, options, names, [](const std::string& k) { return row(k).make_options(); }, "which evaluator");
  t.key("data", data, "name of a [data.NAME] table").required().on_resume(may);
  t.duration("every", every, "how often; 0 = never but at start or end").on_resume(may);
  t.key("at_start", at_start, "before the first step of a new run, too").on_resume(may);
  t.key("at_end", at_end, "after the last step, too").on_resume(may);
}

const Registered& row_of(const EvalOptions& options) { return row(options.kind); }

std::unique_ptr<Evaluator> make_evaluator(const EvalOptions& options) {
  return row(options.kind).make(*options.options);
}

void share_values(comm::Comm& world, std::vector<double>& values) {
  // x + 0 is exact, so this sum only moves.
  world.all_reduce({values.data(), device::DType::f64, int64_t(values.size())}).wait();
}

}  // namespace eval
