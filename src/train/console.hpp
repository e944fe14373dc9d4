// SPDX-License-Identifier: Apache-2.0
// The console lines. Every line after "start" is key=value, so grep finds it.
#pragma once

#include <string>

#include "comm/mesh.hpp"
#include "data/stream/mixture.hpp"
#include "host/device_choice.hpp"
#include "step/engine.hpp"
#include "train/recipe.hpp"

namespace train {

std::string version_line();  // "trainer 0.1.0 git=... built=... gcc=... openmpi=... hdf5=..."
std::string version();
std::string build_features();  // "build=release cuda=no nccl=no onednn=2.6.3 bf16=native"
// "png=1.6.39 jpeg=2.1.5 gif=yes webp=no ...": the libraries that read data, and those that a build
// may lack. Decoded images may depend on their versions.
std::string library_features();

// Print the start-up lines that describe the run, in the order of their output.
void print_mesh(comm::Session& session, const comm::Mesh& mesh, const Recipe& recipe,
                const host::DeviceChoice& device, int threads);
void print_model(step::Engine& engine, const Recipe& recipe);
void print_memory(const step::Engine& engine);

// Returns name, shape, size, mean and standard deviation of every parameter. All ranks call; the
// text is complete on every rank.
std::string parameter_table(step::Engine& engine, comm::Mesh& mesh);
// File of a run directory with the table before [init] or a checkpoint replaced random values.
inline const char* const kFirstParameters = "/logs/parameters_init.txt";

// Returns "f32", or how this machine computes in bf16.
std::string compute_text(const PrecisionOptions& precision);
std::string loss_text(double loss);

// Logs what preprocessing counted on all ranks in this attempt, including samples read ahead. All
// ranks call.
void print_counts(comm::Comm& world, const data::Mixture& data);

}  // namespace train
