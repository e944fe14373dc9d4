// SPDX-License-Identifier: Apache-2.0
#include "job/attempt_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/text.hpp"
#include "host/surroundings.hpp"
#include "job/flight.hpp"

namespace job {
namespace {

using Json = nlohmann::ordered_json;

std::string file_of(const std::string& run) { return run + "/attempts.jsonl"; }

double rounded(double seconds) { return std::round(seconds * 1e4) / 1e4; }

Json json_of(const Spent& spent) {
  Json out = Json::object();
  for (size_t i = 0; i < Spent::kKinds; ++i)
    if (spent.by[i] != 0) out[kSpentNames[i]] = rounded(spent.by[i]);
  return out;
}

// A member that a line lacks, or that has another type, gets the value `otherwise`.
double number_in(const Json& line, const char* name, double otherwise = 0) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::string text_in(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

Spent spent_of(const Json& line) {
  Spent out;
  const auto found = line.find("seconds");
  if (found != line.end() && found->is_object())
    for (size_t i = 0; i < Spent::kKinds; ++i) out.by[i] = number_in(*found, kSpentNames[i]);
  return out;
}

// Returns the time of an attempt until a save whose line the log has lost. The checkpoint gives the
// sum `kept_s`, but not its kinds. The time after the save is taken from training first.
Spent kept_until(const Spent& whole, double kept_s) {
  Spent out = whole;
  double surplus = whole.total() - kept_s;
  for (const Spent::Kind kind :
       {Spent::training, Spent::evaluation, Spent::checkpoint, Spent::redone, Spent::setup}) {
    const double taken = std::clamp(surplus, 0.0, out[kind]);
    out[kind] -= taken;
    surplus -= taken;
  }
  return out;
}

int exit_of(const std::string& report) {
  const size_t at = report.find(" exit=");
  return at == report.npos ? -1 : std::atoi(report.c_str() + at + 6);
}

std::string death_of(const Flight& flight, const StartRecord& start) {
  std::string out = fmt::format("killed in phase {}, step {}", flight.phase, flight.step);
  if (flight.resident_bytes > 0)
    out +=
        fmt::format("; {} MiB were resident{}", base::mebibytes(flight.resident_bytes),
                    start.memory_mib > 0 ? fmt::format(" at rank 0, whose node or job has {} MiB",
                                                       base::with_commas(start.memory_mib))
                                         : "");
  return out;
}

}  // namespace

Spent StartRecord::kept() const {
  Spent out = spent.since(redone);
  out[Spent::redone] = 0;
  return out;
}

AttemptLog::AttemptLog(const std::string& run, const Before& before, double begin_s,
                       const std::string& host, int64_t ranks)
    : lines_(file_of(run)) {
  try {
    const std::string found = io::exists(file_of(run)) ? io::read_file(file_of(run)) : "";
    const size_t whole = found.rfind('\n') + 1;  // a crash may have cut the last line
    load(found.substr(0, whole));
    if (whole != found.size()) io::write_file_atomically(file_of(run), text_);
  } catch (const io::Failure& e) {  // the log only informs people
    base::log::warning("{}", e.what());
  }
  if (!starts_.empty() && starts_.back().how.empty()) close_before(before);
  const int64_t start = starts_.empty() ? 1 : starts_.back().number + 1;
  write(Json{{"kind", "begin"},
             {"start", start},
             {"time", rounded(begin_s)},
             {"host", host},
             {"pid", int64_t(::getpid())},
             {"ranks", ranks},
             {"memory_mib", host::most_memory_bytes() >> 20}}
            .dump());
  lines_.sync();
}

void AttemptLog::load(const std::string& text) {
  text_ = text;
  for (const std::string& line : base::split(text, '\n')) take(line);
}

// Takes over the facts of one line. Broken lines, and lines of a later version, change nothing.
void AttemptLog::take(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return;
  const std::string kind = text_in(json, "kind");
  const auto at = int64_t(number_in(json, "start"));
  if (kind == "begin") {
    StartRecord made;
    made.number = at;
    made.begin_s = number_in(json, "time");
    made.host = text_in(json, "host");
    made.pid = int64_t(number_in(json, "pid"));
    made.ranks = int64_t(number_in(json, "ranks"));
    made.memory_mib = int64_t(number_in(json, "memory_mib"));
    starts_.push_back(std::move(made));
  }
  const auto found =
      std::ranges::find_if(starts_, [&](const StartRecord& s) { return s.number == at; });
  if (found == starts_.end()) return;
  StartRecord& start = *found;
  const auto attempt = int64_t(number_in(json, "attempt")), step = int64_t(number_in(json, "step"));
  if (kind == "facts" && json.contains("facts"))
    for (const auto& [name, value] : json["facts"].items())
      if (value.is_string()) start.facts[name] = value.get<std::string>();
  if (kind == "save") start.saves[{attempt, step}] = spent_of(json);
  if (kind == "continues" || kind == "back") {
    start.attempts.push_back(attempt);
    if (!start.first_step) start.first_step = step;
    for (const Json& lost : json.value("redone", Json::array()))
      for (StartRecord& s : starts_)
        if (s.number == int64_t(number_in(lost, "start"))) {
          s.redone += spent_of(lost);
          s.redone_steps += int64_t(number_in(lost, "steps"));
        }
  }
  if (kind == "end") {
    start.end_s = number_in(json, "time");
    start.how = text_in(json, "how");
    start.exit = int(number_in(json, "exit", -1));
    start.reason = text_in(json, "reason");
    start.last_step = step;
    start.spent = spent_of(json);
  }
}

void AttemptLog::write(const std::string& line) {
  text_ += line + "\n";
  lines_.append(line + "\n");
  take(line);
}

// Writes the end of the start before, because that start did not write it.
void AttemptLog::close_before(const Before& before) {
  const StartRecord& last = starts_.back();
  const std::optional<Flight> found = read_flight(before.flight);
  const bool own = found && found->process == last.pid;
  Spent spent;
  double end_s = std::max(last.begin_s, before.changed_s);
  int64_t step = last.first_step.value_or(0);
  if (own) {
    spent = found->spent;
    end_s = std::max(last.begin_s, 1e-9 * double(found->last_sign_ns + found->unix_offset_ns));
    step = found->step;
  }
  // The time that was not counted yet belongs to the phase.
  const double rest = end_s - last.begin_s - spent.total();
  spent[own ? kind_of_phase(found->phase.c_str())
        : before.left_by.find(" train step") != std::string::npos ? Spent::training
                                                                  : Spent::setup] +=
      std::max(0.0, rest);
  const std::string cause = before.report.substr(0, before.report.find('\n'));
  std::string how = "failed", reason = cause;
  if (cause.empty() && !before.left_by.empty()) {
    how = "killed";
    reason = own ? death_of(*found, last) : "killed";
  } else if (cause.empty()) {
    how = "stopped";
    reason = "it ended by itself, and did not say why";
  }
  write(Json{{"kind", "end"},
             {"start", last.number},
             {"time", rounded(end_s)},
             {"how", how},
             {"exit", exit_of(cause)},
             {"reason", base::one_line(reason, 1000)},
             {"step", step},
             {"seconds", json_of(spent)}}
            .dump());
}

const StartRecord* AttemptLog::start_of(int64_t attempt) const {
  for (const StartRecord& s : starts_)
    if (std::ranges::find(s.attempts, attempt) != s.attempts.end()) return &s;
  return nullptr;
}

// Returns the work that earlier starts did after the state from which the run continues. Leaves out
// work that the log has already counted as redone.
std::vector<AttemptLog::Redone> AttemptLog::in_vain(const From& from) const {
  std::vector<Redone> out;
  const StartRecord* saver = from.attempt > 0 ? start_of(from.attempt) : nullptr;
  for (const StartRecord& s : starts_) {
    if (s.number == own().number) break;
    // A log that began later than the run lacks the attempt that saved. All starts in such a log
    // came after that attempt.
    if (saver && s.number < saver->number) continue;
    Spent kept;
    int64_t from_step = s.first_step.value_or(0);
    if (&s == saver) {
      const auto save = s.saves.find({from.attempt, from.step});
      kept = save != s.saves.end() ? save->second : kept_until(s.spent, from.uptime_s);
      from_step = from.step;
    }
    const Spent lost = s.kept().since(kept);
    const int64_t steps = std::max<int64_t>(0, s.last_step.value_or(from_step) - from_step);
    if (lost.total() > 0)
      out.push_back({s.number, std::max<int64_t>(0, steps - s.redone_steps), lost});
  }
  return out;
}

double AttemptLog::goes_on(const From& from) {
  from_ = from;
  redone_ = in_vain(from);
  // The counts of the checkpoint include no time after the save, so time that is already counted as
  // redone is added too.
  const StartRecord* saver = from.attempt > 0 ? start_of(from.attempt) : nullptr;
  double lost = 0;
  for (const StartRecord& s : starts_) {
    if (s.number == own().number) break;
    if (!saver || s.number > saver->number) lost += s.spent.total();
    if (&s != saver) continue;
    const auto save = s.saves.find({from.attempt, from.step});
    lost += std::max(
        0.0, s.spent.total() - (save != s.saves.end() ? save->second.total() : from.uptime_s));
  }
  return lost;
}

std::string AttemptLog::line_of(const char* kind, const From& from, int64_t attempt,
                                const std::vector<Redone>& redone) const {
  Json lost = Json::array();
  for (const Redone& r : redone)
    lost.push_back({{"start", r.start}, {"steps", r.steps}, {"seconds", json_of(r.seconds)}});
  return Json{{"kind", kind},      {"start", own().number}, {"attempt", attempt},
              {"step", from.step}, {"from", from.kind},     {"redone", lost}}
      .dump();
}

void AttemptLog::continues(int64_t attempt) {
  write(line_of("continues", from_, attempt, redone_));
  lines_.sync();
}

void AttemptLog::saves(int64_t attempt, int64_t step, const Spent& spent) {
  write(Json{{"kind", "save"},
             {"start", own().number},
             {"attempt", attempt},
             {"step", step},
             {"seconds", json_of(spent)}}
            .dump());
}

Spent AttemptLog::goes_back(const From& from, int64_t attempt, const Spent& spent) {
  const auto save = own().saves.find({from.attempt, from.step});
  Spent left = spent;
  left.lose_since(save != own().saves.end() ? save->second : Spent());
  write(line_of("back", from, attempt, in_vain(from)));
  return left;
}

void AttemptLog::has(const Facts& facts) {
  write(Json{{"kind", "facts"}, {"start", own().number}, {"facts", facts}}.dump(
      -1, ' ', false, Json::error_handler_t::replace));
  lines_.sync();
}

void AttemptLog::ends(const std::string& how, int exit, const std::string& reason, int64_t step,
                      const Spent& spent) {
  write(Json{{"kind", "end"},
             {"start", own().number},
             {"time", rounded(own().begin_s + spent.total())},
             {"how", how},
             {"exit", exit},
             {"reason", reason},
             {"step", step},
             {"seconds", json_of(spent)}}
            .dump(-1, ' ', false, Json::error_handler_t::replace));
  lines_.sync();
}

void AttemptLog::keep() {
  if (lines_.keep()) lines_.append(text_);
}

const Facts* AttemptLog::facts_before() const {
  for (size_t i = starts_.size() - 1; i-- > 0;)
    if (!starts_[i].facts.empty()) return &starts_[i].facts;
  return nullptr;
}

double AttemptLog::redone_s() const {
  double sum = 0;
  for (const Redone& r : redone_) sum += r.seconds.total();
  return sum;
}

double AttemptLog::idle_s() const {
  return starts_.size() < 2 ? 0 : std::max(0.0, own().begin_s - starts_[starts_.size() - 2].end_s);
}

}  // namespace job
