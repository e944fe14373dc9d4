#include "kernels/dispatch.hpp"

namespace kernels {

const char* name_of(Op op) {
  switch (op) {
#define OP(name, Args) \
  case Op::name: return #name;
#include "kernels/ops.def"
#undef OP
    case Op::count: break;
  }
  return "?";
}

}  // namespace kernels
