# SPDX-License-Identifier: Apache-2.0
# Plain programs that run on real ranks: tests/mpi/NAME.cpp, started by mpirun. The name of each
# test ends with its number of ranks. A large program has further sources.

# With these variables mpirun works as root, in containers, with more ranks than cores, and with
# several jobs on one machine.
set(TRAINER_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none  # of Open MPI 5
    HWLOC_HIDE_ERRORS=2 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
    # Open MPI takes this layer on one machine anyway; looking for networks first takes 0.2 s per job.
    OMPI_MCA_pml=ob1
    # A host that does not know its own name asks name servers, ten times per mpirun.
    "RES_OPTIONS=timeout:1 attempts:1")

# mpi_program(NAME [further sources in tests/mpi])
function(mpi_program name)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/mpi/${name}.cpp)
    list(TRANSFORM ARGN PREPEND mpi/ OUTPUT_VARIABLE sources)
    list(PREPEND sources mpi/${name}.cpp)
    trainer_batches(sources ${name} 6 ALONE mpi/count_allocations.cpp)  # replaces malloc
    add_executable(${name} ${sources})
    target_link_libraries(${name} PRIVATE trainer_train nlohmann_json::nlohmann_json)
    reads_common_headers(${name})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  endif()
endfunction()

# mpi_test(NAME RANKS [arguments]): test NAME_mpiRANKS
function(mpi_test name ranks)
  if(TARGET ${name})
    add_test(NAME ${name}_mpi${ranks}
             COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${name}> ${ARGN})
    set_tests_properties(${name}_mpi${ranks} PROPERTIES LABELS mpi PROCESSORS ${ranks}
                         ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
  endif()
endfunction()

foreach(name mesh_bits classifier_bits ssl_bits pair_bits collectives_test continue_test damage_test batch_state_test batch_norm_test
             caption_test row_file_test)
  mpi_program(${name})
endforeach()
target_link_libraries(collectives_test PRIVATE trainer_mpi)  # it makes shared sums of its own
mpi_program(engine_test engine_gradients.cpp engine_cuts.cpp engine_left_out.cpp engine_model.cpp
            engine_overlap.cpp)
mpi_program(checkpoint_test checkpoint_harm.cpp checkpoint_drivers.cpp)
mpi_program(memory_test count_allocations.cpp)

# One rank writes the reference. The others must produce the same bits.
set(bits ${CMAKE_CURRENT_BINARY_DIR}/mesh_bits.txt)
foreach(ranks 1 2 3 4)
  mpi_test(mesh_bits ${ranks} ${bits})
  mpi_test(collectives_test ${ranks})
  mpi_test(engine_test ${ranks})
  mpi_test(checkpoint_test ${ranks})
endforeach()
# Exchanges of gigabytes. It says why it runs none if memory lacks.
if(TARGET collectives_test)
  add_test(NAME large_counts_mpi2
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2 ${MPIEXEC_PREFLAGS} $<TARGET_FILE:collectives_test> large)
  set_tests_properties(large_counts_mpi2 PROPERTIES LABELS mpi PROCESSORS 2 RUN_SERIAL TRUE SKIP_RETURN_CODE 77
                       ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
endif()
foreach(ranks 1 2 4)
  mpi_test(memory_test ${ranks})
  mpi_test(batch_state_test ${ranks})
  mpi_test(batch_norm_test ${ranks})
endforeach()
foreach(ranks 2 3)
  mpi_test(caption_test ${ranks})
endforeach()
foreach(ranks 1 2 4)
  mpi_test(row_file_test ${ranks} ${CMAKE_CURRENT_BINARY_DIR}/row_file_${ranks})
endforeach()
set_tests_properties(mesh_bits_mpi1 PROPERTIES FIXTURES_SETUP mesh_bits)
foreach(ranks 2 3 4)
  set_tests_properties(mesh_bits_mpi${ranks} PROPERTIES FIXTURES_REQUIRED mesh_bits)
endforeach()

set(bits ${CMAKE_CURRENT_BINARY_DIR}/classifier_bits.txt)
foreach(ranks 1 2 4)
  mpi_test(classifier_bits ${ranks} ${bits})
endforeach()
set_tests_properties(classifier_bits_mpi1 PROPERTIES FIXTURES_SETUP classifier_bits)
set_tests_properties(classifier_bits_mpi2 classifier_bits_mpi4 PROPERTIES FIXTURES_REQUIRED classifier_bits)

set(bits ${CMAKE_CURRENT_BINARY_DIR}/ssl_bits.bin)
foreach(ranks 1 2 4)
  mpi_test(ssl_bits ${ranks} ${bits})
endforeach()
set_tests_properties(ssl_bits_mpi1 PROPERTIES FIXTURES_SETUP ssl_bits)
set_tests_properties(ssl_bits_mpi2 ssl_bits_mpi4 PROPERTIES FIXTURES_REQUIRED ssl_bits)

set(bits ${CMAKE_CURRENT_BINARY_DIR}/pair_bits.txt)
foreach(ranks 1 2 4)
  mpi_test(pair_bits ${ranks} ${bits})
endforeach()
set_tests_properties(pair_bits_mpi1 PROPERTIES FIXTURES_SETUP pair_bits)
set_tests_properties(pair_bits_mpi2 pair_bits_mpi4 PROPERTIES FIXTURES_REQUIRED pair_bits)

# Every pair of N ranks that save and M ranks that continue. `continue_test load FOLDER all`,
# started by hand, runs the steps for each pair.
set(saved ${CMAKE_CURRENT_BINARY_DIR}/continue)
foreach(ranks 1 2 3 4)
  mpi_test(continue_test ${ranks} save ${saved})
  add_test(NAME continue_load_mpi${ranks}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:continue_test> load ${saved})
  set_tests_properties(continue_load_mpi${ranks} PROPERTIES LABELS mpi PROCESSORS ${ranks}
                       ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}" FIXTURES_REQUIRED continue)
  set_tests_properties(continue_test_mpi${ranks} PROPERTIES FIXTURES_SETUP continue)
endforeach()
mpi_test(damage_test 1 $<IF:$<BOOL:${TRAINER_SANITIZE}>,100,600>)

# Exchanges between emulated GPUs. Some must fail: operation 3 of the last rank, or a missing rank.
add_executable(gpu_exchange_test mpi/gpu_exchange_test.cpp ${emulated_gpu} $<TARGET_OBJECTS:nccl_on_cpu>)
target_link_libraries(gpu_exchange_test PRIVATE trainer_comm)
set_target_properties(gpu_exchange_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
foreach(ranks 2 4)
  mpi_test(gpu_exchange_test ${ranks})
endforeach()
foreach(ranks 2 4)
  set_tests_properties(gpu_exchange_test_mpi${ranks} PROPERTIES LABELS "mpi;cuda")
endforeach()
foreach(failure hang@3 error@3 refuse@3 absent)
  add_test(NAME gpu_exchange_${failure}_mpi2
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2 $<TARGET_FILE:gpu_exchange_test> ${failure})
  set_tests_properties(gpu_exchange_${failure}_mpi2 PROPERTIES LABELS "mpi;cuda" PROCESSORS 2
                       ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
endforeach()

# Tests on emulated GPUs: a plan beside the engine's memory; steps whose work runs as late as it
# may.
foreach(name gpu_memory_test gpu_step_test)
  add_executable(${name} mpi/${name}.cpp ${emulated_gpu} $<TARGET_OBJECTS:nccl_on_cpu>)
  target_link_libraries(${name} PRIVATE trainer_train)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  foreach(ranks 1 2)
    mpi_test(${name} ${ranks})
    set_tests_properties(${name}_mpi${ranks} PROPERTIES LABELS "mpi;cuda")
  endforeach()
endforeach()

add_executable(caption_on_emulator mpi/caption_test.cpp ${emulated_gpu} $<TARGET_OBJECTS:nccl_on_cpu>)
target_link_libraries(caption_on_emulator PRIVATE trainer_train)
set_target_properties(caption_on_emulator PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
mpi_test(caption_on_emulator 2 cuda)
set_tests_properties(caption_on_emulator_mpi2 PROPERTIES LABELS "mpi;cuda")

# Measures the cost of saving, beside plain MPI-IO. It is started by hand.
if(NOT TRAINER_MPI_PLUGINS)
  add_executable(checkpoint_bench EXCLUDE_FROM_ALL bench/checkpoint_bench.cpp)
  target_include_directories(checkpoint_bench PRIVATE mpi)
  target_link_libraries(checkpoint_bench PRIVATE trainer_train MPI::MPI_CXX)
  set_target_properties(checkpoint_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endif()
