// SPDX-License-Identifier: Apache-2.0
#include "job/watchdog.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/flight_page.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/process_memory.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "comm/together.hpp"
#include "io/files.hpp"
#include "job/failure_report.hpp"
#include "job/hooks.hpp"
#include "job/progress_clock.hpp"
#include "job/stacks.hpp"
#include "job/verdict.hpp"
#include "job/within.hpp"

namespace job {
namespace {

// One watchdog asks another one of its node for stacks; the value says for which event.
int ask_signal() { return SIGRTMIN + 5; }

constexpr size_t kTicksOfRan = 5;
// After a kill, rank 0's last sign of life shows how long it lived, so rank 0 gives signs often.
constexpr double kAlive_s = 0.02, kTick_s = 0.5, kLook_s = 2;
// More time between two ticks counts as this, because the process was suspended meanwhile.
constexpr double kMostPerTick_s = 1;
// How long the rank that judges waits for the others' stacks, and the others for its verdict.
constexpr double kWaitForStacks_s = 2, kWaitForVerdict_s = 3.5;

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGQUIT);
  sigaddset(&set, SIGALRM);
  sigaddset(&set, ask_signal());
  return set;
}

// Writes a file in one call; what cannot be written is lost.
bool put_file(const std::string& path, const std::string& text, bool only_new = false) {
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (only_new ? O_EXCL : O_TRUNC), 0666);
  if (file < 0) return false;
  const bool whole = ::write(file, text.data(), text.size()) == ssize_t(text.size());
  ::close(file);
  return whole;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::atomic<bool> crash_written{false};

}  // namespace

void leave_signals_to_watchdog() {
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// It has many members because each thing that it watches has one.
class Watchdog::Dog {
 public:
  Dog(comm::Session& session, const WatchOptions& options)
      : options_(options), progress_(options.limit_s) {
    const comm::Comm& world = session.world();
    rank_ = world.rank();
    host_ = session.host();
    started_s_ = session.world().broadcast_text(
        fmt::format("{}", std::chrono::duration_cast<std::chrono::seconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count()),
        0);
    const std::string page = share_flight_page(host_);
    for (const std::string& text :
         session.world().gather_text(fmt::format("{}\n{}\n{}", ::getpid(), page, host_))) {
      const std::vector<std::string> parts = base::split(text, '\n');
      members_.push_back({parts[2], pid_t(std::stol(parts[0])), parts[1]});
    }
    const auto first =
        std::ranges::find_if(members_, [this](const Member& m) { return m.host == host_; });
    first_of_node_ = first - members_.begin() == rank_;
    pthread_getcpuclockid(pthread_self(), &main_clock_);
    prepare_stacks();
    base::keep_spans();
    thread_ = std::jthread([this](const std::stop_token& token) { watch(token); });
  }

  ~Dog() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    ::kill(::getpid(), ask_signal());  // ends the thread's sleep
  }

  // A directory of the node may hold other files, and the flight files of other runs.
  std::string flight_directory(const std::string& run) const {
    if (options_.flight_dir.empty()) return run + "/logs/flight";
    return fmt::format("{}/trainer-flight-{:016x}", options_.flight_dir,
                       base::xxh3(std::filesystem::absolute(run).string()));
  }

  // Flight files and stacks go there from now on. All ranks call.
  void use(comm::Comm& world, const std::string& run) {
    const std::string stacks = run + "/logs/stacks", flight = flight_directory(run);
    comm::on_first(world, [&] {
      io::make_directories(stacks);
      io::make_directories(flight);
      // An attempt before may have had more ranks.
      for (const std::string& name : io::list_directory(flight))
        if (is_flight_name(name) && std::atoi(name.c_str()) >= world.size())
          io::remove_file(flight + "/" + name);
      return std::string();
    });
    std::string problem;
    try {
      io::make_directories(flight);
      problem = open_flight_file(flight, rank_, host_);
    } catch (const io::Failure& e) {
      problem = e.what();
    }
    if (!problem.empty())
      base::log::warning(
          "{}: this rank cannot record there what it does. After a kill, nobody can tell what it "
          "did last. watch.flight_dir = \"/tmp\" keeps the record on the node",
          problem);
    const std::lock_guard lock(mutex_);
    stacks_ = stacks;
    flight_ = flight;
  }

  // See Watchdog::who_parted.
  std::string who_parted(bool by_waits) const {
    const std::vector<Standing> now = settled();
    return (by_waits ? find_parted(now) : find_unlike(now)).text;
  }

 private:
  static bool is_flight_name(const std::string& name) {
    return name.size() == 5 && name.find_first_not_of("0123456789") == name.npos;
  }

  std::string stacks() const {
    const std::lock_guard lock(mutex_);
    return stacks_;
  }
  std::string flight() const {
    const std::lock_guard lock(mutex_);
    return flight_;
  }

  void watch(const std::stop_token& token) {
    const base::ThreadScope scope("watchdog");
    const sigset_t set = watched_signals();
    double looked_s = 0;
    for (double last_s = base::now_s(); !token.stop_requested();) {
      const timespec pause{0, long((rank_ == 0 ? kAlive_s : kTick_s) * 1e9)};
      base::flight_page().head.alive_ns = uint64_t(base::now_ns());
      siginfo_t info{};
      const int signal = sigtimedwait(&set, &info, &pause);
      if (token.stop_requested()) return;
      // mpirun does not forward QUIT. It forwards ALRM to all ranks, and one answer is enough.
      if (signal == SIGQUIT || (signal == SIGALRM && rank_ == 0)) answer_quit();
      if (signal == ask_signal()) answer(info);
      const double now_s = base::now_s();
      if (signal < 0 && now_s - last_s < 0.9 * kTick_s) continue;
      tick(std::min(now_s - last_s, kMostPerTick_s));
      if (now_s - looked_s > kLook_s) {
        look_for_request();
        // Not at every tick, because the bytes that a process reads count as progress.
        base::flight_page().head.resident_kib = uint64_t(base::resident_bytes() >> 10);
        looked_s = now_s;
      }
      last_s = now_s;
    }
  }

  void tick(double seconds) {
    base::FlightPage& page = base::flight_page();
    ran_.push_back({base::now_ns(), main_ran_ns()});
    if (ran_.size() > kTicksOfRan) ran_.erase(ran_.begin());
    const int64_t passed_ns = std::max<int64_t>(ran_.back().at_ns - ran_.front().at_ns, 1);
    page.head.main_ran_ppm =
        uint64_t(1e6 * double(ran_.back().ran_ns - ran_.front().ran_ns) / double(passed_ns));
    page.head.work = work_so_far();
    if (progress_.tick(page.head.work, base::where().phase, seconds, [this] { return others(); }))
      hang();
  }

  // CPU time of the main thread.
  int64_t main_ran_ns() const {
    timespec t{};
    clock_gettime(main_clock_, &t);
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
  }

  std::string stacks_file(const std::string& event, int rank) const {
    return fmt::format("{}/{}-{}-rank{:05}.txt", stacks(), started_s_, event, rank);
  }

  // The head and the stacks of all threads of this process.
  std::string text_of_stacks(const std::string& why) const {
    const base::Where w = base::where();
    std::string text = fmt::format("{}\nrank={} of {} host={} pid={} phase={} step={}\n", why,
                                   w.rank, w.ranks, host_, ::getpid(), w.phase, w.step);
    for (const FlightThread& t : own_flight().threads) {
      if (t.open.empty() || t.name == "watchdog") continue;
      text += fmt::format("{} is in", t.name);
      for (const OpenSpan& span : t.open)
        text += fmt::format(" > {} ({:.1f} s)", span.text,
                            double(base::now_ns() - span.begin_ns) * 1e-9);
      text += "\n";
    }
    return text + collect_stacks();
  }

  // Writes the stacks of this rank for an event, once.
  void write_stacks(const std::string& event, const std::string& why) {
    if (!written_.insert(event).second) return;
    const std::string text = text_of_stacks(why);
    const std::string file = stacks_file(event, rank_);
    if (stacks().empty() || !put_file(file, text))
      within(1, [text] { base::log::write_error(text); });
    ::msync(&base::flight_page(), base::kFlightBytes, MS_SYNC);
  }

  // Asks the other ranks of this node. `value` > 0 is the number of a hang, < 0 of a SIGQUIT.
  void ask_neighbours(int value) const {
    for (size_t r = 0; r < members_.size(); ++r)
      if (int(r) != rank_ && members_[r].host == host_)
        ::sigqueue(members_[r].process, ask_signal(), {.sival_int = value});
  }

  static std::string event_of(int value) {
    return value > 0 ? fmt::format("hang{}", value) : fmt::format("quit{}", -value);
  }

  void answer(const siginfo_t& info) {
    if (info.si_code != SI_QUEUE) return;
    const int value = info.si_value.sival_int;
    if (value == 0) {  // this process crashes
      write_stacks("crash", "this rank has crashed");
      crash_written = true;
    } else {
      write_stacks(event_of(value), value > 0 ? "a rank of this job makes no progress"
                                              : "a rank of this job got SIGQUIT");
    }
  }

  void answer_quit() {
    const int value = -std::max(1, int(base::now_ns() / 1'000'000'000));
    write_stacks(event_of(value), "this rank got SIGQUIT");
    ask_neighbours(value);
    if (!stacks().empty()) put_file(request_file(), request(value));
    within(1, [this] { base::log::line("stacks   of all threads are in {}", stacks()); });
  }

  // Ranks of other nodes share nothing with this one but files. The first rank of each node looks
  // for the newest request.
  std::string request_file() const { return stacks() + "/request"; }
  std::string request(int value) const { return fmt::format("{} {}", started_s_, value); }
  void look_for_request() {
    if (!first_of_node_ || stacks().empty()) return;
    std::ifstream file(request_file());
    std::string started;
    int value = 0;
    if (!(file >> started >> value) || started != started_s_ || value >= 0 ||
        written_.contains(event_of(value)))
      return;
    write_stacks(event_of(value), "a rank of this job got SIGQUIT");
    ask_neighbours(value);
  }

  // Describes ranks of this node that do not answer.
  void describe_silent(const std::string& event) {
    for (size_t r = 0; r < members_.size(); ++r) {
      const std::string file = stacks_file(event, int(r));
      if (int(r) == rank_ || members_[r].host != host_ || exists(file)) continue;
      const std::string state = state_in_proc(fmt::format("/proc/{}", members_[r].process));
      put_file(file + ".silent",
               fmt::format("rank={} host={} pid={} does not answer: {}\n", r, host_,
                           members_[r].process, state.empty() ? "the process is gone" : state),
               true);
    }
  }

  // Where the flight page of another rank can be read; "" if it cannot.
  std::string page_of(int rank) const {
    if (!flight().empty()) return flight_file(flight(), rank);
    const Member& member = members_[size_t(rank)];
    return member.host == host_ ? member.page : "";
  }
  // The work of all other ranks, as far as their pages can be read.
  uint64_t others() const {
    uint64_t work = 0;
    for (int r = 0; r < int(members_.size()); ++r)
      if (const std::string page = r == rank_ ? "" : page_of(r); !page.empty())
        work += work_in(page);
    return work;
  }

  // Returns the state of every rank. A rank without stacks for `event` counts as not answering.
  // With event = "" no rank needs stacks.
  std::vector<Standing> standings(const std::string& event) const {
    std::vector<Standing> standing;
    for (size_t r = 0; r < members_.size(); ++r) {
      Standing s{int(r), members_[r].host, {}, '?', true};
      if (s.host == host_) s.state = state_of_process(members_[r].process);
      s.answers = s.rank == rank_ || event.empty() || exists(stacks_file(event, s.rank));
      s.flight = s.rank == rank_ ? own_flight() : read_flight(page_of(s.rank));
      standing.push_back(std::move(s));
    }
    return standing;
  }

  // Like standings(""), after the other ranks have come to where they wait. Gives them at most 3 s.
  std::vector<Standing> settled() const {
    std::vector<Standing> now;
    uint64_t before = 0, done = 0;
    int alike = 0;
    for (base::Stopwatch watch; alike < 5 && watch.seconds() < 3; before = done) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      now = standings("");
      done = 0;
      for (const Standing& s : now)
        if (s.rank != rank_ && s.flight)
          done += s.flight->begun + s.flight->exchanges +
                  uint64_t(std::ranges::count_if(s.flight->calls, &FlightExchange::ended));
      alike = before == done ? alike + 1 : 0;
    }
    return now;
  }

  std::vector<Standing> of_node() const {
    std::vector<Standing> all = standings("");
    std::erase_if(all, [this](const Standing& s) { return s.host != host_; });
    return all;
  }
  static bool is_gone(pid_t process) {
    const char state = state_of_process(process);
    return state == 'Z' || state == 0;
  }
  // The first rank of this node that is not stopped; nothing if it is this one.
  std::optional<pid_t> speaker_for_node() const {
    for (int r = 0; r < rank_; ++r)
      if (const Member& m = members_[size_t(r)];
          m.host == host_ && !is_gone(m.process) && state_of_process(m.process) != 'T')
        return m.process;
    return {};
  }

  bool all_answered(const std::string& event) const {
    for (size_t r = 0; r < members_.size(); ++r)
      if (!exists(stacks_file(event, int(r)))) return false;
    return true;
  }

  void hang() {
    const int number = ++hangs_;
    const std::string event = event_of(number);
    write_stacks(event,
                 fmt::format("this rank has made no progress for {:.0f} s", progress_.idle_s()));
    ask_neighbours(number);
    if (stacks().empty()) {  // no place to meet the other ranks
      // The first able rank of each node speaks for the node. Ranks of other nodes are unknown. If
      // that rank still exists after a while, it is not able, and this rank speaks.
      const std::optional<pid_t> speaker = speaker_for_node();
      if (speaker) {
        std::this_thread::sleep_for(std::chrono::duration<double>(kWaitForVerdict_s));
        if (options_.on_hang == OnHang::report || is_gone(*speaker)) return end();
      }
      tell(find_culprit(of_node(), progress_.idle_s()), "on the console");
      return end();  // without a run directory there are no hooks
    }
    // One rank judges, the first one to get here.
    const std::string verdict = fmt::format("{}/{}-{}.txt", stacks(), started_s_, event);
    if (put_file(verdict, "", true)) {
      for (base::Stopwatch watch; !all_answered(event) && watch.seconds() < kWaitForStacks_s;)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      describe_silent(event);
      const Verdict found = find_culprit(standings(event), progress_.idle_s());
      tell(found, "in " + stacks());
      put_file(verdict, found.text + "\n");  // lets the others end, and that ends the job
    } else {
      const double most_s = kWaitForVerdict_s + Hooks::most_after_error_s();
      for (base::Stopwatch watch; watch.seconds() < most_s;) {
        struct stat now {};
        if (::stat(verdict.c_str(), &now) == 0 && now.st_size > 0) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      describe_silent(event);
    }
    end();
  }

  void tell(const Verdict& verdict, const std::string& place) const {
    const std::string text =
        fmt::format("hang: {}; stacks of all ranks are {}", verdict.text, place);
    const bool ends = options_.on_hang == OnHang::end;
    const bool first = ends && write_report_about(verdict.rank < 0 ? rank_ : verdict.rank,
                                                  verdict.rank < 0 ? host_ : verdict.host,
                                                  int(base::Exit::watchdog), text);
    within(1, [text] { base::log::write_error(text); });
    if (ends) Hooks::after_error(first, int(base::Exit::watchdog), text);
  }

  void end() const {
    if (options_.on_hang == OnHang::end) std::_Exit(int(base::Exit::watchdog));
  }

  struct Member {
    std::string host;
    pid_t process = 0;
    std::string page;  // of its flight before it has a file, for ranks of its node
  };

  const WatchOptions options_;
  int rank_ = 0;
  std::string host_, started_s_;
  std::vector<Member> members_;  // by rank
  bool first_of_node_ = false;
  mutable std::mutex mutex_;
  std::string stacks_, flight_;
  // Of the thread alone.
  ProgressClock progress_;
  std::set<std::string> written_;
  int hangs_ = 0;
  clockid_t main_clock_ = CLOCK_THREAD_CPUTIME_ID;
  struct Ran {
    int64_t at_ns, ran_ns;
  };
  std::vector<Ran> ran_;  // CPU times of the main thread at the last ticks
  std::jthread thread_;
};

namespace {
std::atomic<Watchdog*> running{nullptr};
}

Watchdog::Watchdog(comm::Session& session, const WatchOptions& options) {
  if (options.limit_s <= 0) {  // nobody waits for the signals, so they do what they usually do
    const sigset_t set = watched_signals();
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    return;
  }
  dog_ = std::make_unique<Dog>(session, options);
  running = this;
}
Watchdog::~Watchdog() {
  if (dog_) running = nullptr;
}

void Watchdog::use(comm::Comm& world, const std::string& run) {
  if (Watchdog* watchdog = running) watchdog->dog_->use(world, run);
}

std::string Watchdog::flight_directory(const std::string& run) {
  const Watchdog* watchdog = running;
  return watchdog ? watchdog->dog_->flight_directory(run) : run + "/logs/flight";
}

std::string Watchdog::who_parted(bool by_waits) {
  const Watchdog* watchdog = running;
  return watchdog ? watchdog->dog_->who_parted(by_waits) : "";
}

void ask_for_stacks() noexcept {
  if (!running.load()) return;
  ::sigqueue(::getpid(), ask_signal(), {.sival_int = 0});
  for (int i = 0; i < 150 && !crash_written; ++i) {
    const timespec pause{0, 20'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace job
