// SPDX-License-Identifier: Apache-2.0
// MPI, for the files of this folder that call it and for no others. A build against one MPI takes
// that MPI's header; a build with plugins (TRAINER_MPI_PLUGINS) takes the functions of the plugin
// that it loads.
#pragma once

#ifdef TRAINER_MPI_PLUGINS
#include "comm/mpi_by_plugin.hpp"
#else
#include <mpi.h>
#endif
