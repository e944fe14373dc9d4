// SPDX-License-Identifier: Apache-2.0
// Recorded steps of published optimizers on given gradients (ssl.md 4): every variant of a file, on
// the ranks' shares of weights and state.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "optim/optimizer.hpp"
#include "ssl_case.hpp"

namespace golden {
namespace {

using device::DType;

struct Tensor {
  std::string name;
  Shape shape;  // without the dimension of steps
  std::vector<float> start, gradients;
};

// What a file holds for all variants.
struct Recorded {
  std::vector<Tensor> tensors;
  std::set<std::string> decayed;
  std::vector<float> rates;
};

struct Variant {
  std::string name;
  nlohmann::json options;
};

// Writes the deck of a variant, so that its keys are tested too.
class VariantDeck {
 public:
  VariantDeck(const CaseFile& file, const Variant& variant, const Recorded& recorded)
      : file_(file), variant_(variant), left_(variant.options) {
    const std::string kind = take<std::string>("kind", "");
    line("learning_rate = {:.17g}", take<double>("lr_scale", 1));
    line("weight_decay = {:.17g}", take<double>("weight_decay", 0));
    if (kind == "adam" || kind == "adamw")
      adam(kind == "adamw");
    else if (kind == "sgd" || kind == "larc" || kind == "lars")
      sgd(kind);
    else
      file.fail(variant.name, fmt::format("has an unknown kind \"{}\"", kind));
    if (!left_.empty())
      file.fail(variant.name, "has unknown options: " + nlohmann::json(left_).dump());
    rules(recorded);
  }

  optim::OptimizerOptions read() const {
    struct Root {
      optim::OptimizerOptions optimizer;
      void bind(config::Table& t) { t.table("optimizer", optimizer, ""); }
    } root;
    config::Deck({"variant.toml", text_, {}}, root).throw_if_any();
    return root.optimizer;
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
  }
  template <class T>
  T take(const char* key, T otherwise) {
    if (!left_.contains(key)) return otherwise;
    const T value = left_[key].get<T>();
    left_.erase(key);
    return value;
  }

  void adam(bool decoupled) {
    const auto betas = take<std::vector<double>>("betas", {0.9, 0.999});
    line("kind = \"adamw\"\ncorrection = \"f64\"\ndecay_form = \"{}\"",
         decoupled ? "rate" : "gradient");
    line("b1 = {:.17g}\nb2 = {:.17g}", betas.at(0), betas.at(1));
    line("eps = {:.17g}\namsgrad = {}", take<double>("eps", 1e-8), take<bool>("amsgrad", false));
  }
  void sgd(const std::string& kind) {
    line("kind = \"sgd\"\ndecay_form = \"gradient\"");
    line("momentum = {:.17g}", take<double>("momentum", 0));
    line("dampening = {:.17g}", take<double>("dampening", 0));
    line("nesterov = {}", take<bool>("nesterov", false));
    if (kind == "sgd") return;
    line("[optimizer.trust]\nrule = \"{}\"", kind);
    if (kind == "lars") {
      line("coefficient = {:.17g}", take<double>("eta", 0.001));
      line("exclude_vectors = {}", take<bool>("exclude_bias_and_norm", false));
      return;
    }
    line("coefficient = {:.17g}", take<double>("trust_coefficient", 0.02));
    line("clip = {}", take<bool>("clip", true));
    line("eps = {:.17g}", take<double>("eps", 1e-8));
  }
  void rules(const Recorded& recorded) {
    for (const Tensor& tensor : recorded.tensors)
      line("[[optimizer.rule]]\nmatch = \"{}\"\ndecay_scale = {}", tensor.name,
           recorded.decayed.count(tensor.name));
  }

  const CaseFile& file_;
  const Variant& variant_;
  nlohmann::json left_;
  std::string text_ = "[optimizer]\n";
};

// One variant on this mesh. Ranks own parts of the weights as the strategy says.
class VariantRun {
 public:
  VariantRun(const Recorded& recorded, const optim::OptimizerOptions& options,
             const Settings& settings, comm::Mesh& mesh)
      : recorded_(recorded),
        mesh_(mesh),
        queue_(settings.device, settings.threads, settings.determinism.mesh()),
        layout_(parameters(recorded), {"all"}, sharding(settings), mesh.shape.fsdp,
                settings.determinism.mesh() ? settings.determinism.slices : mesh.shape.fsdp),
        fabric_{layout_, mesh, queue_, ledger_, settings.determinism.mesh()},
        weights_(fabric_, 0) {
    const optim::Policies policies = optim::resolve_policies(options, {}, layout_.parameters());
    CHECK(policies.problems.empty(), "rules of a recorded variant");
    optim::Schedule rates([this](int64_t made) { return recorded_.rates[size_t(made)]; });
    optimizer_ = std::make_unique<optim::Optimizer>(fabric_, options, policies.parameters,
                                                    std::vector<optim::Schedule>{rates});
    for (int u = 0; u < units(); ++u) {
      gradients_.emplace_back(settings.device, ledger_, "gradients",
                              layout_.owned_count(u) * size_of(DType::f32));
      owned_.push_back({u, weights_.owned(u), gradients_.back().view(DType::f32)});
    }
    each_segment([&](const Tensor& tensor, const shard::Segment& s, int u) {
      device::upload(owned_[size_t(u)].weights.slice(s.offset, s.count()),
                     tensor.start.data() + s.begin, queue_);
    });
  }

  void step(int64_t number) {
    each_segment([&](const Tensor& tensor, const shard::Segment& s, int u) {
      const auto size = int64_t(tensor.start.size());
      device::upload(owned_[size_t(u)].gradient.slice(s.offset, s.count()),
                     tensor.gradients.data() + (number - 1) * size + s.begin, queue_);
    });
    optimizer_->inspect(number, owned_);
    optimizer_->apply(number);
    optimizer_->report(number);
  }

  // Compares this rank's parts of the weights with the sets GROUP/NAME.
  void compare_weights(const CaseFile& file, const std::string& group, Report& report) {
    each_segment([&](const Tensor& tensor, const shard::Segment& s, int u) {
      std::vector<float> got(size_t(s.count()));
      device::download(got.data(), owned_[size_t(u)].weights.slice(s.offset, s.count()), queue_);
      const std::string set = group + "/" + tensor.name;
      const std::vector<float> want = file.floats(set, tensor.shape);
      report.compare("weights", set, got.data(), want.data() + s.begin, s.count(),
                     file.tolerance(set));
    });
  }

  // Compares this rank's parts of the state with the sets GROUP/NAME/STATE.
  void compare_state(const CaseFile& file, const std::string& group, bool without_momentum,
                     Report& report) {
    static const std::map<std::string, std::string> names = {
        {"/optimizer/sgd/trace", "momentum_buffer mu"},
        {"/optimizer/adamw/mu", "exp_avg"},
        {"/optimizer/adamw/nu", "exp_avg_sq"},
        {"/optimizer/adamw/nu_max", "max_exp_avg_sq"}};
    int64_t compared = 0;
    for (const shard::TensorSlice& slice : optimizer_->state()) {
      const size_t at = slice.name.rfind('/');
      const std::string tensor = slice.name.substr(at + 1),
                        theirs = names.at(slice.name.substr(0, at));
      for (size_t begin = 0; begin < theirs.size();) {
        const size_t end = std::min(theirs.find(' ', begin), theirs.size());
        const std::string set =
            fmt::format("{}/{}/{}", group, tensor, theirs.substr(begin, end - begin));
        begin = end + 1;
        if (!file.has(set)) continue;
        ++compared;
        const std::vector<float> want = file.floats(set, slice.shape);
        for (const auto& part : slice.parts) {
          std::vector<float> got(size_t(part.end - part.begin));
          device::download(got.data(), slice.view(part), queue_);
          report.compare("state", set, got.data(), want.data() + part.begin, part.end - part.begin,
                         file.tolerance(set));
        }
      }
    }
    // PyTorch counts steps for each tensor, this program for the run. With momentum 0, published
    // LARS stores the last gradient as its momentum. This program stores nothing.
    int64_t recorded = 0;
    for (const std::string& set : file.below(group))
      recorded += !set.ends_with("/step") && !(without_momentum && set.ends_with("/mu"));
    report.require("sets of state", group, compared == recorded,
                   fmt::format("{} of {} recorded sets were compared", compared, recorded));
  }

 private:
  static std::vector<shard::Parameter> parameters(const Recorded& recorded) {
    std::vector<shard::Parameter> out;
    for (const Tensor& tensor : recorded.tensors) {
      out.emplace_back().path = tensor.name;
      out.back().shape = tensor.shape;
    }
    return out;
  }
  static shard::ShardingOptions sharding(const Settings& settings) {
    using shard::Placement;
    const bool parameters = settings.strategy == "sharded",
               optimizer = settings.strategy != "replicated";
    shard::ShardingOptions o;
    o.parameters = parameters ? Placement::sharded : Placement::replicated;
    o.optimizer = optimizer ? Placement::sharded : Placement::replicated;
    return o;
  }
  int units() const { return int(layout_.units().size()); }
  template <class F>
  void each_segment(const F& f) {
    for (int u = 0; u < units(); ++u)
      for (const shard::Segment& s :
           layout_.segments(u, layout_.owned_begin(u, mesh_.fsdp_index), layout_.owned_count(u)))
        f(recorded_.tensors[size_t(s.parameter)], s, u);
  }

  const Recorded& recorded_;
  comm::Mesh& mesh_;
  device::Queue queue_;
  device::Ledger ledger_;
  shard::Layout layout_;
  shard::Fabric fabric_;
  shard::WeightStore weights_;
  std::vector<device::Buffer> gradients_;
  std::vector<optim::OwnedUnit> owned_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

class OptimizerCase : public SslCase {
 public:
  OptimizerCase(const CaseFile& file, const Settings& settings, comm::Mesh& mesh)
      : file_(file), settings_(settings), mesh_(mesh) {
    const Shape steps = file.shape("lr");
    recorded_.rates = file.floats("lr", steps);
    for (const auto& name : file.json("/", "decayed")) recorded_.decayed.insert(name);
    for (const std::string& name : file.below("params")) {
      Tensor t{name, file.shape("params/" + name), {}, {}};
      Shape all = t.shape;
      all.insert(all.begin(), steps.at(0));
      t.start = file.floats("params/" + name, t.shape);
      t.gradients = file.floats("grads/" + name, all);
      recorded_.tensors.push_back(std::move(t));
    }
    for (const std::string& group : file.groups())
      if (file.has_attribute(group, "options")) {
        variants_.push_back({group, file.json(group, "options")});
        options_.push_back(VariantDeck(file, variants_.back(), recorded_).read());
      }
  }

  void run(Report& report) override {
    for (size_t v = 0; v < variants_.size(); ++v) {
      VariantRun variant(recorded_, options_[v], settings_, mesh_);
      for (int64_t step = 1; step <= int64_t(recorded_.rates.size()); ++step) {
        variant.step(step);
        variant.compare_weights(file_, fmt::format("{}/step{}", variants_[v].name, step), report);
      }
      if (const std::string state = variants_[v].name + "/state"; file_.has(state))
        variant.compare_state(file_, state, variants_[v].options.value("momentum", 1.0) == 0,
                              report);
    }
  }

 private:
  const CaseFile& file_;
  Settings settings_;
  comm::Mesh& mesh_;
  Recorded recorded_;
  std::vector<Variant> variants_;
  std::vector<optim::OptimizerOptions> options_;  // of each variant
};

}  // namespace

SslKind ssl_optimizers_kind() {
  return {"optimizers",
          [](const CaseFile& file) { return file.has("lr") && file.has_attribute("/", "decayed"); },
          [](const CaseFile& file, const Settings& settings,
             comm::Mesh& mesh) -> std::unique_ptr<SslCase> {
            return std::make_unique<OptimizerCase>(file, settings, mesh);
          }};
}

}  // namespace golden
