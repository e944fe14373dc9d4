// SPDX-License-Identifier: Apache-2.0
// Texts that travel between ranks with a seal. MPI does not notice if a rank skips an exchange or
// takes part in another one. That rank would use whatever was in its memory, and the others would
// wait for it elsewhere. A wrong seal stops the rank at once.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "base/hash.hpp"
#include "comm/exchange_error.hpp"

namespace comm {

constexpr int kSealBytes = 8;

// `number` counts the texts that these ranks have exchanged.
inline std::string sealed(const std::string& text, uint64_t number) {
  const uint64_t seal = base::xxh3(text.data(), text.size(), number);
  return text + std::string(reinterpret_cast<const char*>(&seal), kSealBytes);
}

// Returns the text without its seal. `exchange` names the exchange, and `from` its sender. Memory
// that has received nothing holds zeros.
inline std::string unsealed(std::string_view bytes, uint64_t number, std::string_view exchange,
                            int from) {
  if (bytes.size() >= kSealBytes) {
    const std::string_view text = bytes.substr(0, bytes.size() - kSealBytes);
    uint64_t seal = 0;
    std::memcpy(&seal, text.data() + text.size(), kSealBytes);
    if (seal == base::xxh3(text.data(), text.size(), number)) return std::string(text);
  }
  const bool nothing = bytes.find_first_not_of('\0') == bytes.npos;
  const std::string what =
      nothing ? fmt::format("nothing came from rank {} of the group: this rank took no part", from)
              : fmt::format(
                    "the message from rank {} of the group belongs to another exchange: one of the "
                    "two ranks has called the wrong exchange",
                    from);
  throw ExchangeError(fmt::format("{}: {}", exchange, what));
}

}  // namespace comm
