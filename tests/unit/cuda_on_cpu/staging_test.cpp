// SPDX-License-Identifier: Apache-2.0
// Transfers between host and GPU make the host wait only where they must: uploads, numbers fetched
// for later, and the guard.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "device/cuda.hpp"
#include "device/gpu.hpp"
#include "device/memory.hpp"
#include "device/transfers.hpp"
#include "tests/unit/cuda_on_cpu/error_text.hpp"

namespace {

using device::DType;
using device::Kind;
using device::View;

class Staging : public testing::Test {
 protected:
  Staging() : queue_(Kind::cuda), buffer_(Kind::cuda, ledger_, "test", 10 << 20) {}
  ~Staging() override { release(); }
  View floats(int64_t begin, int64_t count) const {
    return buffer_.view(DType::f32).slice(begin, count);
  }
  // Holds all work that is queued from now on until `release`.
  void hold() {
    cuda_on_cpu::submit_waiting(device::stream_of(queue_), [this] { return released_; });
  }
  void release() { released_ = true; }
  std::vector<float> read(int64_t begin, int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    device::download(out.data(), floats(begin, count), queue_);
    return out;
  }

  bool released_ = false;
  device::Queue queue_;
  device::Ledger ledger_;
  device::Buffer buffer_;
};

TEST_F(Staging, AnUploadNeedsNeitherTheHostNorItsMemory) {
  const device::Transfers before = device::transfers();
  hold();
  std::vector<float> values{1, 2, 3};
  device::upload(floats(0, 3), values.data(), queue_);
  values = {4, 5, 6};
  device::upload(floats(3, 3), values.data(), queue_);
  values = {7, 8, 9};
  const device::Transfers did = device::transfers().since(before);
  EXPECT_EQ(did.uploads, 2);
  EXPECT_EQ(did.uploaded_bytes, 24);
  EXPECT_EQ(did.waits, 0);
  release();
  EXPECT_EQ(read(0, 6), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST_F(Staging, LargeUploadsGoInPieces) {
  std::vector<float> values(2500000);
  std::iota(values.begin(), values.end(), 1.0f);
  device::upload(floats(0, 1), values.data() + 5, queue_);  // the first chunk is partly used
  device::upload(floats(7, int64_t(values.size())), values.data(), queue_);
  EXPECT_EQ(read(7, int64_t(values.size())), values);
  EXPECT_EQ(read(0, 1)[0], 6);
}

// An upload does not overwrite pinned memory whose copy is pending. If all of it is pending, the
// host waits.
TEST_F(Staging, AnUploadWaitsWhereAllIsUnderWay) {
  const device::Transfers before = device::transfers();
  hold();
  std::vector<float> values(1 << 20);  // 4 MiB: two fit
  for (int i = 0; i < 2; ++i) {
    std::fill(values.begin(), values.end(), float(i + 1));
    device::upload(floats(i << 20, 1 << 20), values.data(), queue_);
  }
  EXPECT_EQ(device::transfers().since(before).waits, 0);
  int asked = 0;
  device::while_waiting([&] { released_ = ++asked == 3; });
  {
    device::NoWaits lifted_by_the_ring("a test");
    const float last = 3;
    device::upload(floats(2 << 20, 1), &last, queue_);
  }
  device::while_waiting({});
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(device::transfers().since(before).waits, 1);
  EXPECT_EQ(read((1 << 20) - 1, 2), (std::vector<float>{1, 2}));
  EXPECT_EQ(read((2 << 20) - 1, 2), (std::vector<float>{2, 3}));
}

TEST_F(Staging, NumbersAreFetchedAsTheyWere) {
  device::Fetched fetched(Kind::cuda, 8);
  const device::Transfers before = device::transfers();
  hold();
  for (int64_t turn = 5; turn < 7; ++turn) {
    const float value[2] = {float(turn), float(10 * turn)};
    device::upload(floats(0, 2), value, queue_);
    fetched.fetch(turn, floats(0, 2), queue_);
  }
  EXPECT_EQ(device::transfers().since(before).downloads, 2);
  EXPECT_EQ(device::transfers().since(before).waits, 0);
  release();
  EXPECT_EQ(fetched.read(5).f32()[1], 50);
  EXPECT_EQ(fetched.read(6).f32()[1], 60);
  EXPECT_EQ(fetched.read(6).count, 2);
  EXPECT_NE(error_of([&] { fetched.fetch(7, floats(0, 3), queue_); }), "")
      << "more bytes than the pinned memory has";
}

TEST_F(Staging, AGuardForbidsWaits) {
  float value = 1;
  {
    device::NoWaits guard("step 7");
    device::upload(floats(0, 1), &value, queue_);
    const std::string text = error_of([&] { device::download(&value, floats(0, 1), queue_); });
    EXPECT_NE(text.find("step 7: the host waits for the GPU: a copy to the host"),
              std::string::npos)
        << text;
    EXPECT_NE(error_of([&] { queue_.synchronize("the weather"); }).find("the weather"),
              std::string::npos);
    {
      device::MayWait lifted;
      device::download(&value, floats(0, 1), queue_);
    }
    EXPECT_NE(error_of([&] { queue_.synchronize(); }), "") << "the guard must stay active";
    device::NoWaits inactive("inner", false);
    EXPECT_NE(error_of([&] { queue_.synchronize(); }).find("step 7"), std::string::npos);
  }
  queue_.synchronize();
  EXPECT_EQ(value, 1);
}

}  // namespace
