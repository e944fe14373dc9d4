// SPDX-License-Identifier: Apache-2.0
// Names and groups of ops, from ops.def.
#include "kernels/dispatch.hpp"

#include "base/span.hpp"

namespace kernels {

const char* name_of(Op op) {
  switch (op) {
#define OP(name, Args, group) \
  case Op::name:              \
    return #name;
#include "kernels/ops.def"
#undef OP
    case Op::count:
      break;
  }
  return "?";
}

const base::SpanName& span_name_of(Op op) {
  static constexpr base::SpanName kNames[] = {
#define OP(name, Args, group) #name,
#include "kernels/ops.def"
#undef OP
  };
  return kNames[int(op)];
}

OpGroup group_of(Op op) {
  constexpr OpGroup kGroups[] = {
#define OP(name, Args, group) OpGroup::group,
#include "kernels/ops.def"
#undef OP
  };
  return kGroups[int(op)];
}

}  // namespace kernels
