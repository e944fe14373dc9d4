// SPDX-License-Identifier: Apache-2.0
// A plugin: compiled once for each binary interface of MPI, with that interface's own mpi.h. It is
// linked with no MPI, because the program loads the MPI first (mpi_by_plugin.cpp).
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include <cstring>

#include "comm/mpi_table.hpp"

#if MPI_VERSION >= 4
// A library of this interface may be older than the header. Then these are null.
#pragma weak MPI_Bcast_c
#pragma weak MPI_Allgatherv_c
#pragma weak MPI_Iallreduce_c
#pragma weak MPI_Iallgather_c
#pragma weak MPI_Ireduce_scatter_block_c
#endif

namespace comm::plugin {
namespace {

static_assert(MPI_MAX_ERROR_STRING <= kErrorText && MPI_MAX_PROCESSOR_NAME <= kProcessorName &&
              MPI_MAX_LIBRARY_VERSION_STRING <= kLibraryText);

// Handles are pointers or integers.
template <class To, class From>
To same_bytes(From handle) {
  static_assert(sizeof(MPI_Comm) <= sizeof(Comm));
  To to{};
  std::memcpy(&to, &handle, sizeof to < sizeof handle ? sizeof to : sizeof handle);
  return to;
}

// A handle that a call writes. The caller's one is written after the call.
template <class Native, class Own>
class Written {
 public:
  explicit Written(Own* own) : own_(own), native_(same_bytes<Native>(*own)) {}
  Written(const Written&) = delete;
  ~Written() { *own_ = same_bytes<Own>(native_); }
  operator Native*() { return &native_; }

 private:
  Own* own_;
  Native native_;
};

template <class T>
T in(T value) {
  return value;
}
MPI_Comm in(Comm handle) { return same_bytes<MPI_Comm>(handle); }
MPI_Group in(Group handle) { return same_bytes<MPI_Group>(handle); }
MPI_Datatype in(Datatype handle) { return same_bytes<MPI_Datatype>(handle); }
MPI_Op in(Op handle) { return same_bytes<MPI_Op>(handle); }
MPI_Info in(Info handle) { return same_bytes<MPI_Info>(handle); }
MPI_Errhandler in(Errhandler handle) { return same_bytes<MPI_Errhandler>(handle); }
Written<MPI_Comm, Comm> in(Comm* handle) { return Written<MPI_Comm, Comm>(handle); }
Written<MPI_Group, Group> in(Group* handle) { return Written<MPI_Group, Group>(handle); }
Written<MPI_Request, Request> in(Request* handle) { return Written<MPI_Request, Request>(handle); }

template <auto Function, class... Args>
int call(Args... args) {
  return Function(in(args)...);
}
template <auto Function, class... Args>
void set(int (*&slot)(Args...)) {
  slot = &call<Function, Args...>;
}

int test(Request* request, int* done) { return MPI_Test(in(request), done, MPI_STATUS_IGNORE); }

int test_all(int count, Request* requests, int* done) {
  constexpr int kMost = 8;
  if (count > kMost) return MPI_ERR_COUNT;
  MPI_Request native[kMost];
  for (int i = 0; i < count; ++i) native[i] = same_bytes<MPI_Request>(requests[i]);
  const int code = MPI_Testall(count, native, done, MPI_STATUSES_IGNORE);
  for (int i = 0; i < count; ++i) requests[i] = same_bytes<Request>(native[i]);
  return code;
}

#if MPI_VERSION >= 4
static_assert(sizeof(MPI_Count) == sizeof(Count) && sizeof(MPI_Aint) == sizeof(Count));

int gather_long(const void* send, Count count, Datatype type, void* recv, const Count* counts,
                const Count* starts, Datatype recv_type, Comm comm) {
  return MPI_Allgatherv_c(send, count, in(type), recv, reinterpret_cast<const MPI_Count*>(counts),
                          reinterpret_cast<const MPI_Aint*>(starts), in(recv_type), in(comm));
}

// All of them, or none.
void set_long_calls(Table& t) {
  if (!&MPI_Bcast_c || !&MPI_Allgatherv_c || !&MPI_Iallreduce_c || !&MPI_Iallgather_c ||
      !&MPI_Ireduce_scatter_block_c)
    return;
  set<&MPI_Bcast_c>(t.Bcast_c);
  set<&MPI_Iallreduce_c>(t.Iallreduce_c);
  set<&MPI_Iallgather_c>(t.Iallgather_c);
  set<&MPI_Ireduce_scatter_block_c>(t.Ireduce_scatter_block_c);
  t.Allgatherv_c = &gather_long;
}
#else
void set_long_calls(Table&) {}
#endif

void set_constants(Table& t) {
  t.success = MPI_SUCCESS;
  t.undefined = MPI_UNDEFINED;
  t.thread_serialized = MPI_THREAD_SERIALIZED;
  t.comm_type_shared = MPI_COMM_TYPE_SHARED;
  t.in_place = MPI_IN_PLACE;
  t.comm_world = same_bytes<Comm>(MPI_COMM_WORLD);
  t.comm_null = same_bytes<Comm>(MPI_COMM_NULL);
  t.of_byte = same_bytes<Datatype>(MPI_BYTE);
  t.of_char = same_bytes<Datatype>(MPI_CHAR);
  t.of_int = same_bytes<Datatype>(MPI_INT);
  t.of_float = same_bytes<Datatype>(MPI_FLOAT);
  t.of_double = same_bytes<Datatype>(MPI_DOUBLE);
  t.of_int32 = same_bytes<Datatype>(MPI_INT32_T);
  t.of_int64 = same_bytes<Datatype>(MPI_INT64_T);
  t.of_uint8 = same_bytes<Datatype>(MPI_UINT8_T);
  t.of_uint16 = same_bytes<Datatype>(MPI_UINT16_T);
  t.sum = same_bytes<Op>(MPI_SUM);
  t.min = same_bytes<Op>(MPI_MIN);
  t.max = same_bytes<Op>(MPI_MAX);
  t.request_null = same_bytes<Request>(MPI_REQUEST_NULL);
  t.info_null = same_bytes<Info>(MPI_INFO_NULL);
  t.errors_return = same_bytes<Errhandler>(MPI_ERRORS_RETURN);
}

void set_calls(Table& t) {
  set<&MPI_Init_thread>(t.Init_thread);
  set<&MPI_Initialized>(t.Initialized);
  set<&MPI_Finalized>(t.Finalized);
  set<&MPI_Finalize>(t.Finalize);
  set<&MPI_Abort>(t.Abort);
  set<&MPI_Error_string>(t.Error_string);
  set<&MPI_Get_library_version>(t.Get_library_version);
  set<&MPI_Get_processor_name>(t.Get_processor_name);
  set<&MPI_Comm_set_errhandler>(t.Comm_set_errhandler);
  set<&MPI_Comm_rank>(t.Comm_rank);
  set<&MPI_Comm_size>(t.Comm_size);
  set<&MPI_Comm_split>(t.Comm_split);
  set<&MPI_Comm_split_type>(t.Comm_split_type);
  set<&MPI_Comm_free>(t.Comm_free);
  set<&MPI_Comm_group>(t.Comm_group);
  set<&MPI_Group_size>(t.Group_size);
  set<&MPI_Group_translate_ranks>(t.Group_translate_ranks);
  set<&MPI_Group_free>(t.Group_free);
  set<&MPI_Barrier>(t.Barrier);
  set<&MPI_Bcast>(t.Bcast);
  set<&MPI_Allreduce>(t.Allreduce);
  set<&MPI_Allgather>(t.Allgather);
  set<&MPI_Allgatherv>(t.Allgatherv);
  set<&MPI_Iallreduce>(t.Iallreduce);
  set<&MPI_Iallgather>(t.Iallgather);
  set<&MPI_Ireduce_scatter_block>(t.Ireduce_scatter_block);
  set<&MPI_Isend>(t.Isend);
  set<&MPI_Irecv>(t.Irecv);
  t.Test = &test;
  t.Testall = &test_all;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) bool TRAINER_MPI_FILL(Table* table,
                                                                        unsigned long size) {
  if (size != sizeof(Table)) return false;
  set_constants(*table);
  set_calls(*table);
  set_long_calls(*table);
  return true;
}

}  // namespace comm::plugin
