// SPDX-License-Identifier: Apache-2.0
// Recorded values of published schedules (ssl.md 5), and how a batch scales them. The schedules are
// read from a deck.
#include "ssl_schedules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "optim/phases.hpp"
#include "ssl_case.hpp"

namespace golden {
namespace {

using nlohmann::json;

constexpr double kRelative = 1e-9;
// Near the end of a cosine that falls to 0 the value is a small difference of doubles.
constexpr double kCancelled = 1e-15;  // of the largest value of the curve

// Published names of arguments, and the keys of decks.
const std::map<std::string, std::string> kKeys = {{"start_value", "start"},
                                                  {"end_value", "end"},
                                                  {"base_value", "value"},
                                                  {"warmup_interval_length", "warmup"},
                                                  {"restart_interval_length", "interval"},
                                                  {"wave_type", "wave"},
                                                  {"lr_multiplier", "factor"},
                                                  {"is_adaptive", "adaptive"}};

// Writes one phase. num_epochs is a key of multistep alone: other kinds cut the run by w.
std::string phase_text(const json& args, const std::string& rest) {
  const auto kind = args.at("name").get<std::string>();
  std::string text = fmt::format("[[schedule.default.phase]]\nkind = \"{}\"\n{}", kind, rest);
  for (const auto& [name, value] : args.items()) {
    if (name == "name" || name == "update_interval" || name == "auto_lr_scaling") continue;
    if (name == "num_epochs" && kind != "multistep") continue;
    const auto key = kKeys.find(name);
    text += fmt::format("{} = {}\n", key == kKeys.end() ? name : key->second, value.dump());
  }
  return text;
}

}  // namespace

std::string phases_text(const json& args) {
  if (args.at("name") != "composite") {
    json own = args;
    for (const char* left : {"schedulers", "interval_scaling", "lengths"}) own.erase(left);
    return phase_text(own, "");
  }
  std::string text;
  for (size_t i = 0; i < args.at("schedulers").size(); ++i) {
    const bool fixed = args.contains("interval_scaling") && args["interval_scaling"][i] == "fixed";
    text += phase_text(args["schedulers"][i],
                       fmt::format("length = {}\nclock = \"{}\"\n", args.at("lengths")[i].dump(),
                                   fixed ? "run" : "phase"));
  }
  return text;
}

namespace {

optim::PhasesShape read(const json& args, const std::string& more) {
  struct Root {
    std::map<std::string, optim::ScheduleOptions> schedules;
    void bind(config::Table& t) { t.named("schedule", schedules, ""); }
  } root;
  std::string text = "[schedule.default]\nkind = \"phases\"\n";
  if (args.contains("update_interval"))
    text += fmt::format("update = {}\n", args["update_interval"].dump());
  text += more + phases_text(args);
  config::Deck({"schedule.toml", text, {}}, root).throw_if_any();
  const auto found = root.schedules.at("default").problems({}, "schedule.default");
  if (!found.empty()) base::fail(base::Exit::config, "{}: {}", found[0].key, found[0].text);
  return dynamic_cast<const optim::PhasesShape&>(*root.schedules.at("default").shape);
}

class ScheduleCase : public SslCase {
 public:
  explicit ScheduleCase(const CaseFile& file) : file_(file) {
    for (const std::string& group : file.groups()) {
      const Shape shape = file.shape(group + "/where");
      curves_.push_back({group, read(file.json(group, "args"), ""),
                         file.doubles(group + "/where", shape),
                         file.doubles(group + "/value", shape)});
    }
    if (!file.has_attribute("/", "auto_scaling")) return;
    const json scalings = file.json("/", "auto_scaling");
    for (const auto& [name, scaling] : scalings.items()) read_scaling(name, scaling);
  }

  void run(Report& report) override {
    for (const Curve& c : curves_) {
      const std::function<double(double)> at = c.schedule.value(1);
      double largest = 0;
      for (const double v : c.value) largest = std::max(largest, std::abs(v));
      for (size_t i = 0; i < c.where.size(); ++i)
        compare(report, "values", fmt::format("{} at {}", c.name, c.where[i]), at(c.where[i]),
                c.value[i], kCancelled * largest);
      if (!file_.has_attribute(c.name, "default_update_interval")) continue;
      const std::string interval = file_.text(c.name, "default_update_interval");
      report.require("interval of updates", c.name, (interval == "epoch") == c.schedule.per_epoch(),
                     "should be " + interval);
    }
    for (const Scaling& s : scalings_) {
      const std::function<double(double)> before = s.before.value(s.global_batch),
                                          after = s.after.value(1);
      for (int i = 0; i < 1000; ++i)
        compare(report, "scaled by the batch", fmt::format("{} at {}", s.name, i * 1e-3),
                before(i * 1e-3), after(i * 1e-3));
      compare(report, "scaled by the batch", s.name + " scaled_lr",
              s.before.auto_scale->rate(s.global_batch), s.rate);
    }
  }

 private:
  struct Curve {
    std::string name;
    optim::PhasesShape schedule;
    std::vector<double> where, value;
  };
  struct Scaling {
    std::string name;
    optim::PhasesShape before, after;
    int64_t global_batch;
    double rate;
  };

  void read_scaling(const std::string& name, const json& s) {
    const int64_t node =
        s.at("ranks_per_node").get<int64_t>() * s.at("batch_per_rank").get<int64_t>();
    const std::string table = fmt::format(
        "[schedule.default.auto_scale]\nvalue = {}\nbatch = {}\nrule = \"{}\"\nwarmup_batch = {}\n",
        s.at("base_value").dump(), s.at("base_lr_batch_size").dump(),
        s.at("scaling_type").get<std::string>(), node);
    scalings_.push_back({name, read(s.at("before"), table), read(s.at("after"), ""),
                         node * s.at("nodes").get<int64_t>(), s.at("scaled_lr").get<double>()});
  }
  static void compare(Report& report, const char* quantity, const std::string& what, double got,
                      double want, double least = 0) {
    report.compare(quantity, what, got, want, std::max(kRelative * std::abs(want), least));
  }

  const CaseFile& file_;
  std::vector<Curve> curves_;
  std::vector<Scaling> scalings_;
};

}  // namespace

SslKind ssl_schedules_kind() {
  return {"schedules",
          [](const CaseFile& file) {
            const std::vector<std::string> groups = file.groups();
            return !groups.empty() && file.has(groups[0] + "/where") &&
                   file.has_attribute(groups[0], "args");
          },
          [](const CaseFile& file, const Settings&, comm::Mesh&) -> std::unique_ptr<SslCase> {
            return std::make_unique<ScheduleCase>(file);
          }};
}

}  // namespace golden
