// SPDX-License-Identifier: Apache-2.0
// Descriptions of GPUs, for which cuDNN makes plans on machines without any.
#pragma once

#include <string>

namespace gpu {

// cuDNN queries these numbers of the driver. The devices differ in multiprocessors, shared memory
// and cache.
inline std::string device(bool hopper) {
  std::string text =
      R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)";
  text +=
      R"("warpSize":32,"maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)";
  text +=
      R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)";
  text +=
      R"("supportCoopLaunch":1,"smClockRateKHz":1980000,"memClockRateKHz":3201000,"cudaDeviceId":0,"driverVer":13000,)";
  text +=
      hopper
          ? R"("multiProcessorCount":132,"maxSharedMemoryPerBlockOptin":232448,"totalGlobalMem":150754820096,)"
            R"("l2CacheSize":62914560,"deviceVer":900,"deviceName":"H200"})"
          : R"("multiProcessorCount":108,"maxSharedMemoryPerBlockOptin":166912,"totalGlobalMem":85899345920,)"
            R"("l2CacheSize":41943040,"deviceVer":800,"deviceName":"A100"})";
  return text;
}

// True if cuDNN found a plan and built its kernel. The stub of the driver cannot load compiled
// code.
inline bool is_planned(const std::string& problem) {
  return problem.empty() || problem.find("cuLibraryLoadData") != std::string::npos;
}

}  // namespace gpu
