// SPDX-License-Identifier: Apache-2.0
// Properties of CapPa and Cap: draws, autoregressive evaluation, sizes of the published models.
#include <cmath>
#include <set>

#include "engine_rig.hpp"
#include "models/captions/cappa.hpp"

namespace tests {

using models::Cappa;

void check_draws() {
  models::CappaOptions m = tests::small_cappa();
  m.masked_pred_prob = 0.75;
  Cappa model(m, {});
  constexpr int64_t n = 4000;
  const int64_t length = m.seq_len, masked = 6;  // of 9 tokens with ratio 0.7, truncated
  tests::MadeBatch batch(m, 0, n);
  base::Stream stream(3, "draws");
  Cappa::Draws d = model.draw(batch.labels.data(), n, 0, true, stream);
  double parallel = 0;
  std::vector<double> where(size_t(length), 0);
  bool right = true;
  for (int64_t b = 0; b < n; ++b) {
    const int32_t *label = batch.labels.data() + b * length,
                  *ids = d.decoder_ids.data() + b * length;
    parallel += d.parallel[size_t(b)];
    if (!d.parallel[size_t(b)]) {
      right &= ids[0] == 0 && std::equal(label, label + length - 1, ids + 1);
      continue;
    }
    right &= std::count(ids, ids + length, m.vocab_size) == masked;
    for (int64_t l = 0; l < length; ++l) {
      where[size_t(l)] += ids[l] == m.vocab_size;
      right &= ids[l] == m.vocab_size || ids[l] == label[l];
    }
  }
  expect(right, "autoregressive ids are shifted, parallel ones masked in place");
  expect(std::abs(parallel / double(n) - 0.75) < 0.027,
         fmt::format("{} of {} examples are parallel", parallel, n));
  for (double w : where)
    expect(std::abs(w / parallel - 6.0 / 9) < 0.035,
           fmt::format("{} of {} masks at one place", w, parallel));
  Cappa::Draws later = model.draw(batch.labels.data() + 100 * length, 50, 100, true, stream);
  expect(std::equal(later.decoder_ids.begin(), later.decoder_ids.end(),
                    d.decoder_ids.begin() + 100 * length) &&
             std::equal(later.parallel.begin(), later.parallel.end(), d.parallel.begin() + 100),
         "draws belong to the position");
  Cappa::Draws calm = model.draw(batch.labels.data(), n, 0, false, stream);
  expect(std::count(calm.parallel.begin(), calm.parallel.end(), 0) == n,
         "evaluation is autoregressive");
}

void check_cap() {
  comm::Mesh mesh =
      comm::make_mesh(*session, {1, session->world().size()}, comm::SumOrder::library);
  tests::Case c{.mesh = mesh.shape, .micro_batch = 48 / session->world().size(), .level = "run"};
  auto as_cap = [](auto&, auto& m) { m.masked_pred_prob = 0; };
  step::Engine engine(options_of(c, as_cap), mesh, device::Kind::cpu);
  stir(engine);
  double nll[48], weight[48], sum = 0;
  const int64_t n = engine.geometry().micro_batch;
  tests::MadeBatch batch(tests::small_cappa(), engine.geometry().first_example(mesh, 0), n);
  tests::score(engine, batch.host, nll, weight);
  for (int64_t i = 0; i < n; ++i) sum += nll[i] / weight[i];
  mesh.fsdp->all_reduce({&sum, device::DType::f64, 1}).wait();
  const step::StepReport& r = tests::run_step(engine, mesh, 1);
  expect(std::abs(r.loss() - sum / 48) < 1e-6 * r.loss(),
         fmt::format("evaluation says {}, training {}", sum / 48, r.loss()));
  expect(r.sums[Cappa::Sums::examples_parallel] == 0 && r.sums[Cappa::Sums::examples_ar] == 48 &&
             std::isnan(r.measures[Cappa::Measures::loss_parallel]) &&
             r.measures[Cappa::Measures::loss_ar] == r.loss(),
         "Cap is autoregressive");
  for (const models::InputSpec& spec : engine.train_pass().inputs())
    expect(spec.name != "causal", "Cap has no flags");
}

// Evaluation is autoregressive in every model: a token is predicted from those before it and from
// no other.
void check_causality() {
  Alone alone;
  for (double masked : {0.0, 0.5}) {
    tests::Case c{.mesh = {}, .level = "run"};
    step::Engine engine(options_of(c, [&](auto&, auto& m) { m.masked_pred_prob = masked; }),
                        alone.mesh, device::Kind::cpu);
    stir(engine);
    // Negative log-likelihood of the tokens at [from, to), with token `changed` of every caption
    // another one.
    auto nll = [&](int64_t from, int64_t to, int64_t changed) {
      tests::MadeBatch batch(tests::small_cappa(), 0, 48);
      Floats masks(batch.labels.size());
      for (size_t i = 0; i < masks.size(); ++i) {
        int64_t l = int64_t(i % 9);
        masks[i] = l >= from && l < to;
        batch.labels[i] = l == changed ? 5 : 7 + int32_t(i % 31);
      }
      batch.host.features["label_masks"] = device::view(masks.data(), int64_t(masks.size()));
      std::vector<double> out(48), weight(48);
      tests::score(engine, batch.host, out.data(), weight.data());
      expect(weight[7] == double(to - from), "weights are the masks");
      return out;
    };
    expect(nll(0, 4, -1) == nll(0, 4, 4), "tokens before a change are as likely as they were");
    auto before = nll(5, 9, -1), after = nll(5, 9, 4);
    for (size_t i = 0; i < 48; ++i) expect(before[i] != after[i], "tokens after a change are not");
  }
}

// cappa.md 1.7 and 1.8: what the published model of size B/16 has.
void check_inventory() {
  auto count = [](auto change) {
    models::CappaOptions m;
    m.decoder.depth = 6;
    change(m);
    Cappa model(m, {});
    int64_t elements = 0;
    std::set<std::string> paths;
    for (const shard::Parameter& p : model.parameters()) {
      elements += p.count();
      paths.insert(p.path);
    }
    return std::pair(elements, int64_t(paths.size()));
  };
  expect(count([](auto&) {}) == std::pair<int64_t, int64_t>(191669504, 281),
         "parameters of CapPa B/16");
  expect(count([](auto& m) { m.masked_pred_prob = 0; }).first == 191668736,
         "parameters of Cap B/16");
  expect(count([](auto& m) { m.decoder.bias = true; }).first == 191706368,
         "parameters of CapPa B/16 with decoder biases");
}

}  // namespace tests
