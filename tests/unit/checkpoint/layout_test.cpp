// SPDX-License-Identifier: Apache-2.0
// Tests the structure of checkpoint files: HDF5 opens files with any number of tensors, even if
// some of its metadata follow the last dataset.
#include "checkpoint/layout.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "io/files.hpp"

namespace {

TEST(Layout, FilesReachTheEndThatTheyState) {
  char folder[] = "/tmp/trainer_layout_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  int with_tail = 0;
  for (int64_t tensors = 1; tensors <= 130; ++tensors) {
    SCOPED_TRACE(tensors);
    checkpoint::State state{.step = 1, .tensors = {}, .numbers = {}, .texts = {}};
    for (const char* of : {"/params/trunk", "/optimizer/momentum/trunk"})
      for (int64_t i = 0; i < tensors; ++i)
        state.tensors.push_back({.name = fmt::format("{}/layer{}.{}.bn1.weight", of, i % 4, i),
                                 .type = device::DType::f32,
                                 .shape = {64 << (i % 3)},
                                 .parts = {}});
    for (int i = 0; i < 20; ++i) state.numbers[fmt::format("number_{}", i)] = i;
    for (const char* name : {"name", "data", "device", "version"})
      state.texts[name] = std::string(40, 'x');
    state.texts["deck"] = std::string(size_t(3000 + 7 * tensors), 'x');
    checkpoint::FileLayout layout = checkpoint::layout_of(state);
    std::string image = checkpoint::make_structure("layout test", state, layout);
    ASSERT_LE(int64_t(image.size()), layout.file_bytes);
    with_tail += layout.file_bytes > layout.index + layout.index_bytes;
    image.resize(size_t(layout.file_bytes));
    const std::string path = fmt::format("{}/{}.h5", folder, tensors);
    io::write_file_atomically(path, image, false);
    EXPECT_NO_THROW(io::H5File::open(path));
  }
  std::filesystem::remove_all(folder);
  EXPECT_GT(with_tail, 0) << "no case has metadata behind the last dataset";
}

}  // namespace
