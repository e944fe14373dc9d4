// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/foreign_file.hpp"

namespace checkpoint {

std::string foreign_hint(const std::string& path) {
  if (path.ends_with(".index.json"))
    return "; it is an index of weights that lie in several files: load them and write all into "
           "one .safetensors file";
  for (const char* end : {".pt", ".pth", ".bin", ".ckpt", ".pkl"})
    if (path.ends_with(end))
      return "; such files are pickles, which can run any code: write the weights with "
             "safetensors.torch.save_file or numpy.savez";
  return "";
}

}  // namespace checkpoint
