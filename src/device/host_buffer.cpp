// SPDX-License-Identifier: Apache-2.0
#include "device/host_buffer.hpp"

#include <cstdlib>

#include "base/error.hpp"
#include "device/gpu.hpp"

namespace device {

HostBuffer::HostBuffer(Kind kind, int64_t bytes) : data_(nullptr, Free{kind}), bytes_(bytes) {
  CHECK(bytes >= 0);
  if (bytes == 0) return;
  data_.reset(kind == Kind::cuda ? gpu::allocate_host(size_t(bytes)) : std::malloc(size_t(bytes)));
  if (!data_)
    base::fail(base::Exit::mesh, "out of host memory: {} MiB{}", (bytes >> 20) + 1,
               kind == Kind::cuda ? " (pinned)" : "");
}

void HostBuffer::Free::operator()(void* p) const {
  if (kind == Kind::cuda)
    gpu::release_host(p);
  else
    std::free(p);
}

}  // namespace device
