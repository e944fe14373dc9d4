// SPDX-License-Identifier: Apache-2.0
// The lines that people read, as ui/console: everything after "start" is key=value and greppable.
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
std::string build_features();  // "build=release cuda=no nccl=no bf16=native"

// Start-up lines that describe the run, in their order.
void print_mesh(comm::Session& session, const comm::Mesh& mesh, const Recipe& recipe,
                const host::DeviceChoice& device, int threads);
void print_model(step::Engine& engine, const Recipe& recipe);
void print_memory(const step::Engine& engine);

// Name, shape, size, mean and standard deviation of every parameter (all ranks call; the text is
// complete on every rank).
std::string parameter_table(step::Engine& engine, comm::Mesh& mesh);

// "f32", or how bf16 is done on this machine.
std::string compute_text(const PrecisionOptions& precision);
std::string loss_text(double loss);

// Logs what preprocessing counted, over all ranks, which all call. Counts this attempt, samples
// read ahead included.
void print_counts(comm::Comm& world, const data::Mixture& data);

}  // namespace train
