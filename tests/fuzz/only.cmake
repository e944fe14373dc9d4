# SPDX-License-Identifier: Apache-2.0
# The differences of preset fuzz: its flags, and the files of its folders that no fuzzer needs. The
# tests build it, so it also compiles several files at a time to save seconds.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "The fuzzers need Clang with libFuzzer: tools/fuzz chooses one, CXX names another.")
endif()
target_compile_options(trainer_flags INTERFACE -O1 -gline-tables-only -fno-omit-frame-pointer
                       -fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow -fno-sanitize-recover=all)
target_compile_definitions(trainer_flags INTERFACE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
target_link_options(trainer_flags INTERFACE -fsanitize=address,undefined)
set(TRAINER_BATCHES ON)
set(TRAINER_LEFT_OUT "config/describe|device/graphs|io/h5_shared|\
data/(bad_sample|dataset|image_files|stream/.*)\\.cpp")
