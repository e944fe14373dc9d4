// SPDX-License-Identifier: Apache-2.0
#include "ssl_case.hpp"

namespace golden {

// One row for each kind: ssl_NAME.cpp ends in ssl_NAME_kind().
#define SSL_KINDS(ROW) \
  ROW(evaluation)      \
  ROW(heads)           \
  ROW(losses)          \
  ROW(meters) ROW(optimizers) ROW(schedules) ROW(siglip) ROW(training) ROW(transforms) ROW(trunk)

#define ROW(name) SslKind ssl_##name##_kind();
SSL_KINDS(ROW)
#undef ROW

const SslKind* find_ssl_kind(const CaseFile& file) {
  static const std::vector<SslKind> kinds = {
#define ROW(name) ssl_##name##_kind(),
      SSL_KINDS(ROW)
#undef ROW
  };
  for (const SslKind& kind : kinds)
    if (kind.fits(file)) return &kind;
  return nullptr;
}

}  // namespace golden
