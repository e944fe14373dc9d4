// SPDX-License-Identifier: Apache-2.0
// The contents of a checkpoint as the rest of the program sees them: named logical tensors,
// counters and texts. Units, padding and ranks do not appear, so any mesh can read another mesh's
// file.
//
// Map of this folder (one HDF5 file per step, design 3.13):
//   layout     places of everything in a file
//   header     the text at the start of a file
//   checksum   hashes of 1 MiB blocks
//   save       writes one file, in phases
//   saver      runs a save beside training
//   catalogue  the files of a run: list, inspect, retain, abandon
//   restore    continues from the newest valid file
//   read_plan  what a rank reads of a file, and the proof of it
//   read_parts reads and proves this rank's bytes of a file
//   driver     how bytes travel: direct_driver, mpio_driver
//   options    [checkpoint] of the deck
//   io_limits  threads, bytes in flight, the driver
//   init_options, initial_weights   [init]: a new run's parameters from a file
//   weight_file    files for [init]; readers: *_reader.cpp
//   name_map, torch_names, trunk_difference, resample   map tensors to parameters, resize tables
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/io_limits.hpp"
#include "device/memory.hpp"
#include "shard/parameter.hpp"
#include "shard/tensor_roots.hpp"

namespace checkpoint {

struct State {
  int64_t step = 0;  // number of updates done
  // Every rank lists the same tensors, in any order, with its own parts. The parts that write cover
  // every element exactly once.
  std::vector<shard::TensorSlice> tensors;
  // Queue of the device that holds the parts; null if they are in host memory.
  device::Queue* queue = nullptr;
  // How this rank writes or reads the file.
  IoLimits io{};
  // Attributes of the file's root group, kept to the bit. Rank 0's values are written. The text
  // named "deck" becomes the dataset /deck, because HDF5 limits attributes to 64 KiB.
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;
  // Optional. A restore calls it on all ranks before it reads the tensors of a file, with step,
  // numbers and texts of that file. If the file is damaged, it is called again for the next one.
  std::function<void()> before_tensors{};

  // True if the parts are in host memory, which files are written from and read into.
  bool on_host() const { return !queue || queue->kind() != device::Kind::cuda; }
};

constexpr int kFormat = 2;
using shard::kAverageRoot;
using shard::kTeacherRoot;
using shard::kWeightRoot;
// The text that holds the checkpoint.resume of the attempt that wrote the file.
inline const char* const kResumed = "resume";
// True for root attributes that the checkpoint itself writes.
bool is_reserved(const std::string& attribute);

}  // namespace checkpoint
