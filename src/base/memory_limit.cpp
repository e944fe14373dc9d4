// SPDX-License-Identifier: Apache-2.0
#include "base/memory_limit.hpp"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <system_error>

#include "base/shortage.hpp"

namespace base {
namespace {

int64_t mebibytes_of(int64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

std::string limit_text() {
  const AddressSpace space = address_space();
  if (space.limit == 0) return "";
  return fmt::format(" (ulimit -v allows {} MiB of address space, {} MiB are in use)",
                     mebibytes_of(space.limit), mebibytes_of(space.used));
}

}  // namespace

AddressSpace address_space() {
  AddressSpace space;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return space;
  space.limit = int64_t(limit.rlim_cur);
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    long long pages = 0;
    if (std::fscanf(file, "%lld", &pages) == 1)
      space.used = pages * int64_t(::sysconf(_SC_PAGESIZE));
    std::fclose(file);
  }
  return space;
}

void share_heap_if_limited() {
  if (address_space().limit > 0) ::mallopt(M_ARENA_MAX, 1);
}

void need_address_space(int64_t bytes, const std::string& purpose) {
  const AddressSpace space = address_space();
  if (space.limit == 0 || space.used + bytes <= space.limit) return;
  note_shortage(bytes, purpose.c_str());
  fail(Exit::mesh,
       "out of memory: {} needs {} MiB of address space, and {} of the {} MiB that are allowed are "
       "in use. Raise the limit (ulimit -v, or the memory that the job asks for)",
       purpose, mebibytes_of(bytes), mebibytes_of(space.used), mebibytes_of(space.limit));
}

int64_t stack_bytes(int64_t threads) {
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return threads * (known ? int64_t(limit.rlim_cur) : int64_t{2} << 20);
}

Error error_of(const std::exception& e) {
  if (dynamic_cast<const std::bad_alloc*>(&e))
    return {Exit::mesh, "out of memory" + limit_text() +
                            "; see `--mode plan` for what this deck needs per rank"};
  const auto* system = dynamic_cast<const std::system_error*>(&e);
  if (system && system->code() == std::errc::resource_unavailable_try_again)
    return {Exit::mesh,
            "out of memory or processes: a thread could not be started" + limit_text() +
                "; raise ulimit -v or ulimit -u, or lower run.threads and loader.threads"};
  return {Exit::internal, e.what()};
}

}  // namespace base
