// SPDX-License-Identifier: Apache-2.0
// Reads files of initial weights. The first bytes select the format: a zip archive is a file of
// torch.save if it has a data.pkl, and an .npz otherwise; 0x80 is an old file of torch.save, '{'
// the text of a .npy header, anything else a .safetensors.
#include <algorithm>

#include "checkpoint/name_map.hpp"
#include "checkpoint/npy_header.hpp"
#include "checkpoint/weight_file.hpp"
#include "memory_file.hpp"
#include "targets.hpp"

namespace fuzz {

void weights(std::string_view input) {
  if (input.starts_with('{')) {
    checkpoint::NpyHeader header = checkpoint::parse_npy_header(input);
    checkpoint::checked_count(header.shape);
    checkpoint::weight_type(header.descr);
    return;
  }
  MemoryFile memory(input);
  const bool zip = input.starts_with("PK"), torch = input.find("/data.pkl") != input.npos;
  auto file = input.starts_with('\x80') || (zip && torch)
                  ? checkpoint::open_pth_weights(memory.path())
              : zip ? checkpoint::open_npz_weights(memory.path())
                    : checkpoint::open_safetensors_weights(memory.path());
  // plan_init matches names with patterns; a mismatch is not a finding.
  try {
    checkpoint::InitOptions options;
    options.map = {{"encoder", "params/img"}, {"", "params"}};
    checkpoint::plan_init({{"encoder/embedding/bias", {3}, false}, {"a", {1, 4, 2}, true}}, *file,
                          options);
  } catch (const base::Error&) {
  }
  // elements; a small zip can hold very large arrays
  constexpr int64_t kPiece = 1000, kMost = 100'000;
  std::vector<float> piece(kPiece);
  int64_t taken = 0;
  for (size_t t = 0; t < file->tensors().size() && taken < kMost; ++t) {
    const checkpoint::FileTensor& tensor = file->tensors()[t];
    expect(!tensor.name.empty() && tensor.count() >= 0, "a tensor without name or size");
    checkpoint::describe(tensor);
    if (!tensor.type) continue;
    file->begin(t);
    for (int64_t left = tensor.count(); left > 0 && taken < kMost;) {
      int64_t n = std::min(left, kPiece);
      file->read(piece.data(), n);
      left -= n;
      taken += n;
    }
  }
}

}  // namespace fuzz
