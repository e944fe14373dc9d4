// SPDX-License-Identifier: Apache-2.0
// Includes everything that users of this folder need.
#pragma once

#include "checkpoint/init_options.hpp"
#include "checkpoint/initial_weights.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/options.hpp"
#include "checkpoint/restore.hpp"
#include "checkpoint/saver.hpp"
#include "checkpoint/state.hpp"
