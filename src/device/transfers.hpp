// SPDX-License-Identifier: Apache-2.0
// What crosses between host and GPU, and how often the host waits for a GPU. A host that waits lets
// the GPU run dry: a training step does it nowhere, and a guard can hold it to that.
#pragma once

#include <cstdint>

namespace device {

// Of the calling thread, since it began.
struct Transfers {
  int64_t uploads = 0, uploaded_bytes = 0;      // host to GPU
  int64_t downloads = 0, downloaded_bytes = 0;  // GPU to host
  int64_t waits = 0;                            // of the host for a GPU

  Transfers since(const Transfers& before) const;
};
const Transfers& transfers();

// While one lives, a wait of this thread for a GPU is an error that names `where` and what was
// waited for: copies that wait are waits.
class NoWaits {
 public:
  explicit NoWaits(const char* where, bool active = true);
  ~NoWaits();
  NoWaits(const NoWaits&) = delete;

 private:
  const char* before_;
};
// Lifts that for what cannot do without.
class MayWait {
 public:
  MayWait();
  ~MayWait();
  MayWait(const MayWait&) = delete;

 private:
  const char* before_;
};

// For what copies and waits.
void count_upload(int64_t bytes);
void count_download(int64_t bytes);
void count_wait(const char* what);

}  // namespace device
