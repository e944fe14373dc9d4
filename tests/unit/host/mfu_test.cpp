// SPDX-License-Identifier: Apache-2.0
// Compares the parts of MFU and HFU with figures computed by hand.
#include "host/mfu.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace host {
namespace {

TEST(Mfu, PeaksOfDataSheets) {
  struct Case {
    const char* name;
    double half, tf32, f32;
  };
  for (const Case& c :
       {Case{"NVIDIA A100-SXM4-40GB", 312, 156, 19.5},
        Case{"NVIDIA A100-SXM4-80GB", 312, 156, 19.5},
        Case{"NVIDIA A100-PCIE-40GB", 312, 156, 19.5},
        Case{"NVIDIA A100 80GB PCIe", 312, 156, 19.5},
        Case{"NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9}, Case{"NVIDIA H100 PCIe", 756, 378, 51.2},
        Case{"NVIDIA H100 NVL", 835.5, 417.5, 60}, Case{"NVIDIA H200", 989.4, 494.7, 66.9},
        Case{"NVIDIA H200 NVL", 835.5, 417.5, 60}, Case{"NVIDIA GH200 480GB", 989.4, 494.7, 66.9},
        Case{"NVIDIA B200", 2250, 1125, 75}, Case{"NVIDIA GB200", 2500, 1250, 80},
        Case{"NVIDIA L40S", 362, 183, 91.6}, Case{"NVIDIA L40", 181, 90.5, 90.5},
        Case{"NVIDIA L4", 121, 60, 30.3}}) {
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::bf16), c.half) << c.name;
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::fp16), c.half) << c.name;
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::tf32), c.tf32) << c.name;
    EXPECT_EQ(listed_peak_tflops(c.name, Compute::f32), c.f32) << c.name;
  }
  for (const char* unknown : {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090",
                              "AMD H100", "", "NVIDIA", "NVIDIA A1000"})
    EXPECT_EQ(listed_peak_tflops(unknown, Compute::bf16), 0) << unknown;
}

TEST(Mfu, EveryGpuCountsOnce) {
  Peak two = peak_of_gpus({{"NVIDIA H200", "a"}, {"NVIDIA H200", "b"}, {"NVIDIA H200", "a"}},
                          Compute::bf16, 0);
  EXPECT_DOUBLE_EQ(two.flops, 2 * 989.4e12);
  EXPECT_EQ(two.text, "MFU against 1979 TFLOP/s (2 x NVIDIA H200, bf16 dense, data sheet)");
  EXPECT_DOUBLE_EQ(peak_of_gpus({{"NVIDIA H200", "a"}, {"NVIDIA L4", "b"}}, Compute::f32, 0).flops,
                   97.2e12);
  Peak unknown = peak_of_gpus({{"NVIDIA H200", "a"}, {"Abacus", "b"}}, Compute::bf16, 0);
  EXPECT_EQ(unknown.flops, 0);
  EXPECT_NE(unknown.text.find("profile.peak_tflops"), std::string::npos);
  EXPECT_DOUBLE_EQ(peak_of_gpus({{"Abacus", "b"}}, Compute::bf16, 0.5).flops, 0.5e12);
}

TEST(Mfu, MoreThanThePeakIsExplained) {
  EXPECT_EQ(utilisation_note(0.9, 1.0, 1e12, true), "");
  EXPECT_EQ(utilisation_note(NAN, NAN, 0, true), "");
  EXPECT_EQ(utilisation_note(1.2, 0.8, 1e12, true),
            "mfu=120.0% counts products of padding that this step did not compute; those that ran "
            "are hfu=80.0%");
  const std::string low = utilisation_note(1.387, 1.25, 80e9, true);
  EXPECT_NE(low.find("mfu=138.7% hfu=125.0%: this step computed at 100 GFLOP/s, more than the peak "
                     "of 80 GFLOP/s that was measured"),
            low.npos)
      << low;
  EXPECT_NE(utilisation_note(0.9, 1.25, 80e9, false).find("check profile.peak_tflops"),
            std::string::npos);
}

}  // namespace
}  // namespace host
