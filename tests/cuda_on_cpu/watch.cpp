// SPDX-License-Identifier: Apache-2.0
#include "watch.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "shared_memory.hpp"

namespace cuda_on_cpu {

RunningThread running;
constinit thread_local bool in_kernel = false;

bool watches() {
  static const bool on = std::getenv("CUDA_ON_CPU_WATCH") != nullptr;
  return on;
}

namespace {

constexpr uint16_t kSeveral = 0xffff;
constexpr uint8_t kSeveralWarps = 0xff;

// The last access to some of the bytes of a word, by one thread or by several.
struct Access {
  uint32_t interval;
  uint16_t thread;
  uint8_t warp, warp_barriers, bytes;
};
struct Word {
  Access write, read;
};
constexpr size_t kWord = 4;

// The last accesses of streams to a line.
struct Line {
  uint32_t write;
  uint32_t write_stream;
  uint32_t reads[kMostStreams];
};
constexpr size_t kLine = 64;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
// Zeros that take no memory before they are touched.
template <class T>
std::unique_ptr<T[], Free> lazy_zeros(size_t count) {
  return std::unique_ptr<T[], Free>(static_cast<T*>(std::calloc(count, sizeof(T))));
}

struct Region {
  const char* begin = nullptr;
  size_t bytes = 0;
  Memory kind = Memory::device;
  std::unique_ptr<Word[], Free> words{};
  std::unique_ptr<Line[], Free> lines{};
};
std::map<const char*, Region>& regions() {
  static auto* all = new std::map<const char*, Region>;
  return *all;
}

// The result of a search for a block of addresses: the only region that overlaps the block. Kernels
// report every access, so results are cached. Most addresses, such as threadIdx, are in no region.
struct Known {
  uintptr_t block = 0;
  const char* begin = nullptr;
  size_t bytes = 0;  // 0: no region
  Region* region = nullptr;
};
constexpr size_t kBlock = 256, kKnownBits = 9;
std::array<Known, 1 << kKnownBits> known_blocks;

// Finds the region of an address. Returns false if several regions overlap the block.
bool search(const char* at, Known& found) {
  const auto* first = reinterpret_cast<const char*>(found.block * kBlock);
  auto after = regions().lower_bound(first + kBlock);
  size_t touching = 0;
  while (after != regions().begin()) {
    Region& r = (--after)->second;
    if (r.begin + r.bytes <= first) break;
    ++touching;
    if (touching == 1 || (at >= r.begin && at < r.begin + r.bytes))
      found = {found.block, r.begin, r.bytes, &r};
  }
  return touching <= 1;
}

const Known& known_of(const char* at) {
  const uintptr_t block = reinterpret_cast<uintptr_t>(at) / kBlock;
  // Stacks of threads are at equal distances, so block numbers are hashed to avoid collisions.
  Known& kept = known_blocks[block * 0x9e3779b97f4a7c15u >> (64 - kKnownBits)];
  if (kept.block == block) return kept;
  static Known found;
  found = {block};
  if (search(at, found)) return kept = found;
  return found;
}

const WatchedWork* doing = nullptr;
std::string problem;

std::string place_of(const Region& r, size_t offset) {
  constexpr const char* kNames[] = {"device", "shared", "pinned"};
  return "byte " + std::to_string(offset) + " of " + std::to_string(r.bytes) + " of " +
         kNames[int(r.kind)] + " memory";
}
std::string kernel_name() { return running.kernel ? name_of_function(running.kernel) : "a copy"; }

uint8_t my_warp() { return uint8_t(running.number / 32); }
bool is_ordered(const Access& a, const Region& r) {
  if (a.interval < running.launch) return true;
  if (a.interval < running.block) return r.kind == Memory::shared;
  if (a.interval < running.interval || a.thread == running.number) return true;
  return a.warp == my_warp() && a.warp_barriers < running.warp_barriers[my_warp()];
}

// Merges an access into the earlier ones of the same interval.
void keep(Access& last, uint8_t bytes, bool write) {
  const uint8_t warp = my_warp(), barriers = running.warp_barriers[warp];
  const Access mine{running.interval, running.number, warp, barriers, bytes};
  if (last.interval != running.interval) {
    last = mine;
  } else if (last.thread == running.number) {
    last.bytes |= bytes;
    last.warp_barriers = barriers;
  } else if (write || last.bytes != bytes || (last.warp == warp && last.warp_barriers < barriers)) {
    last = mine;
  } else {
    last.thread = kSeveral;
    if (last.warp != warp) last.warp = kSeveralWarps;
  }
}

void look_for_race(Region& r, size_t offset, size_t bytes, bool write) {
  if (!r.words) r.words = lazy_zeros<Word>(r.bytes / kWord + 1);
  for (size_t at = offset; at < offset + bytes; at = (at / kWord + 1) * kWord) {
    Word& word = r.words[at / kWord];
    const size_t first = at % kWord, end = std::min(offset + bytes - (at - first), kWord);
    const auto mask = uint8_t((1u << end) - (1u << first));
    const bool race = (word.write.bytes & mask && !is_ordered(word.write, r)) ||
                      (write && word.read.bytes & mask && !is_ordered(word.read, r));
    if (race && problem.empty())
      problem = "a race in " + kernel_name() + ": thread " + std::to_string(running.number) +
                (write ? " writes " : " reads ") + place_of(r, at) +
                ", which another thread touches without a barrier between them";
    keep(write ? word.write : word.read, mask, write);
  }
}

void look_for_hazard(Region& r, size_t offset, size_t bytes, bool write) {
  if (!r.lines) r.lines = lazy_zeros<Line>(r.bytes / kLine + 1);
  const size_t stream = doing->stream;
  for (size_t l = offset / kLine; l <= (offset + bytes - 1) / kLine; ++l) {
    Line& line = r.lines[l];
    // This work has already checked the line for the same kind of access. Work of another stream
    // that came in between has checked the line, too.
    if (write ? line.write == doing->number && line.write_stream == stream
              : line.reads[stream] == doing->number)
      continue;
    size_t other = kMostStreams;
    if (line.write_stream != stream && line.write > doing->before.at[line.write_stream])
      other = line.write_stream;
    for (size_t s = 0; s < kMostStreams && write; ++s)
      if (s != stream && line.reads[s] > doing->before.at[s]) other = s;
    if (other < kMostStreams && problem.empty())
      problem = "streams without an order: " + kernel_name() + ", work " +
                std::to_string(doing->number) + " of stream " + std::to_string(stream) +
                (write ? ", writes " : ", reads ") + place_of(r, l * kLine) + ", which stream " +
                std::to_string(other) + " touches, and no event lies between them";
    if (write) {
      line.write = doing->number;
      line.write_stream = uint32_t(stream);
    } else {
      line.reads[stream] = doing->number;
    }
  }
}

std::set<size_t>& used_numbers() {
  static std::set<size_t> all{0};  // 0 is the default stream
  return all;
}

}  // namespace

Clock& host_clock() {
  static Clock clock;
  return clock;
}

size_t take_stream_number() {
  size_t number = 0;
  while (used_numbers().count(number)) ++number;
  used_numbers().insert(number);
  return number;
}
void return_stream_number(size_t number) { used_numbers().erase(number); }

WatchedWork add_work(size_t stream, Clock& clock) {
  if (stream >= kMostStreams) throw std::runtime_error("too many streams to watch");
  static Clock latest;  // numbers of streams are used again, their counts go on
  clock.join(host_clock());
  clock.at[stream] = ++latest.at[stream];
  return {stream, clock.at[stream], clock};
}

bool run_watched(const WatchedWork& as, const std::function<bool()>& work) {
  struct Doing {
    explicit Doing(const WatchedWork& work) { doing = &work; }
    ~Doing() {
      doing = nullptr;
      running.kernel = nullptr;
    }
  };
  bool done = false;
  {
    const Doing now(as);
    done = work();
  }
  if (!problem.empty()) throw std::runtime_error("cuda_on_cpu: " + std::exchange(problem, ""));
  return done;
}

void watch_memory(const void* begin, size_t bytes, Memory kind) {
  if (!watches() || bytes == 0) return;
  forget_memory(begin);
  const auto* at = static_cast<const char*>(begin);
  regions()[at] = {.begin = at, .bytes = bytes, .kind = kind};
}
void forget_memory(const void* begin) {
  if (!watches()) return;
  known_blocks = {};
  regions().erase(static_cast<const char*>(begin));
}

void touch(const void* at, size_t bytes, bool writes) {
  const auto* address = static_cast<const char*>(at);
  const Known& known = known_of(address);
  const auto offset = size_t(address - known.begin);
  if (offset >= known.bytes || bytes == 0) return;
  Region& r = *known.region;
  bytes = std::min(bytes, known.bytes - offset);
  if (in_kernel && r.kind != Memory::host) look_for_race(r, offset, bytes, writes);
  if (doing && r.kind != Memory::shared) look_for_hazard(r, offset, bytes, writes);
}

}  // namespace cuda_on_cpu
