// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/foreign_file.hpp"

namespace checkpoint {

std::string foreign_hint(const std::string& path) {
  if (path.ends_with(".pkl"))
    return "; such files are pickles, which can run any code: write the weights with torch.save, "
           "safetensors.torch.save_file or numpy.savez";
  for (const char* end : {".pt", ".pth", ".bin", ".ckpt", ".torch", ".index.json"})
    if (path.ends_with(end)) return "; init.from takes the weights of such files";
  return "";
}

}  // namespace checkpoint
