// SPDX-License-Identifier: Apache-2.0
#include "data/sources/making_lock.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/cancel.hpp"

namespace data {

MakingLock::MakingLock(const std::vector<std::string>& places, const std::stop_token& token) {
  for (const std::string& place : places) try {
      std::error_code ignored;
      std::filesystem::create_directories(std::filesystem::path(place).parent_path(), ignored);
      file_ = io::File(place + ".lock", io::File::Mode::update);
      // Very many ranks may ask one server.
      constexpr std::chrono::milliseconds kLongest(320);
      for (std::chrono::milliseconds wait(10); !file_.try_lock();
           wait = std::min(2 * wait, kLongest)) {
        waited_ = true;
        base::end_if_asked(token);
        std::this_thread::sleep_for(wait);
      }
      return;
    } catch (const io::Failure&) {
      release();
    }
}

void MakingLock::release() {
  if (!file_.is_open()) return;
  // Whoever waits for the removed file gets its lock, too, and then looks for what was made.
  std::error_code ignored;
  std::filesystem::remove(file_.path(), ignored);
  file_ = {};
}

}  // namespace data
