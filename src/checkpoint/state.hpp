// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds, as the rest of the program sees it: named logical tensors, counters and
// texts. Nothing of units, padding or ranks, so any mesh can read what another one wrote.
//
// checkpoint: one HDF5 file per step (design 3.13).
//   layout     what lies where in a file
//   header     the text at the start of a file
//   checksum   hashes of 1 MiB blocks
//   save       writes one, in phases
//   saver      ... beside training
//   catalogue  the files of a run: list, inspect, retain, abandon
//   restore    the newest valid file into this rank's memory
//   options    [checkpoint] of the deck
//   init_options, initial_weights   [init]: a new run's parameters from a file
//   weight_file    such a file, and its readers: checkpoint_reader, npz_reader, safetensors_reader
//   name_map, resample   whose tensor goes where, and position tables of another size
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "shard/parameter.hpp"

namespace checkpoint {

struct State {
  int64_t step = 0;  // value after the update
  // The same tensors on every rank, in any order; each rank's own parts. Those that write cover
  // every element exactly once.
  std::vector<shard::TensorSlice> tensors;
  // Whose memory the parts lie in; null: the host's.
  device::Queue* queue = nullptr;
  // Attributes of the file's root group, exact to the bit; those of rank 0 are written. The text
  // named "deck" becomes the dataset /deck, because HDF5 limits attributes to 64 KiB.
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;

  // Files are written from and read into host memory: are the parts there?
  bool on_host() const { return !queue || queue->kind() != device::Kind::cuda; }
};

constexpr int kFormat = 2;
// The weights, and their average ([ema]). A run may begin to keep an average, or cease to: a file
// may lack it, or hold one that the run does not want.
inline const std::string kAverageRoot = "/ema/", kWeightRoot = "/params/";
// The text that says with which checkpoint.resume the attempt was started that wrote the file.
inline const char* const kResumed = "resume";
// Root attributes that are not the caller's.
bool is_reserved(const std::string& attribute);

}  // namespace checkpoint
