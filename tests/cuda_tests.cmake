# SPDX-License-Identifier: Apache-2.0
# Tests of the CUDA back end. Its op suite runs on an emulated GPU everywhere, and on a real GPU if
# there is one (otherwise skipped with exit code 77).

# The CUDA part of device and the code around libraries, compiled by g++ against tests/cuda_on_cpu.
# They are linked as objects, so they replace files of the same name in the libraries.
file(GLOB library_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*_cublaslt.cpp
     ${CMAKE_SOURCE_DIR}/kernels/cuda/*_cudnn.cpp)
file(GLOB emulator_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda_on_cpu/*.cpp)
list(FILTER emulator_sources EXCLUDE REGEX "/nccl\\.cpp$")
list(APPEND emulator_sources ${library_sources} ${CMAKE_SOURCE_DIR}/src/device/cuda.cpp)
# The kernels. Those in `watched_kernels` report their accesses to tests/cuda_on_cpu/tsan.cpp.
file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
trainer_batches(cuda_sources kernels_on_cpu 8)
set_source_files_properties(${cuda_sources} PROPERTIES LANGUAGE CXX)
set(watched_flags -fsanitize=thread)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  list(APPEND watched_flags -mllvm -tsan-instrument-func-entry-exit=0)
else()
  list(APPEND watched_flags --param=tsan-instrument-func-entry-exit=0)
endif()
# Kernels run in many tests, which take a third less time with -O2 than with the tests' -O1.
set(emulator_flags -Wno-unknown-pragmas -fno-strict-aliasing)
if(NOT TRAINER_SANITIZE)  # a GPU ends a kernel at an address that is not aligned; here a trap does
  list(APPEND emulator_flags -fsanitize=alignment -fsanitize-undefined-trap-on-error)
endif()
add_library(cuda_on_cpu OBJECT ${emulator_sources})
add_library(plain_kernels OBJECT ${cuda_sources})
add_library(watched_kernels OBJECT ${cuda_sources})
if(NOT TRAINER_SANITIZE)  # one sanitizer excludes the other, so only copies and libraries report then
  target_compile_options(watched_kernels PRIVATE ${watched_flags})
endif()
foreach(part cuda_on_cpu plain_kernels watched_kernels)
  target_include_directories(${part} BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cuda_on_cpu)
  target_link_libraries(${part} PRIVATE trainer_base)
  target_precompile_headers(${part} PRIVATE ${TRAINER_COMMON_HEADERS})
  # Products and sums are fused, as by nvcc; the CPUs that run the tests have such instructions.
  target_compile_options(${part} PRIVATE -O2 ${emulator_flags} -ffp-contract=fast)
endforeach()
# What programs with an emulated GPU link, and what those with a watched one link.
set(emulated_gpu $<TARGET_OBJECTS:cuda_on_cpu> $<TARGET_OBJECTS:plain_kernels>)
set(watched_gpu $<TARGET_OBJECTS:cuda_on_cpu> $<TARGET_OBJECTS:watched_kernels>)
if(TRAINER_WATCH)
  set(emulated_gpu ${watched_gpu})
endif()

# An emulated NCCL, for programs with ranks.
add_library(nccl_on_cpu OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/cuda_on_cpu/nccl.cpp ${CMAKE_SOURCE_DIR}/src/comm/nccl_comm.cpp)
target_include_directories(nccl_on_cpu BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cuda_on_cpu)
target_link_libraries(nccl_on_cpu PRIVATE trainer_base)
target_compile_options(nccl_on_cpu PRIVATE -fno-strict-aliasing)

add_executable(test_kernels_on_emulator $<TARGET_OBJECTS:kernel_tests> ${emulated_gpu})
target_link_libraries(test_kernels_on_emulator PRIVATE trainer_kernels GTest::gtest trainer::hdf5 tests_common)
add_executable(test_kernels_watched $<TARGET_OBJECTS:kernel_tests> ${watched_gpu})
target_link_libraries(test_kernels_watched PRIVATE trainer_kernels GTest::gtest trainer::hdf5 tests_common)
# Once in order and with exact functions. Once in random orders and with functions that are off by
# as much as a GPU's, while accesses are searched for races. A substitute of the library computes
# products, whose loops have no threads.
set(program_forward test_kernels_on_emulator)
set(program_random test_kernels_watched)
set(filter_forward "*")
set(filter_random "-Gemm.*:GemmAlike*:GemmByRows*:GemmSums*")
foreach(order forward random)
  add_test(NAME unit_kernels_on_emulator_${order}
           COMMAND ${program_${order}} --kind=cuda --gtest_filter=${filter_${order}})
  set_tests_properties(unit_kernels_on_emulator_${order} PROPERTIES LABELS "unit;cuda"
                       ENVIRONMENT "OMP_WAIT_POLICY=passive;CUDA_ON_CPU_ORDER=${order}")
endforeach()
set_tests_properties(unit_kernels_on_emulator_random PROPERTIES COST 600)  # long, so not last and alone
set_property(TEST unit_kernels_on_emulator_random APPEND PROPERTY ENVIRONMENT CUDA_ON_CPU_SEED=24 CUDA_ON_CPU_PERTURB=24
             CUDA_ON_CPU_WATCH=1)

# The optimizers on CUDA, with golden data. The emulator stops host code that reads the GPU's
# memory. Tests that compare bits with meshes of threads are left out, because those run on the CPU.
# Tests that count allocations are left out, because the emulator allocates too.
set(optim_filter --gtest_filter=-Optimizer.AllocatesNothing*:*Sharding.SameBits*:*Sharding.ResumesOn*)
add_executable(test_optim_on_emulator $<TARGET_OBJECTS:optim_tests> ${emulated_gpu})
target_link_libraries(test_optim_on_emulator PRIVATE trainer_optim GTest::gtest GTest::gtest_main trainer::hdf5 tests_common)
add_test(NAME unit_optim_on_emulator COMMAND test_optim_on_emulator ${optim_filter})
add_test(NAME unit_optim_gpu COMMAND test_optim ${optim_filter})
set_tests_properties(unit_optim_on_emulator unit_optim_gpu PROPERTIES LABELS "unit;cuda" SKIP_RETURN_CODE 77
                     ENVIRONMENT "OMP_WAIT_POLICY=passive;TRAINER_TEST_KIND=cuda")

# The program of a build without CUDA, in each build. run/no_cuda_test.py works with it.
add_executable(trainer_without_cuda $<TARGET_OBJECTS:trainer_main>)
target_link_libraries(trainer_without_cuda PRIVATE trainer_modes ${TRAINER_main_LIBRARIES})
set_target_properties(trainer_without_cuda PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# The whole program on the emulated GPU.
add_executable(trainer_on_emulator $<TARGET_OBJECTS:trainer_main> ${emulated_gpu} $<TARGET_OBJECTS:nccl_on_cpu>)
target_link_libraries(trainer_on_emulator PRIVATE trainer_modes ${TRAINER_main_LIBRARIES})
set_target_properties(trainer_on_emulator PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# The same with kernels that report their accesses (run/cuda_watch_test.py).
add_executable(trainer_watched $<TARGET_OBJECTS:trainer_main> ${watched_gpu} $<TARGET_OBJECTS:nccl_on_cpu>)
target_link_libraries(trainer_watched PRIVATE trainer_modes ${TRAINER_main_LIBRARIES})
set_target_properties(trainer_watched PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

set(watch_test unit/cuda_on_cpu/watch_test.cpp)
if(TRAINER_SANITIZE)  # one sanitizer excludes the other
  set(watch_test "")
endif()
set(sources alignment cudnn emulator fallbacks gemm_search graphs launch_rules many_launches staging)
list(TRANSFORM sources REPLACE "(.+)" "unit/cuda_on_cpu/\\1_test.cpp")
trainer_batches(sources cuda_on_cpu 5)
add_executable(test_cuda_on_cpu ${sources} unit/cuda_on_cpu/perturbed_test.cpp ${watch_test} ${emulated_gpu})
target_include_directories(test_cuda_on_cpu BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cuda_on_cpu)
target_compile_options(test_cuda_on_cpu PRIVATE ${emulator_flags})
set_source_files_properties(unit/cuda_on_cpu/perturbed_test.cpp PROPERTIES COMPILE_OPTIONS "-O2;-ffp-contract=fast")
target_link_libraries(test_cuda_on_cpu PRIVATE trainer_kernels GTest::gtest GTest::gtest_main)
set_source_files_properties(unit/cuda_on_cpu/watch_test.cpp PROPERTIES COMPILE_OPTIONS "${watched_flags}")
add_test(NAME unit_cuda_on_cpu COMMAND test_cuda_on_cpu)
set_tests_properties(unit_cuda_on_cpu PROPERTIES LABELS "unit;cuda" ENVIRONMENT CUDA_ON_CPU_WATCH=1)

add_test(NAME unit_kernels_gpu COMMAND test_kernels --kind=cuda)
set_tests_properties(unit_kernels_gpu PROPERTIES LABELS "unit;cuda" SKIP_RETURN_CODE 77)

# The programs of tools/gpu_check, for a GPU and for the emulated one. This test only shows that the
# table runs on CPUs.
file(GLOB table_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/gpu/kernel_*.cpp)
trainer_batches(table_sources kernel_table 6)
add_library(kernel_table_objects OBJECT ${table_sources})
target_link_libraries(kernel_table_objects PRIVATE trainer_base nlohmann_json::nlohmann_json)
add_executable(kernel_table $<TARGET_OBJECTS:kernel_table_objects>)
trainer_with_gpus(kernel_table)
add_executable(kernel_table_on_emulator $<TARGET_OBJECTS:kernel_table_objects> ${emulated_gpu})
add_executable(gpu_libraries_on_emulator gpu/gpu_libraries.cpp ${emulated_gpu} $<TARGET_OBJECTS:nccl_on_cpu>)
target_include_directories(gpu_libraries_on_emulator BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cuda_on_cpu)
target_compile_options(gpu_libraries_on_emulator PRIVATE -Wno-unknown-pragmas -fno-strict-aliasing)
target_link_libraries(gpu_libraries_on_emulator PRIVATE trainer_comm)
foreach(program kernel_table kernel_table_on_emulator)
  target_link_libraries(${program} PRIVATE trainer_kernels nlohmann_json::nlohmann_json)
endforeach()
add_test(NAME kernel_table_on_cpu COMMAND kernel_table --kind=cpu --models=tiny --seconds=0.0003)
set_tests_properties(kernel_table_on_cpu PROPERTIES LABELS "unit;cuda" ENVIRONMENT OMP_WAIT_POLICY=passive)

# What tools/bundle packs.
add_custom_target(bundled DEPENDS trainer test_kernels test_optim kernel_table golden)

if(TRAINER_HAS_CUDA)
  add_executable(gpu_libraries gpu/gpu_libraries.cpp)
  add_dependencies(bundled gpu_libraries)
  # cuDNN plans without a GPU if it finds a libcuda.so.1. The toolkit has a stub of this library.
  add_executable(plan_attention gpu/plan_attention.cpp)
  add_executable(plan_convolution gpu/plan_convolution.cpp)
  foreach(program gpu_libraries plan_attention plan_convolution)
    target_link_libraries(${program} PRIVATE trainer_comm trainer_cuda)
    trainer_with_gpus(${program})
  endforeach()
  set(stub ${CUDAToolkit_LIBRARY_DIR}/stubs/libcuda.so)
  if(EXISTS ${stub})
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/stub)
    file(CREATE_LINK ${stub} ${CMAKE_CURRENT_BINARY_DIR}/stub/libcuda.so.1 SYMBOLIC)
  endif()
  add_test(NAME unit_attention_plans COMMAND plan_attention)
  add_test(NAME unit_convolution_plans COMMAND plan_convolution)
  set_tests_properties(unit_attention_plans unit_convolution_plans PROPERTIES LABELS "unit;cuda" SKIP_RETURN_CODE 77
                       ENVIRONMENT "LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/stub:$ENV{LD_LIBRARY_PATH}")
endif()
