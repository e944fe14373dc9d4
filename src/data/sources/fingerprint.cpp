// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"
#include "data/sources/source.hpp"

namespace data {

Fingerprint& Fingerprint::add(int64_t number) {
  buffer_.append(reinterpret_cast<const char*>(&number), sizeof number);
  if (buffer_.size() >= 1 << 16) fold();
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
