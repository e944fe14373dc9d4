// SPDX-License-Identifier: Apache-2.0
#include "device/staging.hpp"

#include <algorithm>
#include <cstring>

#include "base/narrow.hpp"
#include "device/gpu.hpp"
#include "device/queue.hpp"
#include "device/transfers.hpp"

namespace device {

void Event::Free::operator()(void* event) const { gpu::free_event(event); }

void Event::record(Queue& queue) {
  if (queue.kind() != Kind::cuda) return;
  CHECK(!queue.recording(), "an event while a graph is recorded");
  if (!event_) event_.reset(gpu::make_event());
  gpu::record(event_.get(), queue.stream());
}

void Event::wait(Queue& queue) const {
  if (!event_ || queue.kind() != Kind::cuda) return;
  CHECK(!queue.recording(), "an event while a graph is recorded");
  gpu::wait(event_.get(), queue.stream());
}

void Event::synchronize(const char* what) const {
  if (!event_ || gpu::reached(event_.get())) return;
  count_wait(what);
  gpu::wait_for_event(event_.get());
}

void UploadRing::upload(void* to, const void* from, int64_t bytes, Queue& queue) {
  CHECK(!queue.recording(),
        "an upload while a graph is recorded: it would send what its staging memory holds by then");
  count_upload(bytes);
  for (int64_t done = 0; done < bytes;) {
    if (filled_ == kChunkBytes) {
      filled_ = 0;
      chunk_ = (chunk_ + 1) % chunks_.size();
    }
    Chunk& chunk = chunks_[chunk_];
    if (filled_ == 0) {
      MayWait lifted;
      chunk.used.synchronize("an upload while the copies of all pinned chunks are pending");
      if (chunk.memory.bytes() == 0) chunk.memory = HostBuffer(Kind::cuda, kChunkBytes);
    }
    const int64_t part = std::min(bytes - done, kChunkBytes - filled_);
    char* staged = chunk.memory.data() + filled_;
    std::memcpy(staged, static_cast<const char*>(from) + done, size_t(part));
    gpu::copy(static_cast<char*>(to) + done, staged, size_t(part), queue.stream());
    chunk.used.record(queue);
    done += part;
    filled_ = std::min(base::round_up(filled_ + part, 64), kChunkBytes);
  }
}

Fetched::Fetched(Kind kind, int64_t bytes) {
  if (kind == Kind::plan) return;
  for (Turn& turn : turns_) turn.memory = HostBuffer(kind, bytes);
}

void Fetched::fetch(int64_t turn, const View& from, Queue& queue) {
  Turn& t = turns_[size_t(turn) % turns_.size()];
  t.view = {t.memory.data(), from.type, from.count};
  if (queue.kind() == Kind::plan || from.count == 0) return;
  CHECK(from.bytes() <= t.memory.bytes(), "fetching {} of {} bytes", from.bytes(),
        t.memory.bytes());
  if (queue.kind() == Kind::cpu) {
    std::memcpy(t.memory.data(), from.data, size_t(from.bytes()));
    return;
  }
  count_download(from.bytes());
  gpu::copy(t.memory.data(), from.data, size_t(from.bytes()), queue.stream());
  t.arrived.record(queue);
}

View Fetched::read(int64_t turn) {
  Turn& t = turns_[size_t(turn) % turns_.size()];
  t.arrived.synchronize("numbers that were fetched");
  return t.view;
}

}  // namespace device
