// SPDX-License-Identifier: Apache-2.0
// MPI, for the files of this folder that call it and for no others.
#pragma once

#include <mpi.h>
