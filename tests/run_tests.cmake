# SPDX-License-Identifier: Apache-2.0
# A library that injects failures at chosen calls (torture_test.py).
add_library(inject MODULE ${CMAKE_CURRENT_SOURCE_DIR}/inject/inject.cpp)
target_link_libraries(inject PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(inject PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
# The same for exchanges between ranks (faults_test.py).
add_library(mpi_faults MODULE ${CMAKE_CURRENT_SOURCE_DIR}/inject/mpi_faults.cpp)
target_link_libraries(mpi_faults PRIVATE MPI::MPI_CXX ${CMAKE_DL_LIBS})
target_include_directories(mpi_faults PRIVATE ${CMAKE_SOURCE_DIR}/src)
set_target_properties(mpi_faults PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# A library that makes a rank slow (slow_rank_test.py).
add_library(slow MODULE ${CMAKE_CURRENT_SOURCE_DIR}/inject/slow.cpp)
target_link_libraries(slow PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(slow PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# A library that makes the machine of a rank faulty (selftest_test.py, jobs on several nodes).
add_library(machine MODULE ${CMAKE_CURRENT_SOURCE_DIR}/inject/machine.cpp)
target_link_libraries(machine PRIVATE MPI::MPI_CXX ${CMAKE_DL_LIBS})
set_target_properties(machine PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# Lets waiting ranks of these scripts rest. Programs in tests/mpi exchange so often that they would
# take three times as long. The runtime of sanitizers must be the first library.
set(run_environment "${TRAINER_MPI_ENVIRONMENT}")
if(NOT TRAINER_SANITIZE)
  add_library(rest MODULE ${CMAKE_CURRENT_SOURCE_DIR}/inject/rest.cpp)
  set_target_properties(rest PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  list(APPEND run_environment LD_PRELOAD=$<TARGET_FILE:rest>)
endif()

# Scripts that run the program like a user: decks, data, files, exit codes, jobs. A script that
# exits with 77 was skipped and prints the reason. The scripts use Debian's Python (h5py, NumPy,
# Pillow).
file(GLOB run_scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/run/*_test.py)
if(TRAINER_SANITIZE)
  list(FILTER run_scripts EXCLUDE REGEX "/cuda_watch_test\\.py$")  # its kernels report nothing then
endif()
# The scripts mostly wait for programs to start, so two run at a time. Their time limits allow that.
foreach(script IN LISTS run_scripts)
  get_filename_component(name ${script} NAME_WE)
  if(TRAINER_SANITIZE AND name MATCHES "^(torture|slow_rank)_test$")
    continue()  # both preloaded libraries must come first, and both replace the allocator
  endif()
  if(TRAINER_SANITIZE AND name STREQUAL memory_limit_test)
    continue()  # sanitizers reserve more address space than any limit
  endif()
  if(TRAINER_SANITIZE AND name MATCHES "^(clang|configure|format)_test$")
    continue()  # they run nothing that a sanitizer could watch
  endif()
  add_test(NAME run_${name}_mpi4 COMMAND /usr/bin/python3 ${script})
  set_tests_properties(run_${name}_mpi4 PROPERTIES LABELS run SKIP_RETURN_CODE 77
                       ENVIRONMENT "TRAINER=$<TARGET_FILE:trainer>;INJECT_LIBRARY=$<TARGET_FILE:inject>;${run_environment}")
  set_property(TEST run_${name}_mpi4 APPEND PROPERTY ENVIRONMENT "MACHINE_LIBRARY=$<TARGET_FILE:machine>"
               "FAULT_LIBRARY=$<TARGET_FILE:mpi_faults>")
endforeach()
if(TEST run_slow_rank_test_mpi4)
  set_property(TEST run_slow_rank_test_mpi4 APPEND PROPERTY ENVIRONMENT "SLOW_LIBRARY=$<TARGET_FILE:slow>")
endif()

set_tests_properties(run_slurm_test_mpi4 PROPERTIES COST 1000)  # first, because it mostly waits
if(TEST run_clang_test_mpi4)
  set_tests_properties(run_clang_test_mpi4 PROPERTIES COST 900)  # long, so not last and alone
endif()
# The longest scripts start next, so that none runs alone at the end.
foreach(name torture_test pbs_test cuda_test cuda_watch_test stops_test resume_test init_test eval_mode_test docs_test decks_test
             cuda_combinations_test continued_test report_test bundle_test)
  if(TEST run_${name}_mpi4)  # sanitizers leave some out
    set_tests_properties(run_${name}_mpi4 PROPERTIES COST 500)
  endif()
endforeach()
foreach(script cuda_test cuda_figures_test cuda_combinations_test classifier_test group_norm_test trunk_captioner_test)
  set_property(TEST run_${script}_mpi4 APPEND PROPERTY ENVIRONMENT "TRAINER_ON_EMULATOR=$<TARGET_FILE:trainer_on_emulator>")
endforeach()

# tools/quickstart in a bare Debian, where no CUDA toolkit and no package that a list forgets is at
# hand. It first waits for packages, so it starts early.
add_test(NAME run_bare_debian COMMAND ${CMAKE_SOURCE_DIR}/tools/bare_test --short)
set_tests_properties(run_bare_debian PROPERTIES LABELS run SKIP_RETURN_CODE 77 COST 1000)

# Every deck in inputs/ is valid. recipes_test.py plans those that count in epochs of ImageNet.
file(GLOB decks CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/inputs/*.toml)
list(FILTER decks EXCLUDE REGEX "(_r50|/dino_s16)\\.toml$")
foreach(deck IN LISTS decks)
  get_filename_component(name ${deck} NAME_WE)
  add_test(NAME deck_${name} COMMAND trainer ${deck} --validate --mode plan --ranks 8 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(deck_${name} PROPERTIES LABELS run)
endforeach()

set_tests_properties(run_no_cuda_test_mpi4 PROPERTIES ENVIRONMENT "TRAINER=$<TARGET_FILE:trainer_without_cuda>;${run_environment}")
set_property(TEST run_cuda_graph_test_mpi4 APPEND PROPERTY ENVIRONMENT "TRAINER_ON_EMULATOR=$<TARGET_FILE:trainer_on_emulator>")
if(NOT TRAINER_SANITIZE)
  set_property(TEST run_cuda_watch_test_mpi4 APPEND PROPERTY ENVIRONMENT "TRAINER_ON_EMULATOR=$<TARGET_FILE:trainer_watched>")
endif()

# The program of a build without the libraries that a build may lack (run/optional_test.py). As for
# CUDA, its objects replace those of the libraries.
list(TRANSFORM TRAINER_REPLACING_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/src/ OUTPUT_VARIABLE replacing)
list(TRANSFORM replacing APPEND .cpp)
add_library(no_libraries OBJECT ${replacing})
target_link_libraries(no_libraries PRIVATE trainer_checkpoint)
add_executable(trainer_without_libraries $<TARGET_OBJECTS:trainer_main> $<TARGET_OBJECTS:no_libraries>)
target_link_libraries(trainer_without_libraries PRIVATE trainer_modes ${TRAINER_main_LIBRARIES})
set_target_properties(trainer_without_libraries PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
set_tests_properties(run_optional_test_mpi4 PROPERTIES ENVIRONMENT
                     "TRAINER=$<TARGET_FILE:trainer_without_libraries>;${run_environment}")
