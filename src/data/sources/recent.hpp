// SPDX-License-Identifier: Apache-2.0
// Things that were used recently, by number: open files, mapped indexes.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace data {

// Keeps things until they are too many, or until their costs exceed a bound; then those go that
// were not used for the longest time. The latest one always stays. Any thread may call.
template <class T>
class Recent {
 public:
  Recent(size_t most, int64_t most_cost) : most_(most), most_cost_(most_cost) {}

  // Returns null if there is none.
  std::shared_ptr<T> find(size_t number) {
    std::lock_guard lock(mutex_);
    const auto found = where_.find(number);
    if (found == where_.end()) return nullptr;
    items_.splice(items_.begin(), items_, found->second);
    return found->second->thing;
  }
  // Replaces what there is under this number.
  void put(size_t number, std::shared_ptr<T> thing, int64_t cost) {
    std::vector<std::shared_ptr<T>> gone;  // closed without the lock
    std::lock_guard lock(mutex_);
    if (const auto found = where_.find(number); found != where_.end())
      gone.push_back(take(found->second));
    items_.push_front({number, std::move(thing), cost});
    where_[number] = items_.begin();
    cost_ += cost;
    while (items_.size() > 1 && (items_.size() > most_ || cost_ > most_cost_))
      gone.push_back(take(std::prev(items_.end())));
  }

 private:
  struct Item {
    size_t number;
    std::shared_ptr<T> thing;
    int64_t cost;
  };
  using Items = std::list<Item>;
  std::shared_ptr<T> take(typename Items::iterator item) {
    std::shared_ptr<T> thing = std::move(item->thing);
    cost_ -= item->cost;
    where_.erase(item->number);
    items_.erase(item);
    return thing;
  }

  const size_t most_;
  const int64_t most_cost_;
  std::mutex mutex_;
  Items items_;
  std::unordered_map<size_t, typename Items::iterator> where_;
  int64_t cost_ = 0;
};

}  // namespace data
