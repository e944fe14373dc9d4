// SPDX-License-Identifier: Apache-2.0
#include "train/observers.hpp"

#include "train/attempt.hpp"

namespace train {

ObserverRow memory_log_row();
ObserverRow histograms_row();
ObserverRow tensorboard_row();
ObserverRow trace_window_row();
ObserverRow hooks_row();

// The observers, in the order in which they are called. Each has a file of its name.
// Hooks come last, because their commands may read what others write.
std::vector<ObserverRow> observer_rows() {
  return {memory_log_row(), histograms_row(), tensorboard_row(), trace_window_row(), hooks_row()};
}

void Observers::open(const Attempt& attempt) {
  for (const ObserverRow& row : observer_rows())
    if (std::unique_ptr<Observer> observer = row.make(attempt)) all_.push_back(std::move(observer));
}

std::string Observers::wants_stop() const {
  for (const std::unique_ptr<Observer>& one : all_)
    if (std::string why = one->wants_stop(); !why.empty()) return why;
  return "";
}

}  // namespace train
