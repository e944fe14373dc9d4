# SPDX-License-Identifier: Apache-2.0
# What preset fuzz does otherwise: its flags, and which files of its folders it leaves out because no fuzzer needs them
# (the tests build it, so seconds count: several files at a time, too).
target_compile_options(trainer_flags INTERFACE -O1 -gline-tables-only -fno-omit-frame-pointer
                       -fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow -fno-sanitize-recover=all)
target_compile_definitions(trainer_flags INTERFACE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
target_link_options(trainer_flags INTERFACE -fsanitize=address,undefined)
set(CMAKE_UNITY_BUILD ON)
set(TRAINER_LEFT_OUT "base/signals|config/describe|device/graphs|io/version|\
data/(bad_sample|dataset|stream/.*)\\.cpp")
