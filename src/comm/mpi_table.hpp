// SPDX-License-Identifier: Apache-2.0
// The functions and constants of MPI that this program calls, as a table that a plugin fills
// (abi/mpi_plugin.cpp). The program and the plugins include this file. It does not depend on the
// header of any MPI: a handle is passed as 8 bytes, and a plugin fills in its MPI's constants.
#pragma once

namespace comm::plugin {

using Comm = struct CommBytes*;
using Group = struct GroupBytes*;
using Datatype = struct DatatypeBytes*;
using Op = struct OpBytes*;
using Request = struct RequestBytes*;
using Info = struct InfoBytes*;
using Errhandler = struct ErrhandlerBytes*;
using Count = long long;  // NOLINT: 64 bits on every machine, as MPI_Count

// Room for texts; a plugin does not compile for an MPI that needs more.
constexpr int kErrorText = 1024, kProcessorName = 1024, kLibraryText = 8192;

// CALL(name without "MPI_", parameters, arguments). MPI_Test and MPI_Testall take no statuses.
#define TRAINER_MPI_CALLS(CALL)                                                                    \
  CALL(Init_thread, (int* argc, char*** argv, int required, int* provided),                        \
       (argc, argv, required, provided))                                                           \
  CALL(Initialized, (int* flag), (flag))                                                           \
  CALL(Finalized, (int* flag), (flag))                                                             \
  CALL(Finalize, (), ())                                                                           \
  CALL(Abort, (Comm comm, int code), (comm, code))                                                 \
  CALL(Error_string, (int code, char* text, int* length), (code, text, length))                    \
  CALL(Get_library_version, (char* text, int* length), (text, length))                             \
  CALL(Get_processor_name, (char* name, int* length), (name, length))                              \
  CALL(Comm_set_errhandler, (Comm comm, Errhandler handler), (comm, handler))                      \
  CALL(Comm_rank, (Comm comm, int* rank), (comm, rank))                                            \
  CALL(Comm_size, (Comm comm, int* size), (comm, size))                                            \
  CALL(Comm_split, (Comm comm, int colour, int key, Comm* made), (comm, colour, key, made))        \
  CALL(Comm_split_type, (Comm comm, int type, int key, Info info, Comm* made),                     \
       (comm, type, key, info, made))                                                              \
  CALL(Comm_free, (Comm * comm), (comm))                                                           \
  CALL(Comm_group, (Comm comm, Group * group), (comm, group))                                      \
  CALL(Group_size, (Group group, int* size), (group, size))                                        \
  CALL(Group_translate_ranks, (Group from, int count, const int* ranks, Group to, int* found),     \
       (from, count, ranks, to, found))                                                            \
  CALL(Group_free, (Group * group), (group))                                                       \
  CALL(Barrier, (Comm comm), (comm))                                                               \
  CALL(Bcast, (void* data, int count, Datatype type, int root, Comm comm),                         \
       (data, count, type, root, comm))                                                            \
  CALL(Allreduce, (const void* send, void* recv, int count, Datatype type, Op op, Comm comm),      \
       (send, recv, count, type, op, comm))                                                        \
  CALL(Allgather,                                                                                  \
       (const void* send, int count, Datatype type, void* recv, int recv_count,                    \
        Datatype recv_type, Comm comm),                                                            \
       (send, count, type, recv, recv_count, recv_type, comm))                                     \
  CALL(Allgatherv,                                                                                 \
       (const void* send, int count, Datatype type, void* recv, const int* counts,                 \
        const int* starts, Datatype recv_type, Comm comm),                                         \
       (send, count, type, recv, counts, starts, recv_type, comm))                                 \
  CALL(Iallreduce,                                                                                 \
       (const void* send, void* recv, int count, Datatype type, Op op, Comm comm,                  \
        Request* request),                                                                         \
       (send, recv, count, type, op, comm, request))                                               \
  CALL(Iallgather,                                                                                 \
       (const void* send, int count, Datatype type, void* recv, int recv_count,                    \
        Datatype recv_type, Comm comm, Request* request),                                          \
       (send, count, type, recv, recv_count, recv_type, comm, request))                            \
  CALL(Ireduce_scatter_block,                                                                      \
       (const void* send, void* recv, int count, Datatype type, Op op, Comm comm,                  \
        Request* request),                                                                         \
       (send, recv, count, type, op, comm, request))                                               \
  CALL(Isend,                                                                                      \
       (const void* data, int count, Datatype type, int to, int tag, Comm comm, Request* request), \
       (data, count, type, to, tag, comm, request))                                                \
  CALL(Irecv,                                                                                      \
       (void* data, int count, Datatype type, int from, int tag, Comm comm, Request* request),     \
       (data, count, type, from, tag, comm, request))                                              \
  CALL(Test, (Request * request, int* done), (request, done))                                      \
  CALL(Testall, (int count, Request* requests, int* done), (count, requests, done))

// The calls of MPI 4 likewise. A pointer is null if the library lacks the call.
#define TRAINER_MPI_LONG_CALLS(CALL)                                                   \
  CALL(Bcast_c, (void* data, Count count, Datatype type, int root, Comm comm),         \
       (data, count, type, root, comm))                                                \
  CALL(Allgatherv_c,                                                                   \
       (const void* send, Count count, Datatype type, void* recv, const Count* counts, \
        const Count* starts, Datatype recv_type, Comm comm),                           \
       (send, count, type, recv, counts, starts, recv_type, comm))                     \
  CALL(Iallreduce_c,                                                                   \
       (const void* send, void* recv, Count count, Datatype type, Op op, Comm comm,    \
        Request* request),                                                             \
       (send, recv, count, type, op, comm, request))                                   \
  CALL(Iallgather_c,                                                                   \
       (const void* send, Count count, Datatype type, void* recv, Count recv_count,    \
        Datatype recv_type, Comm comm, Request* request),                              \
       (send, count, type, recv, recv_count, recv_type, comm, request))                \
  CALL(Ireduce_scatter_block_c,                                                        \
       (const void* send, void* recv, Count count, Datatype type, Op op, Comm comm,    \
        Request* request),                                                             \
       (send, recv, count, type, op, comm, request))

// The constants of MPI, many members: one for each that the program names.
struct Table {
  int success, undefined, thread_serialized, comm_type_shared;
  void* in_place;
  Comm comm_world, comm_null;
  Datatype of_byte, of_char, of_int, of_float, of_double, of_int32, of_int64, of_uint8, of_uint16;
  Op sum, min, max;
  Request request_null;
  Info info_null;
  Errhandler errors_return;
#define TRAINER_MPI_SLOT(name, parameters, arguments) int(*name) parameters;
  TRAINER_MPI_CALLS(TRAINER_MPI_SLOT)
  TRAINER_MPI_LONG_CALLS(TRAINER_MPI_SLOT)
#undef TRAINER_MPI_SLOT
};

// The only symbol of a plugin. It fills the table, or returns false if the table of the program has
// another size, as in another version of the program.
using Fill = bool (*)(Table* table, unsigned long size);
#define TRAINER_MPI_FILL trainer_mpi_fill
constexpr const char* kFill = "trainer_mpi_fill";

}  // namespace comm::plugin
