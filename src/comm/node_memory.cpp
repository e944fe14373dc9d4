// SPDX-License-Identifier: Apache-2.0
#include "comm/node_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>

#include "base/memory_limit.hpp"
#include "comm/tree_exchange.hpp"

namespace comm {
namespace {

constexpr int64_t kPage = 4096;

// Closes a file when it is no longer needed.
struct File {
  explicit File(int opened) : number(opened) {}
  File(const File&) = delete;
  ~File() {
    if (number >= 0) ::close(number);
  }
  int number;
};

std::string failed(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

char* map_file(int file, int64_t bytes) {
  void* at = ::mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return nullptr;
  ::madvise(at, size_t(bytes), MADV_HUGEPAGE);  // advice only; most systems ignore it here
  return static_cast<char*>(at);
}

}  // namespace

SharedParts::~SharedParts() {
  for (char* part : of_rank)
    if (part) ::munmap(part, size_t(bytes));
}

// A message from each rank to all others about its part. The part starts with the key. A rank in
// another process namespace finds other processes under these numbers; the key shows that.
struct NodeMemory::Offer {
  int64_t process = 0, file = -1, bytes = 0;
  uint64_t key = 0;
};

NodeMemory::NodeMemory() {
  CHECK_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node_));
  CHECK_MPI(MPI_Comm_rank(node_, &rank_));
  CHECK_MPI(MPI_Comm_size(node_, &size_));
  bell_memory_ = allocate(kPage);
  for (int r = 0; r < size_; ++r)
    bells_.push_back(bell_memory_ ? reinterpret_cast<Bell*>(bell_memory_->of_rank[size_t(r)])
                                  : &own_bell_);
}

NodeMemory::~NodeMemory() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&node_);
}

std::shared_ptr<SharedParts> NodeMemory::allocate(int64_t bytes, Owners owners) {
  if (size_ == 1 || !problem_.empty() || bytes == 0) return nullptr;
  auto parts = std::make_shared<SharedParts>();
  parts->bytes = (bytes + kPage - 1) / kPage * kPage;
  parts->of_rank.assign(owners == Owners::all ? size_t(size_) : 1, nullptr);
  const bool owns = size_t(rank_) < parts->of_rank.size();
  std::string problem;
  // Other ranks' parts would take address space that a limited process needs for itself.
  if (base::address_space().limit > 0) problem = "the address space is limited (ulimit -v)";
  File file(problem.empty() && owns ? ::memfd_create("trainer", MFD_CLOEXEC) : -1);
  if (problem.empty() && owns && (file.number < 0 || ::ftruncate(file.number, parts->bytes) != 0))
    problem = failed("memfd_create");
  const std::string of_parts = map_parts(*parts, problem.empty() ? file.number : -1);
  if (problem.empty()) problem = of_parts;
  // All ranks take the reason of the first rank that failed.
  int first = problem.empty() ? size_ : rank_;
  CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, node_));
  if (first < size_) {
    char text[256] = {};
    problem.copy(text, sizeof text - 1);
    CHECK_MPI(MPI_Bcast(text, sizeof text, MPI_CHAR, first, node_));
    problem_ = fmt::format("rank {} of the node: {}", first, text);
    return nullptr;
  }
  // All keys are cleared before any rank continues, so every part is zero-filled.
  if (owns) std::memset(parts->of_rank[size_t(rank_)], 0, sizeof(uint64_t));
  CHECK_MPI(MPI_Barrier(node_));
  std::erase_if(parts_, [](const auto& gone) { return gone.expired(); });
  if (owners == Owners::all) parts_.push_back(parts);
  return parts;
}

// Maps this rank's part and the other ranks' parts. Returns the problem; "" if there is none. All
// ranks of the node call, even a rank that has no file.
std::string NodeMemory::map_parts(SharedParts& parts, int file) {
  Offer mine{.process = ::getpid(), .file = file, .bytes = parts.bytes};
  std::string problem;
  if (file >= 0) {
    char* own = parts.of_rank[size_t(rank_)] = map_file(file, parts.bytes);
    if (own) {
      std::random_device random;
      mine.key = uint64_t(random()) << 32 | random();
      std::memcpy(own, &mine.key, sizeof mine.key);
    } else {
      problem = failed("mmap");
      mine.file = -1;
    }
  }
  std::vector<Offer> offers(static_cast<size_t>(size_));
  CHECK_MPI(
      MPI_Allgather(&mine, sizeof mine, MPI_BYTE, offers.data(), sizeof mine, MPI_BYTE, node_));
  for (int r = 0; r < int(parts.of_rank.size()) && problem.empty(); ++r) {
    if (r == rank_) continue;
    const Offer& offer = offers[size_t(r)];
    CHECK(offer.bytes == parts.bytes, "rank {} of the node shares {} bytes, but rank {} shares {}",
          rank_, parts.bytes, r, offer.bytes);
    if (offer.file < 0) return "";  // that rank has the reason
    const std::string path = fmt::format("/proc/{}/fd/{}", offer.process, offer.file);
    const File other(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat status {};
    if (other.number < 0 || ::fstat(other.number, &status) != 0) return failed(path.c_str());
    const std::string foreign = path + " is not the memory of that rank";
    if (status.st_size != parts.bytes) return foreign;
    char* part = parts.of_rank[size_t(r)] = map_file(other.number, parts.bytes);
    if (!part) return failed("mmap");
    if (std::memcmp(part, &offer.key, sizeof offer.key) != 0) return foreign;
  }
  return problem;
}

const SharedParts* NodeMemory::find(const void* data, int64_t bytes) const {
  const char* begin = static_cast<const char*>(data);
  for (const auto& weak : parts_)
    if (const auto parts = weak.lock()) {
      const char* own = parts->of_rank[size_t(rank_)];
      if (begin >= own && begin + bytes <= own + parts->bytes) return parts.get();
    }
  return nullptr;
}

std::vector<int> NodeMemory::ranks_of(MPI_Comm group) const {
  MPI_Group theirs, ours;
  CHECK_MPI(MPI_Comm_group(group, &theirs));
  CHECK_MPI(MPI_Comm_group(node_, &ours));
  int size = 0;
  CHECK_MPI(MPI_Group_size(theirs, &size));
  std::vector<int> all(static_cast<size_t>(size)), ranks(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  CHECK_MPI(MPI_Group_translate_ranks(theirs, size, all.data(), ours, ranks.data()));
  CHECK_MPI(MPI_Group_free(&theirs));
  CHECK_MPI(MPI_Group_free(&ours));
  if (std::find(ranks.begin(), ranks.end(), MPI_UNDEFINED) != ranks.end()) ranks.clear();
  return ranks;
}

}  // namespace comm
