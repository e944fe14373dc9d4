// SPDX-License-Identifier: Apache-2.0
// Runs the op tests: test_kernels [--kind=cuda|--portable] [options of GoogleTest]. Without a GPU,
// --kind=cuda ends with 77 and the reason. --portable: ops give the same bits on every CPU.
// test_kernels_on_emulator is this program with an emulated GPU (tests/cuda_on_cpu).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>

#include "device/gpu.hpp"
#include "kernels/instruction_choice.hpp"
#include "mirror.hpp"

namespace rig {
namespace {
Kind chosen = Kind::cpu;
std::set<std::string> names_run;
constexpr size_t kBand = 256;
constexpr char kGuard = char(0xff);  // NaN in f32 and bf16
}  // namespace

Kind kind() { return chosen; }
void note_op(kernels::Op op) { names_run.insert(kernels::name_of(op)); }

Mirror::Mirror(const Views& shown, device::Queue& queue) : queue_(queue) {
  std::vector<std::pair<char*, char*>> all;
  for (device::View* v : shown)
    if (!v->none() && v->count > 0) {
      char* begin = static_cast<char*>(v->data);
      all.push_back({begin, begin + v->bytes()});
    }
  std::sort(all.begin(), all.end());
  for (auto [begin, end] : all)
    if (ranges_.empty() || begin >= ranges_.back().end)
      ranges_.push_back({begin, end, kBand + reinterpret_cast<uintptr_t>(begin) % 256, {}});
    else
      ranges_.back().end = std::max(ranges_.back().end, end);
  for (Range& r : ranges_) {
    size_t bytes = r.shift + size_t(r.end - r.begin) + kBand;
    r.buffer = device::Buffer(kind(), ledger_, "mirror", int64_t(bytes));
    std::vector<char> image(size_t(r.buffer.bytes()), kGuard);
    std::copy(r.begin, r.end, image.begin() + int64_t(r.shift));
    device::upload(r.buffer.view(device::DType::u8), image.data(), queue_);
  }
  for (device::View* v : shown)
    if (!v->none() && v->count > 0)
      for (Range& r : ranges_)
        if (char* at = static_cast<char*>(v->data); at >= r.begin && at < r.end) {
          v->data = static_cast<char*>(r.buffer.data()) + r.shift + (at - r.begin);
          break;
        }
}

void Mirror::bring_back() {
  for (Range& r : ranges_) {
    std::vector<char> image(size_t(r.buffer.bytes()));
    device::download(image.data(), r.buffer.view(device::DType::u8), queue_);
    auto from = image.begin() + int64_t(r.shift), to = from + (r.end - r.begin);
    auto intact = [](auto a, auto b) {
      return std::all_of(a, b, [](char c) { return c == kGuard; });
    };
    EXPECT_TRUE(intact(image.begin(), from) && intact(to, image.end()))
        << "a guard band was written on the GPU";
    std::copy(from, to, r.begin);
  }
}

}  // namespace rig

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--kind=cuda") == 0) rig::chosen = device::Kind::cuda;
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--portable") == 0)
      kernels::choose_instructions(kernels::Instructions::automatic, true);
  if (rig::on_cuda()) {
    device::Gpus gpus = device::find_gpus();
    if (gpus.count == 0) {
      std::printf("skipped: %s\n", gpus.none_because.c_str());
      return 77;
    }
    device::use_gpu(0);
    std::printf("on %s\n", device::gpu_name().c_str());
  }
  int status = RUN_ALL_TESTS();
  if (!rig::on_cuda() || testing::GTEST_FLAG(filter) != "*") return status;
  for (int op = 0; op < int(kernels::Op::count); ++op)
    if (std::string name = kernels::name_of(kernels::Op(op)); rig::names_run.count(name) == 0) {
      std::printf("no case ran %s on CUDA\n", name.c_str());
      status = 1;
    }
  return status;
}
