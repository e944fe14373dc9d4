// SPDX-License-Identifier: Apache-2.0
// The names of MPI in a program that loads its MPI by a plugin. The first use loads it.
#pragma once

#include <cstddef>
#include <string>

#include "comm/mpi_table.hpp"

namespace comm::plugin {

// Returns the functions of the first MPI that is found and that the launcher can serve. If none
// fits, the error lists what was tried.
const Table& table();
// Returns what table() has loaded, and by which plugin, for people.
std::string loaded_text();

}  // namespace comm::plugin

// NOLINTBEGIN: MPI's names.
using MPI_Comm = comm::plugin::Comm;
using MPI_Group = comm::plugin::Group;
using MPI_Datatype = comm::plugin::Datatype;
using MPI_Op = comm::plugin::Op;
using MPI_Request = comm::plugin::Request;
using MPI_Count = comm::plugin::Count;
using MPI_Aint = comm::plugin::Count;

#define MPI_SUCCESS (comm::plugin::table().success)
#define MPI_UNDEFINED (comm::plugin::table().undefined)
#define MPI_THREAD_SERIALIZED (comm::plugin::table().thread_serialized)
#define MPI_COMM_TYPE_SHARED (comm::plugin::table().comm_type_shared)
#define MPI_IN_PLACE (comm::plugin::table().in_place)
#define MPI_COMM_WORLD (comm::plugin::table().comm_world)
#define MPI_COMM_NULL (comm::plugin::table().comm_null)
#define MPI_BYTE (comm::plugin::table().of_byte)
#define MPI_CHAR (comm::plugin::table().of_char)
#define MPI_INT (comm::plugin::table().of_int)
#define MPI_FLOAT (comm::plugin::table().of_float)
#define MPI_DOUBLE (comm::plugin::table().of_double)
#define MPI_INT32_T (comm::plugin::table().of_int32)
#define MPI_INT64_T (comm::plugin::table().of_int64)
#define MPI_UINT8_T (comm::plugin::table().of_uint8)
#define MPI_UINT16_T (comm::plugin::table().of_uint16)
#define MPI_SUM (comm::plugin::table().sum)
#define MPI_MIN (comm::plugin::table().min)
#define MPI_MAX (comm::plugin::table().max)
#define MPI_REQUEST_NULL (comm::plugin::table().request_null)
#define MPI_INFO_NULL (comm::plugin::table().info_null)
#define MPI_ERRORS_RETURN (comm::plugin::table().errors_return)
#define MPI_MAX_ERROR_STRING (comm::plugin::kErrorText)
#define MPI_MAX_PROCESSOR_NAME (comm::plugin::kProcessorName)
#define MPI_MAX_LIBRARY_VERSION_STRING (comm::plugin::kLibraryText)
#define MPI_STATUS_IGNORE nullptr
#define MPI_STATUSES_IGNORE nullptr

namespace comm::plugin {
#define TRAINER_MPI_CALL(name, parameters, arguments) \
  inline int MPI_##name parameters { return table().name arguments; }
TRAINER_MPI_CALLS(TRAINER_MPI_CALL)
TRAINER_MPI_LONG_CALLS(TRAINER_MPI_CALL)
#undef TRAINER_MPI_CALL
inline int MPI_Test(Request* request, int* done, std::nullptr_t) { return MPI_Test(request, done); }
inline int MPI_Testall(int count, Request* requests, int* done, std::nullptr_t) {
  return MPI_Testall(count, requests, done);
}
}  // namespace comm::plugin
#define TRAINER_MPI_USE(name, parameters, arguments) using comm::plugin::MPI_##name;
TRAINER_MPI_CALLS(TRAINER_MPI_USE)
TRAINER_MPI_LONG_CALLS(TRAINER_MPI_USE)
#undef TRAINER_MPI_USE
// NOLINTEND
