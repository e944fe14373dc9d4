// SPDX-License-Identifier: Apache-2.0
#include "job/hooks.hpp"

#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log_components.hpp"
#include "base/names.hpp"
#include "base/plain_nan.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "comm/launcher.hpp"
#include "io/files.hpp"

namespace job {
namespace {

constexpr std::pair<const char*, HookEvent> kHookNames[] = {
    {"start", HookEvent::start},           {"step", HookEvent::step},
    {"evaluation", HookEvent::evaluation}, {"checkpoint", HookEvent::checkpoint},
    {"error", HookEvent::error},           {"end", HookEvent::end}};

constexpr size_t kMostWaiting = 100;      // events
constexpr size_t kMostOutput = 64 << 10;  // bytes of a hook in the log
constexpr double kWarnOfHookAgain_s = 60;
// The hooks after an error: waiting ones, `error` and `end`. Each may take some seconds to kill.
constexpr double kHooksAfterError = 3, kToKill_s = 4;

std::atomic<Hooks*> g_hooks{nullptr};

const char* name_of(HookEvent what) { return base::name_of(kHookNames, what); }

bool is_last(HookEvent what) { return what == HookEvent::error || what == HookEvent::end; }

std::string time_text() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}", fmt::gmtime(std::chrono::system_clock::now()));
}

std::string title_of(HookEvent what, const HookFacts& facts) {
  for (const HookFact& fact : facts)
    if (fact.name == "step")
      return fmt::format("{} step={}", name_of(what), std::get<int64_t>(fact.value));
  return name_of(what);
}

// What hooks write, in RUN/logs/hooks.log. A file that cannot be written stops nothing.
class HookLog {
 public:
  HookLog(const std::string& directory, const std::string& name) : name_(name) {
    if (directory.empty()) return;
    try {
      io::make_directories(directory);
      file_ = io::File(directory + "/hooks.log", io::File::Mode::append);
    } catch (const io::Failure&) {
    }
  }
  void line(const std::string& text) {
    try {
      if (file_.is_open()) file_.append(text + "\n");
    } catch (const io::Failure&) {
    }
  }
  void output(std::string_view piece) {
    const size_t kept = std::min(piece.size(), kMostOutput - taken_);
    taken_ += kept;
    left_out_ += int64_t(piece.size() - kept);
    rest_ += piece.substr(0, kept);
    std::string lines;
    for (size_t end; (end = rest_.find('\n')) != rest_.npos; rest_.erase(0, end + 1))
      lines += prefixed(rest_.substr(0, end)) + "\n";
    if (!lines.empty()) line(lines.substr(0, lines.size() - 1));
  }
  void finish() {
    if (!rest_.empty()) line(prefixed(rest_));
    if (left_out_ > 0)
      line(fmt::format("{} | ... {} bytes more are left out", name_, base::with_commas(left_out_)));
  }

 private:
  std::string prefixed(const std::string& text) const {
    return fmt::format("{} | {}", name_, base::one_line(text));
  }
  io::File file_;
  std::string name_, rest_;
  size_t taken_ = 0;
  int64_t left_out_ = 0;
};

}  // namespace

void HookOptions::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  auto command = [&](HookEvent what, const char* doc) {
    t.key(name_of(what), commands[what], doc).unit("command").on_resume(may);
  };
  command(HookEvent::start,
          "each command runs by /bin/sh beside training, at rank 0, with what it is told in its "
          "environment (TRAINER_STEP and others) and as JSON on its standard input; \"\" = none. "
          "This one: the state is there, and the first step follows");
  command(HookEvent::step, "a step that every_* names is done");
  t.duration("every", every, "how often the hook `step` runs").on_resume(may);
  command(HookEvent::evaluation, "an evaluator has run");
  command(HookEvent::checkpoint, "a checkpoint is complete");
  command(HookEvent::error, "the job ends for an error; the hook `end` follows");
  command(HookEvent::end, "the attempt ends, whatever the reason, but a kill or a crash");
  t.key("timeout_s", timeout_s,
        "a command gets TERM after this time, and KILL two seconds later. At the end of the run, "
        "waiting commands other than `error` and `end` begin only within this time; after an error "
        "each command gets at most a quarter of watch.limit_s")
      .above(0)
      .unit("s")
      .on_resume(may);
  t.choice("on_failure", stops_on_failure, {{"warn", false}, {"stop", true}},
           "when a command fails (another exit code than 0, a signal, no end in time): a warning, "
           "or the end of the run after the current step, with a checkpoint and exit 8")
      .on_resume(may);
  if (!commands[HookEvent::step].empty() && !every.set())
    t.error("step", "say how often it runs, for example every_steps = 1000");
  if (commands[HookEvent::step].empty() && every.set())
    t.error("step", "missing: the deck sets hooks.every_*, but no command to run");
}

const std::string& HookOptions::command_of(HookEvent what) const {
  static const std::string none;
  const auto found = commands.find(what);
  return found == commands.end() ? none : found->second;
}

bool HookOptions::any() const {
  return std::any_of(commands.begin(), commands.end(),
                     [](const auto& one) { return !one.second.empty(); });
}

Hooks::Hooks(const HookOptions& options, const std::string& run_name, double watch_limit_s)
    : options_(options),
      run_name_(run_name),
      limit_after_error_s_(watch_limit_s > 0 ? std::min(options.timeout_s, watch_limit_s / 4)
                                             : options.timeout_s),
      limit_s_(options.timeout_s) {
  g_hooks = this;
}

Hooks::~Hooks() {
  g_hooks = nullptr;
  {
    const std::lock_guard lock(mutex_);
    quits_ = true;
  }
  changed_.notify_all();
}

Hooks* Hooks::current() { return g_hooks; }

void Hooks::use(const std::string& run) {
  Hooks* hooks = g_hooks;
  if (!hooks) return;
  const std::lock_guard lock(hooks->mutex_);
  hooks->run_ = std::filesystem::absolute(run).lexically_normal().string();
}

void Hooks::lose_directory() {
  if (Hooks* hooks = g_hooks) hooks->lost_ = true;
}

void Hooks::know(HookFacts facts) {
  const std::lock_guard lock(mutex_);
  known_.insert(known_.end(), facts.begin(), facts.end());
}

void Hooks::tell(HookEvent what, HookFacts facts) {
  if (options_.command_of(what).empty()) return;
  const std::lock_guard lock(mutex_);
  if (run_.empty()) return;
  // A step event replaces only a step event right before it. Otherwise no step event would have its
  // turn if hooks are too slow.
  if (what == HookEvent::step && !waiting_.empty() && waiting_.back().what == what) {
    steps_left_out_ += waiting_.back().left_out + 1;
    waiting_.pop_back();
  }
  if (waiting_.size() >= kMostWaiting && !is_last(what)) {
    (what == HookEvent::step ? steps_left_out_ : others_left_out_) += 1;
    return;
  }
  HookFacts all = {{"event", name_of(what)}, {"run", run_}, {"name", run_name_}};
  all.insert(all.end(), known_.begin(), known_.end());
  all.insert(all.end(), std::make_move_iterator(facts.begin()),
             std::make_move_iterator(facts.end()));
  const int64_t left_out = what == HookEvent::step ? std::exchange(steps_left_out_, 0) : 0;
  waiting_.push_back({what, std::move(all), left_out});
  if (!thread_.joinable()) thread_ = base::thread("hooks", [this] { work(); });
  changed_.notify_all();
}

void Hooks::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return quits_ || !waiting_.empty(); });
    if (quits_) return;
    Event event = std::move(waiting_.front());
    waiting_.pop_front();
    if (too_late(event.what)) {
      ++others_left_out_;
      continue;
    }
    if (event.what == HookEvent::step) event.facts.push_back({"left_out", event.left_out});
    busy_ = true;
    lock.unlock();
    say_left_out();
    try {
      run(std::move(event));
    } catch (const std::exception& e) {
      base::log::warning("hooks: {}", e.what());
    }
    lock.lock();
    busy_ = false;
  }
}

// With the lock.
bool Hooks::too_late(HookEvent what) const {
  return closed_s_ && base::now_s() >= *closed_s_ && !is_last(what);
}

void Hooks::say_left_out() {
  int64_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = std::exchange(others_left_out_, 0);
  }
  if (count > 0)
    base::log::warning(
        "hooks: {} runs are left out, because hooks take longer than the time between their events",
        count);
}

void Hooks::run(Event event) {
  const std::string name = name_of(event.what), title = title_of(event.what, event.facts);
  base::Span span(base::SpanName::of("hook " + name), base::SpanKind::wait);
  HookLog log(lost_ ? "" : run_ + "/logs", name);
  const std::string& text = options_.command_of(event.what);
  log.line(fmt::format("{} {} begins: {}", time_text(), title, base::one_line(text)));
  double limit_s = 0;
  {
    const std::lock_guard lock(mutex_);
    limit_s = limit_s_;
  }
  const CommandEnd end = run_command(
      {.text = text,
       .environment = environment_of(event.facts, comm::environment_without_mpi()),
       .input = json_of(event.facts) + "\n",
       .limit_s = limit_s},
      [&log](std::string_view piece) { log.output(piece); },
      [&] {
        const std::lock_guard lock(mutex_);
        return quits_ || (after_error_ && too_late(event.what));
      },
      &guard_);
  log.finish();
  log.line(
      fmt::format("{} {} ended after {:.2f} s: {}", time_text(), title, end.seconds, end.text()));
  judge(event, end);
}

void Hooks::judge(const Event& event, const CommandEnd& end) {
  const std::string what =
      fmt::format("hook {}: {}", title_of(event.what, event.facts), end.text());
  if (end.good()) base::log::debug(base::log::Component::run, "{}", what);
  if (end.good() || end.how == CommandEnd::How::quit) return;
  const double now_s = base::now_s();
  // A step hook may fail each time.
  if (const auto warned = warned_s_.find(event.what);
      warned == warned_s_.end() || now_s - warned->second > kWarnOfHookAgain_s) {
    warned_s_[event.what] = now_s;
    base::log::warning("{}; logs/hooks.log has its output", what);
  }
  const std::lock_guard lock(mutex_);
  if (!options_.stops_on_failure || is_last(event.what) || has_failed_) return;
  failure_ = what + " (hooks.on_failure = \"stop\")";
  has_failed_ = true;
}

std::string Hooks::wants_stop() const {
  if (!has_failed_) return "";
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Hooks::close(double seconds) {
  const std::lock_guard lock(mutex_);
  limit_s_ = seconds;
  closed_s_ = base::now_s() + seconds;
}

bool Hooks::runs_here() const {
  const std::lock_guard lock(mutex_);
  return !run_.empty() && options_.any();
}

bool Hooks::idle() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && !busy_;
}

namespace {

// Other threads run the hooks. Each pass of this loop counts as work, so the wait is not a hang.
template <class Over>
void wait_until(const Over& over) {
  for (const base::Stopwatch watch;;) {
    const base::Span span("look after hooks");
    if (over()) return;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::clamp(0.02 * watch.seconds(), 1e-3, 0.02)));
  }
}

}  // namespace

void Hooks::end(comm::Comm& world, base::Exit code, const std::string& reason, HookFacts facts) {
  if (!runs_here()) return;
  close(options_.timeout_s);
  if (world.rank() == 0) {
    facts.push_back({"exit", int64_t(code)});
    facts.push_back({"reason", base::plain_nan(reason)});
    tell(HookEvent::end, std::move(facts));
  }
  wait_until([&] { return world.max(int64_t(!idle())) == 0; });
  say_left_out();
}

// Runs the hooks for an end that only this process knows of, and waits for them.
void Hooks::last_words(bool failed, int code, const std::string& reason) {
  after_error_ = true;
  close(limit_after_error_s_);
  const base::Where w = base::where();
  const HookFacts facts = {{"step", w.step},
                           {"phase", w.phase},
                           {"rank", int64_t(w.rank)},
                           {"exit", int64_t(code)},
                           {"reason", base::plain_nan(reason)}};
  if (failed) tell(HookEvent::error, facts);
  tell(HookEvent::end, facts);
  wait_until([this] { return idle(); });
  say_left_out();
}

void Hooks::after_error(bool first, int code, const std::string& reason) noexcept {
  Hooks* hooks = g_hooks;
  if (!hooks || !hooks->runs_here()) return;
  try {
    if (first) return hooks->last_words(true, code, reason);
    const base::Stopwatch watch;
    const double most_s = most_after_error_s();
    wait_until([&] { return watch.seconds() > most_s; });
  } catch (...) {  // no memory, no thread: the error itself is what matters
  }
}

double Hooks::most_after_error_s() noexcept {
  const Hooks* hooks = g_hooks;
  return hooks && hooks->runs_here() ? kHooksAfterError * (hooks->limit_after_error_s_ + kToKill_s)
                                     : 0;
}

void Hooks::before_first_step(int code, const std::string& reason) noexcept {
  Hooks* hooks = g_hooks;
  if (!hooks || !hooks->runs_here() || base::where().rank != 0) return;
  try {
    hooks->last_words(false, code, reason);
  } catch (...) {
  }
}

}  // namespace job
