// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/hash.hpp"
#include "base/narrow.hpp"
#include "data/sources/source.hpp"

namespace data {

Fingerprint& Fingerprint::add(int64_t number) { return add(std::span(&number, 1)); }

Fingerprint& Fingerprint::add(std::span<const int64_t> numbers) {
  constexpr size_t kFull = 1 << 16;
  while (!numbers.empty()) {
    // The buffer is folded by the number that fills it.
    const size_t room = buffer_.size() < kFull ? base::ceil_div(kFull - buffer_.size(), 8) : 1,
                 count = std::min(room, numbers.size());
    buffer_.append(reinterpret_cast<const char*>(numbers.data()), count * sizeof(int64_t));
    if (buffer_.size() >= kFull) fold();
    numbers = numbers.subspan(count);
  }
  return *this;
}

Fingerprint& Fingerprint::add(std::string_view text) {
  buffer_ += text;
  return add(int64_t(text.size()));
}

uint64_t Fingerprint::value() {
  fold();
  return sofar_;
}

void Fingerprint::fold() {
  sofar_ = base::xxh3(buffer_.data(), buffer_.size(), sofar_);
  buffer_.clear();
}

uint64_t Source::fingerprint() const {
  Fingerprint print;
  for (int64_t i = 0, n = size(); i < n; ++i) print.add(key(i));
  return print.value();
}

}  // namespace data
