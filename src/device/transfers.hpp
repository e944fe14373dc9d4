// SPDX-License-Identifier: Apache-2.0
// Counts of copies between host and GPU and of waits of the host. A waiting host lets the GPU run
// out of work. A training step never waits, and NoWaits can enforce that.
#pragma once

#include <cstdint>

namespace device {

// Counts of the calling thread since its start.
struct Transfers {
  int64_t uploads = 0, uploaded_bytes = 0;      // host to GPU
  int64_t downloads = 0, downloaded_bytes = 0;  // GPU to host
  int64_t waits = 0;                            // times the host waited for a GPU

  Transfers since(const Transfers& before) const;
};
const Transfers& transfers();

// While it exists, a wait of this thread for a GPU is an error that names `where` and the reason. A
// copy that waits counts as a wait.
class NoWaits {
 public:
  explicit NoWaits(const char* where, bool active = true);
  ~NoWaits();
  NoWaits(const NoWaits&) = delete;

 private:
  const char* before_;
};
// Lifts NoWaits for a wait that cannot be avoided.
class MayWait {
 public:
  MayWait();
  ~MayWait();
  MayWait(const MayWait&) = delete;

 private:
  const char* before_;
};

// Code that copies or waits calls these.
void count_upload(int64_t bytes);
void count_download(int64_t bytes);
void count_wait(const char* what);

}  // namespace device
