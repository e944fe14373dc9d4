// SPDX-License-Identifier: Apache-2.0
#include "device/transfers.hpp"

#include <utility>

#include "base/error.hpp"

namespace device {
namespace {
thread_local Transfers counted;
thread_local const char* no_waits_in = nullptr;
}  // namespace

Transfers Transfers::since(const Transfers& before) const {
  return {uploads - before.uploads, uploaded_bytes - before.uploaded_bytes,
          downloads - before.downloads, downloaded_bytes - before.downloaded_bytes,
          waits - before.waits};
}

const Transfers& transfers() { return counted; }

NoWaits::NoWaits(const char* where, bool active) : before_(no_waits_in) {
  if (active) no_waits_in = where;
}
NoWaits::~NoWaits() { no_waits_in = before_; }

MayWait::MayWait() : before_(std::exchange(no_waits_in, nullptr)) {}
MayWait::~MayWait() { no_waits_in = before_; }

void count_upload(int64_t bytes) {
  ++counted.uploads;
  counted.uploaded_bytes += bytes;
}
void count_download(int64_t bytes) {
  ++counted.downloads;
  counted.downloaded_bytes += bytes;
}
void count_wait(const char* what) {
  ++counted.waits;
  CHECK(!no_waits_in, "{}: the host waits for the GPU: {}", no_waits_in, what);
}

}  // namespace device
