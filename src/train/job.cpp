// SPDX-License-Identifier: Apache-2.0
#include "train/job.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/memory_limit.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "host/gemm_choice.hpp"
#include "host/threads.hpp"
#include "kernels/instruction_choice.hpp"
#include "models/sample_count.hpp"
#include "train/changes.hpp"

namespace train {
namespace {

// Returns the deck's mesh, or all ranks on the fsdp axis if it does not fit them: values of forward
// passes do not depend on the mesh, and so the weights take the least memory.
comm::MeshShape forward_mesh(const comm::MeshOptions& options, int ranks,
                             const std::string& selector) {
  comm::wanted_ranks(options, selector);  // refuses a selector that matches no rule
  try {
    return comm::resolve_mesh(options, ranks, selector);
  } catch (const base::Error& e) {
    base::log::line("mesh     1 x {} instead: {}", ranks, e.what());
    return {1, ranks};
  }
}

}  // namespace

Job::Job(const Recipe& recipe, config::Deck& deck, comm::Session* session,
         std::string mesh_selector, Access access)
    : recipe_(recipe),
      deck_(deck),
      session_(session),
      mesh_selector_(std::move(mesh_selector)),
      access_(access),
      tokenizers_(recipe.data.tokenizers()) {
  recipe.log.set_levels();
}

void Job::connect() {
  const base::Span span("connect ranks");
  threads_ = host::choose_threads(recipe_.run.threads, session_->local_size());
  base::need_address_space(base::stack_bytes(threads_) + (int64_t{64} << 20),
                           fmt::format("starting {} threads (run.threads)", threads_));
  host::start_threads(threads_);
  device_ = host::choose_device(*session_, recipe_.run.device, recipe_.precision.compute);
  for (const auto& [name, e] : recipe_.evals)
    if (device_.kind == device::Kind::cuda && e.compute == eval::Compute::bf16)
      host::choose_device(*session_, recipe_.run.device, host::Compute::bf16,
                          fmt::format("eval.{}.compute", name));
  choose_instructions(recipe_.run.cpu);
  const int ranks = session_->world().size();
  const comm::MeshShape shape = access_.trains
                                    ? comm::resolve_mesh(recipe_.mesh, ranks, mesh_selector_)
                                    : forward_mesh(recipe_.mesh, ranks, mesh_selector_);
  // Everything that can be refused is refused before anything is created.
  if (access_.trains)
    step::derive_geometry(recipe_.train.global_batch, recipe_.train.most_per_pass(), shape,
                          recipe_.determinism);
  // Evaluators exchange no sums whose order matters, and the tree needs a power of two.
  const bool tree = recipe_.determinism.mesh() && access_.trains;
  mesh_ = host::connect_ranks(*session_, recipe_.mesh, shape,
                              tree ? comm::SumOrder::tree : comm::SumOrder::library, device_);
}

// Chooses the instructions of this process, before any op is prepared.
void Job::choose_instructions(kernels::Instructions widest) const {
  if (device_.kind == device::Kind::cpu)
    return kernels::choose_instructions(widest, recipe_.determinism.anywhere());
  if (recipe_.determinism.anywhere())
    throw base::Error(base::Exit::config,
                      fmt::format("determinism.level: {}", step::kAnywhereIsForCpus), true);
}

void Job::connect_on_paper(int ranks) {
  device_ = host::planned_device(recipe_.run.device, recipe_.precision.compute);
  choose_instructions(kernels::Instructions::automatic);
  paper_ = comm::make_plan_comm(ranks);
  mesh_ = comm::make_plan_mesh(comm::resolve_mesh(recipe_.mesh, ranks, mesh_selector_), *paper_);
}

void Job::stage_data(const comm::Poll& poll) {
  std::set<std::string> names =
      access_.trains ? data_sets_of(recipe_.evals) : access_.work.data_sets;
  if (access_.trains)
    for (const auto& [name, weight] : recipe_.train.parts()) names.insert(name);
  stage_dir_ = train::stage_data(*session_, recipe_, names, poll);
}

data::OpenContext Job::context(const std::string& evaluated_set) const {
  const data::LoaderOptions& loader = recipe_.data.loader;
  const bool reads_indexes = access_.writes_indexes || !access_.trains;
  return {.seed = uint64_t(recipe_.run.seed),
          .threads = reads_indexes ? int(loader.threads) : 1,
          .index_dir = loader.index_dir,
          .run_index_dir = reads_indexes ? recipe_.run.dir + "/index" : "",
          .write_index = access_.writes_indexes,
          .index_bytes = loader.index_mb << 20,
          .substitutes = access_.spares_samples || loader.substitutes,
          .limits = recipe_.value_limits(evaluated_set),
          .bytes_fields = recipe_.bytes_fields(device_.kind),
          .stage_dir = stage_dir_,
          .shares = shares_};
}

void Job::open_data(const std::set<std::string>& evaluated, const comm::Poll& poll) {
  if (session_) {
    std::set<std::string> names = evaluated;
    if (access_.trains)
      for (const auto& [name, weight] : recipe_.train.parts()) names.insert(name);
    shares_ = list_shares(session_->world(), recipe_, names, context(), poll);
  }
  auto open = [&](const std::stop_token& token) -> std::string {
    data::OpenContext with_token = context();
    with_token.token = token;
    if (access_.trains) data_ = open_training_data(recipe_, tokenizers_, with_token);
    for (const std::string& name : evaluated) evaluated_[name] = open_set(name, token);
    return "";
  };
  if (!session_) {
    open({});
    return;
  }
  comm::beside(session_->world(), open, poll);
  shares_.clear();
  agree_and_check();
}

void Job::agree_and_check() const {
  std::vector<const data::Dataset*> sets;
  if (data_)
    for (const data::Mixture::Part& p : data_->parts()) sets.push_back(p.dataset.get());
  for (const auto& [name, set] : evaluated_) sets.push_back(set.get());
  agree_on_data(session_->world(), sets);
  std::map<std::string, data::Spec> specs;
  for (const data::Dataset* set : sets) specs[set->name()] = set->spec();
  recipe_.check_opened(deck_, data_length(), specs, access_.work.labels_of);
}

ClassSets Job::class_sets() const {
  ClassSets sets{.names = {}, .written = access_.work.labels_of};
  for (const auto& [name, set] : evaluated_) sets.names.insert(name);
  for (const auto& [name, was] : closed_) sets.names.insert(name);
  if (access_.trains)
    for (const auto& [name, weight] : recipe_.train.parts()) sets.names.insert(name);
  return sets;
}

std::string Job::classes() const {
  return class_text(recipe_, *recipe_.made_model(), class_sets());
}

std::string Job::tokenizer_text() const {
  std::string out;
  for (const auto& [name, print] : tokenizers_.fingerprints())
    out += fmt::format("{} {:016x}\n", name, print);
  return out;
}

void Job::check_lists(const std::string& classes, const std::string& tokenizers,
                      const std::string& file) const {
  comm::on_first(session_->world(), [&] {
    const std::string problem = class_text_problem(recipe_, engine_->model(), class_sets(), classes,
                                                   file, access_.allow_change);
    if (!problem.empty()) base::fail(base::Exit::config, "{}", problem);
    const std::vector<std::string> trained = base::split(tokenizers, '\n');
    for (const std::string& own : base::split(tokenizer_text(), '\n')) {
      const std::string name = own.substr(0, own.find(' '));
      const bool other = std::ranges::any_of(
          trained, [&](const std::string& t) { return t.starts_with(name + " ") && t != own; });
      if (name.empty() || !other || allows_change(access_.allow_change, "tokenizer." + name))
        continue;
      base::fail(base::Exit::config,
                 "tokenizer.{0}: its file differs from the file of the training of {1}, so ids may "
                 "mean other texts: name the file of the training; if ids mean the same texts, add "
                 "--allow-change tokenizer.{0}",
                 name, file);
    }
    return std::string();
  });
}

void Job::close_evaluated(const std::set<std::string>& keep) {
  std::erase_if(evaluated_, [&](const auto& named) {
    const auto& [name, set] = named;
    if (keep.contains(name)) return false;
    closed_[name] = {set->size(), set->fingerprint()};
    return true;
  });
}

void Job::open_evaluated(const std::set<std::string>& names, const comm::Poll& poll) {
  std::set<std::string> missing;
  for (const std::string& name : names)
    if (!evaluated_.contains(name)) missing.insert(name);
  if (missing.empty()) return;
  auto open = [&](const std::stop_token& token) -> std::string {
    for (const std::string& name : missing) {
      std::unique_ptr<data::Dataset> set = open_set(name, token);
      const Checked& was = closed_.at(name);
      if (set->size() != was.size || set->fingerprint() != was.fingerprint)
        base::fail(base::Exit::data,
                   "data.{}: its samples have changed since this job began: {} then, {} now, with "
                   "other keys, sizes or places. Start the job again",
                   name, was.size, set->size());
      evaluated_[name] = std::move(set);
    }
    return "";
  };
  comm::beside(session_->world(), open, poll);
}

int64_t Job::evaluated_size(const std::string& name) const {
  const auto closed = closed_.find(name);
  return closed == closed_.end() ? evaluated(name).size() : closed->second.size;
}

std::unique_ptr<data::Dataset> Job::open_set(const std::string& name) const {
  return open_set(name, {});
}

std::unique_ptr<data::Dataset> Job::open_set(const std::string& name,
                                             const std::stop_token& token) const {
  data::OpenContext with_token = context(name);
  with_token.token = token;
  return data::open_dataset(recipe_.data, tokenizers_, name, with_token);
}

// Fills in the number of training samples, if the model leaves it to the data.
void Job::count_samples() const {
  int64_t* samples = models::samples_left_to_data(recipe_.model);
  if (!samples) return;
  if (!recipe_.train.mixture.empty())
    base::fail(base::Exit::config,
               "model.loss.samples: train.mixture has several data sets, whose sample numbers "
               "overlap; name one set in train.data");
  *samples = data_ ? data_->size() : open_set(recipe_.train.data)->size();
  base::log::line("samples  model.loss.samples = {}, the size of [data.{}]",
                  base::with_commas(*samples), recipe_.train.data);
}

void Job::build_engine(const std::string& choices) {
  const base::Span span("build the engine");
  count_samples();
  step::EngineOptions options =
      access_.trains
          ? recipe_.engine(data_length(), threads_, device_.kind)
          : recipe_.forward_engine(access_.work, mesh_.shape.ranks(), threads_, device_.kind);
  if (session_) {
    // At level "mesh" two runs must agree to the bit, so nothing is chosen by time unless asked
    // for. Jobs that do not train take the choices of their run, and time none.
    const bool asked = recipe_.run.gemm_search == host::GemmSearch::on;
    if (asked ||
        (recipe_.run.gemm_search == host::GemmSearch::automatic && !recipe_.determinism.mesh()))
      options.choose_products = host::product_chooser(*mesh_.world, choices,
                                                      {.times = asked || access_.trains,
                                                       .writes = access_.trains,
                                                       .needs_one_platform = asked});
    need_memory(options);
  }
  engine_ =
      std::make_unique<step::Engine>(options, mesh_, session_ ? device_.kind : device::Kind::plan);
}

// If the address space is limited, checks that it has room for the job's work in addition to the
// memory in use. Libraries crash at the limit.
void Job::need_memory(const step::EngineOptions& options) const {
  if (base::address_space().limit == 0 || device_.kind != device::Kind::cpu) return;
  auto world = comm::make_plan_comm(mesh_.shape.ranks());
  comm::Mesh mesh = comm::make_plan_mesh(mesh_.shape, *world);
  step::EngineOptions on_paper = options;
  on_paper.choose_products = {};
  step::Engine engine(on_paper, mesh, device::Kind::plan);
  const device::Ledger& ledger = engine.ledger();
  const int64_t planned = ledger.total_peak();
  // Upper bound for the copies that checkpoints hold.
  const int64_t copied = ledger.peak_of("weights") + ledger.peak_of("optimizer");
  // Loader threads of training and of one evaluation, which may have two loaders, and one thread
  // that writes checkpoints.
  const int64_t threads = 3 * recipe_.data.loader.threads + 1;
  // oneDNN's generated code and the buffers of MPI and HDF5.
  constexpr int64_t kLibraries = int64_t{160} << 20;
  base::need_address_space(planned + copied + base::stack_bytes(threads) + kLibraries,
                           fmt::format("{} ({} MiB planned for this deck, see --mode plan; "
                                       "{} threads of loader.threads; libraries)",
                                       access_.trains ? "training" : access_.work.name,
                                       base::mebibytes(planned), threads));
}

}  // namespace train
